"""Packaged sets of tasks, one module each: what is installed, as a stream of tasks. No data of a set is here."""
