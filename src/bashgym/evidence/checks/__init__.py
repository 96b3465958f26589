"""One file per kind of check. Each takes a `Context`, adds findings, and says which evidence it accepts."""
