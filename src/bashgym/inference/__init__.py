"""Generation with a local model: `python -m bashgym.inference JOB_DIR...`, the scoring process.

It reads job.json and prompts.jsonl, appends completions.jsonl batch by batch, replaces progress.json, and on failure
leaves error.json and exit status 1. A job that was killed goes on where it stopped when it is started again.
A folder with replay_job.json asks for the log probabilities of recorded tokens: sequences.jsonl in, logprobs.jsonl out.
"""
