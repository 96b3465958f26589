"""Training methods as data: one file per method, one registry, and what is derived from it."""
