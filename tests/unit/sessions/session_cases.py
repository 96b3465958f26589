"""A valid record, and sessions from (command, output, exit code) triples."""

import json

from bashgym.data.sessions.contract import TAG
from bashgym.data.sessions.steps import Session, Step


def record(i=0, **changes):
    target = f"cat notes{i}.txt"
    context = f"Step 1, bash: cat note{i}.txt\nOutput: cat: note{i}.txt: No such file or directory\n"
    hint = f"The path note{i}.txt does not exist."
    span = {"start": 0, "end": len(str(changes.get("target_text", target)))}
    return {
        "record_id": f"{i:024x}",
        "trace_id": f"t{i}",
        "session_id": f"s{i}",
        "decision_id": f"t{i}:0",
        "step_index": 0,
        "original_context": f"{context}Next action:",
        "hinted_context": f"{context}{TAG} {hint}\nNext action:",
        "hint_text": hint,
        "target_text": target,
        "target_type": "command",
        "target_span": span,
        "loss_mask": {"policy": "target_span_only", "target_span": span},
        "reader_model": "r",
        "reader_confidence": 0.78,
        "quality_score": 0.9,
        "verifier_outcome": "failed",
        "source_metadata": {"failed_action": f"cat note{i}.txt"},
        **changes,
    }


def steps(*triples, tool="bash"):
    return [
        Step(i, tool, action, output, None if code is None else code == 0, code)
        for i, (action, output, code) in enumerate(triples)
    ]


def session(*triples, task="Do it."):
    return Session("trace", "session", task, "repo", steps(*triples))


def write_own(path, *triples, session_id="s"):
    trace = [{"tool_name": "bash", "command": c, "output": o, "exit_code": code} for c, o, code in triples]
    path.write_text(
        json.dumps({"session_id": session_id, "metadata": {"user_initial_prompt": "Do it."}, "trace": trace})
    )


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
