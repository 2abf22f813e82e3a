"""`python -m minisandbox` is the command `minisandbox`."""

from minisandbox.cli.main import main

raise SystemExit(main())
