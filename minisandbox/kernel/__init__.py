"""One kernel object a module: nothing above this package talks to the kernel about sandboxes."""
