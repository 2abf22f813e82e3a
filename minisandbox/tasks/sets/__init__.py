"""Packaged sets of tasks, one module each: what is installed, as a stream of tasks. Nothing of a set is in this package."""
