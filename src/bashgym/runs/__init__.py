"""Runs: prepare, launch, supervise, control, reconcile, analyse. Never imports torch; the trainer is another process.

`service` is what surfaces call; `supervisor` is the one small process that owns a live run; `lifecycle` holds the only
transition table. What happens inside the trainer belongs to `training`.
"""
