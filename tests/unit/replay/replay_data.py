"""Small replay records for tests."""

import json

TINY = "bashgym/tiny-qwen2"


def attempt(i):
    """One of four attempts at environment i // 4; the even ones pass. Sampled: one digit and the end of the turn."""
    prompt, token = f"digit {i // 4}", str(i % 10)
    return {
        "batch_id": "b1",
        "environment_id": f"env_{i // 4}",
        "attempt_index": i % 4,
        "prompt": prompt,
        "reward": float(i % 2 == 0),
        "passed": i % 2 == 0,
        "verifier_status": "passed" if i % 2 == 0 else "failed",
        "trajectory": {"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": token}]},
        "behavior_policy": {
            "response_logprobs": [{"turn": 1, "tokens": [token, "<|im_end|>"], "logprobs": [-2.0, -0.5]}]
        },
    }


def write(folder, records, name="replay.jsonl"):
    """Writes records as JSONL."""
    path = folder / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
