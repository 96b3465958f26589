"""What runs inside the training process: `python -m bashgym.training RUN_DIR`. The only place besides `inference` with torch.

It reads request.json and manifest.json, trains, and leaves files: metrics.jsonl, samples.jsonl, checkpoints, final/,
trainer.json (phase and step count) and trainer_exit.json. It never touches run_state.json or the database: those are
the supervisor's. Exit codes: 0 finished, 1 error (trainer_error.json says which), 75 paused at a checkpoint.
"""

EXIT_PAUSED = 75
"""sysexits' TEMPFAIL: try again later."""
