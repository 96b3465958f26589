"""Small rows and settings for every direct strategy, for tests that treat them alike."""

import json

from .conftest import TINY

COMMON = {
    "base_model": TINY,
    "batch_size": 4,
    "gradient_accumulation_steps": 1,
    "learning_rate": 1e-3,
    "max_seq_length": 64,
    "lora_rank": 4,
    "lora_alpha": 8,
    "lora_dropout": 0.1,
    "max_steps": 24,
    "save_steps": 4,
    "sample_prompts": 0,
    "torch_threads": 1,
}
OWN = {
    "dpo": {},
    "grpo": {"grpo_reward_mode": "answer", "max_completion_length": 8, "grpo_temperature": 1.5, "wrap_prompts": True},
    "rlvr": {"max_completion_length": 8, "grpo_temperature": 1.5},
    "distillation": {"teacher_model": TINY},
    "session_distillation": {},
    "dppo": {},
    "reward_model": {},
}


def rows(strategy):
    """48 rows, 12 for rlvr, whose rewards are executed."""
    if strategy == "dpo":
        return [{"prompt": f"{i} plus 1?", "chosen": str(i + 1), "rejected": str(i)} for i in range(48)]
    if strategy == "grpo":
        return [{"prompt": f"digit {i % 5}", "answer": str(i % 5)} for i in range(48)]
    if strategy == "rlvr":
        tests = "from solution import f\n\ndef test_f():\n    assert f(2) == 4\n"
        return [{"prompt": f"Case {i}: write f(x) that doubles x.\n", "tests": tests} for i in range(12)]
    if strategy == "distillation":
        return [{"prompt": f"{i} plus 1?", "teacher_response": str(i + 1)} for i in range(48)]
    if strategy == "dppo":
        return [_attempt(i) for i in range(48)]
    if strategy == "reward_model":
        return [judged("preference", i) for i in range(48)]
    return [_record(i) for i in range(48)]


def judged(kind, i, split="train"):
    """A reward example: the better answer says so."""
    row = {
        "example_id": f"{kind}-{split}-{i}",
        "reward_type": f"{kind}_reward",
        "prompt": f"{split} case {i}: ",
        "split": split,
    }
    good = i % 2 == 0
    if kind == "preference":
        return {**row, "chosen": f"yes {i}", "rejected": f"no {i}"}
    if kind == "outcome":
        return {**row, "response": f"{'yes' if good else 'no'} {i}", "reward": float(good)}
    texts = ["yes", "yes", "no"] if good else ["no", "yes"]
    return {**row, "steps": [{"text": f"{text} {i}", "reward": int(text == "yes")} for text in texts]}


def _attempt(i):
    """One of four attempts at an environment; the even ones pass."""
    prompt, token = f"digit {i // 4 % 5}", str(i % 10)
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": token}]
    return {
        "batch_id": "b1",
        "environment_id": f"env_{i // 4}",
        "attempt_index": i % 4,
        "prompt": prompt,
        "reward": float(i % 2 == 0),
        "passed": i % 2 == 0,
        "verifier_status": "passed" if i % 2 == 0 else "failed",
        "trajectory": {"messages": messages},
        "behavior_policy": {
            "response_logprobs": [{"turn": 1, "tokens": [token, "<|im_end|>"], "logprobs": [-2.0, -0.5]}]
        },
    }


def transitions(i):
    """A replay record that a world model learns from: two commands, the second with a prior."""
    first = {"instruction": f"look at note{i}", "prior": [], "action": "ls", "next_state": f"note{i}"}
    prior = [{"action": "ls", "state": f"note{i}"}]
    second = {"instruction": f"look at note{i}", "prior": prior, "action": f"cat note{i}", "next_state": f"line {i}"}
    return {**_attempt(i), "world_model": {"rwml_transitions": [second, first]}}


def _record(i):
    context, target = f"Task {i}: show it. Last: cat note{i}. Output: No such file.\nNext action:", f"cat notes{i}"
    hint = f"There is a file notes{i} here."
    span = {"start": 0, "end": len(target)}
    return {
        "record_id": f"{i:024x}",
        "trace_id": f"t{i}",
        "session_id": f"s{i}",
        "decision_id": f"d{i}",
        "step_index": 1,
        "original_context": context,
        "hinted_context": f"[Session Distillation Hint] {hint}\n{context}",
        "hint_text": hint,
        "target_text": target,
        "target_type": "command",
        "target_span": span,
        "loss_mask": {"policy": "target_span_only", "target_span": span},
        "reader_model": "heuristic-session-distillation-reader-v1",
        "reader_confidence": 0.8,
        "quality_score": 0.8,
        "verifier_outcome": "failed",
        "source_metadata": {"split": "train"},
    }


def body(strategy, folder, **changes):
    """A request for `strategy` whose rows are written into `folder`."""
    path = folder / f"{strategy}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(strategy)))
    length = 160 if strategy == "session_distillation" else COMMON["max_seq_length"]
    return {
        "strategy": strategy,
        "dataset_path": str(path),
        **COMMON,
        "max_seq_length": length,
        **OWN[strategy],
        **changes,
    }
