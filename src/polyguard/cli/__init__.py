"""Command lines, one module a script of `scripts/`: flags in, a service called, a line or a JSON document out. No logic."""
