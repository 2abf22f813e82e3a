"""`minisandbox policy`: the policies that there are, and whether a file of one's own is one."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import msgspec

from minisandbox.cli.options import add_debug_option
from minisandbox.cli.output import console_of, print_json, size_text
from minisandbox.policy import Policy, check_policy, filters, load_policy, policy_names

EXAMPLES = """examples:
  minisandbox policy list
  minisandbox policy check my.toml
  minisandbox policy check --json strict

exit codes of check: 0, 65 when the policy is wrong (file and line are named), 64 when there is none."""


def add_parser(commands: Any) -> None:
    """Add the command to the subparsers of argparse."""
    parser = commands.add_parser(
        "policy", help="list and check policies", description="List and check policies.", epilog=EXAMPLES
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="check a policy file and its seccomp profiles", epilog=EXAMPLES)
    check.add_argument("policy", metavar="FILE", help="a .toml, or the name of a policy")
    check.set_defaults(serve=serve_check)
    listing = actions.add_parser("list", help="list the policies that come with minisandbox", epilog=EXAMPLES)
    listing.set_defaults(serve=serve_list)
    for action in (check, listing):
        action.add_argument("--json", action="store_true", help="print one JSON object")
        add_debug_option(action)


def serve_check(options: argparse.Namespace) -> int:
    """Check one policy, and print what it says when it is right."""
    text: str = options.policy
    policy = check_policy(Path(text) if os.path.exists(text) else text)
    if options.json:
        print_json({"ok": True, "policy": _fields(policy)})
    else:
        sizes = ", ".join(f"{path.name} ({len(program) // 8} instructions)" for path, program in _programs(policy))
        print(f"{text}: ok; {_summary(policy)}; seccomp: {sizes or 'none'}")
    return 0


def serve_list(options: argparse.Namespace) -> int:
    """Print the policies that come with the package."""
    policies = [load_policy(name) for name in policy_names()]
    if options.json:
        print_json({"policies": [_fields(policy) for policy in policies]})
        return 0
    from rich.table import Table

    table = Table("policy", "user", "network", "wall time", "memory", "processes", "disk", box=None)
    for policy in policies:
        limits = policy.limits
        wall_time = "no limit" if limits.wall_time_s is None else f"{limits.wall_time_s:g} s"
        processes = "no limit" if limits.processes is None else str(limits.processes)
        memory, disk = size_text(limits.memory_bytes), size_text(limits.disk_bytes)
        table.add_row(policy.name, policy.user, policy.network.value, wall_time, memory, processes, disk)
    console_of("stdout").print(table)
    return 0


def _programs(policy: Policy) -> list[tuple[Path, bytes]]:
    return list(zip(policy.seccomp, filters(policy), strict=True))


def _fields(policy: Policy) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(policy, enc_hook=str)
    return fields | {"capabilities": sorted(policy.capabilities), "namespaces": sorted(policy.namespaces)}


def _summary(policy: Policy) -> str:
    network = f"{policy.network.value} but for {', '.join(policy.allow)}" if policy.allow else policy.network.value
    return f"user {policy.user}, {len(policy.capabilities)} capabilities, network {network}"
