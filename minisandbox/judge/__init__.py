"""The judge: seals, takes artifacts in, plans cells, runs them, decides, and records. It never runs or trusts them."""
