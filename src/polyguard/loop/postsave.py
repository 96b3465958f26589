"""What a saved artifact does in a process that knows nothing but its files: held-out situations, greedily answered."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from bashgym.core.canonical import digest_json
from bashgym.core.errors import fail
from bashgym.core.files import atomic_write_json, writable_dir
from polyguard import DISCLAIMER
from polyguard.env.text import messages
from polyguard.loop.active import active, saved
from polyguard.training import reports
from polyguard.training.teacher import at

REPORT = Path("outputs/reports/postsave_inference.json")
SCHEMA = "polyguard.postsave_inference.v1"


def check(samples: int, model: Path | None = None) -> dict[str, Any]:
    """Asks the artifact, one situation after the other, and writes the report. `model_missing` where none is saved."""
    from polyguard.loop.active import look
    from polyguard.policies.local_model import ModelPolicy

    found = look("named", model) if model is not None else next(iter(saved()), None)
    if found is None:
        hint = "Run train_sft_trl.py, train_grpo_trl.py or merge_adapters_safe.py first."
        raise fail("model_missing", f"there is no saved model{f' in {model}' if model else ''}", hint, ["model"])
    policy = ModelPolicy(str(found.path))
    rows = []
    for place in reports.situations("test", samples, _tasks(found.path)):
        begin = time.perf_counter()
        (row,) = reports.answers(policy, [place])
        took = (time.perf_counter() - begin) * 1000
        seen = messages(at(place.task_id, place.split, place.index, []).observation)
        rows.append({**row, "prompt_sha": digest_json(seen), "latency_ms": took})
    report = _report(found.kind, found.path, found.sha256, rows)
    writable_dir(REPORT.parent)
    atomic_write_json(REPORT, report)
    return report


def _tasks(artifact: Path) -> list[str]:
    from polyguard.env.tasks import TASKS

    return list(TASKS)


def _report(kind: str, path: Path, sha256: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    times = sorted(row["latency_ms"] for row in rows)
    manifest = active()
    return {
        "schema_version": SCHEMA,
        "disclaimer": DISCLAIMER,
        "status": "ok",
        "model_source": kind,
        "artifact_path": path.as_posix(),
        "artifact_sha256": sha256,
        "samples": len(rows),
        "valid_json_rate": _share(rows, "validity"),
        "candidate_valid_rate": sum(row["listed"] for row in rows) / len(rows),
        "legality_rate": _share(rows, "legality"),
        "avg_env_reward": _share(rows, "reward"),
        "latency_ms": {"mean": math.fsum(times) / len(times), "p95": times[math.ceil(0.95 * len(times)) - 1]},
        "rows": rows,
        "active_manifest_match": None if manifest is None else manifest.get("activated_sha256") == sha256,
    }


def _share(rows: list[dict[str, Any]], name: str) -> float:
    return math.fsum(row[name] for row in rows) / len(rows)
