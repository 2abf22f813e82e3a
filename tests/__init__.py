"""The tests. A package, so that what other distributions install under this name is not taken for it."""
