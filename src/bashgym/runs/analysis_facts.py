"""What one analysis knows: the run's own files, its metrics, and the evidence that was handed in. Judges nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import read_object
from bashgym.evidence.binding import read_or_empty
from bashgym.evidence.inspection import part
from bashgym.methods import registry
from bashgym.methods.spec import Method
from bashgym.runs.analysis_series import Metrics, read_metrics
from bashgym.store.jsonl import iter_jsonl

_RL = frozenset({"grpo", "rlvr", "dppo"})
_SMOKE_REPORT = "backend_smoke_readiness.json"


@dataclass(frozen=True)
class Finding:
    """One observation about a run."""

    severity: str
    """blocker, warning, missing or info."""
    code: str
    message: str
    next: str
    evidence: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The wire form."""
        return {
            "severity": self.severity,
            "code": self.code,
            "message": self.message,
            "evidence": self.evidence,
            "next": self.next,
        }


@dataclass
class Facts:
    """Everything that the rules may look at."""

    run_id: str | None
    run_dir: Path | None
    metrics: Metrics
    metrics_path: Path | None
    state: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    preflight: dict[str, Any] = field(default_factory=dict)
    release: dict[str, Any] | None = None
    smoke: dict[str, Any] | None = None
    replay: dict[str, Any] | None = None
    baseline: Facts | None = None

    @property
    def strategy(self) -> str | None:
        """From the run's record, never from a model's name."""
        value = self.state.get("strategy") or self.request.get("strategy")
        return str(value) if value else None

    @property
    def method(self) -> Method | None:
        """The registry's entry of the strategy."""
        return registry.METHODS.get(registry.ALIASES.get(self.strategy or "", self.strategy or ""))

    @property
    def loss_falls(self) -> bool:
        """Whether a falling loss means learning. Policy gradients have losses around zero."""
        return self.strategy not in _RL if self.strategy else self.metrics.get("reward") is None

    @property
    def heldout(self) -> bool:
        """Whether there is a real measurement on held-out tasks."""
        measured = self.release is not None and not self.release.get("simulated")
        return measured or any(self.metrics.get(name) for name in ("pass_at_1", "pass_at_k"))


def of_run(run_id: str | None, run_dir: Path, metrics_path: Path | None = None) -> Facts:
    """The facts of a run directory. `run_not_found` if there is no run in it."""
    state, request = read_or_empty(run_dir / "run_state.json"), read_or_empty(run_dir / "request.json")
    if not state and not request:
        raise fail(
            "run_not_found", f"no run at {run_dir}", hint="`bashgym training list` shows the runs.", fields=["run_id"]
        )
    own = metrics_path or run_dir / "metrics.jsonl"
    # A run without metrics is a finding; a file that was named and is not there is an error.
    metrics = read_metrics(own) if metrics_path or own.exists() else Metrics()
    return Facts(
        run_id=run_id or str(state.get("run_id") or request.get("run_id") or run_dir.name),
        run_dir=run_dir,
        metrics=metrics,
        metrics_path=own if own.exists() else None,
        state=state,
        request=request,
        manifest=read_or_empty(run_dir / "manifest.json"),
        preflight=read_or_empty(run_dir / "preflight.json"),
    )


def read_release(path: Path) -> dict[str, Any]:
    """A release evidence file as it stands; its gate is re-computed by the RunCard, not here."""
    document = read_object(path)
    document["_path"] = str(path)
    return document


def read_smoke(path: Path) -> dict[str, Any]:
    """Readiness flags of a smoke bundle: its folder or its report."""
    document = read_object(path / _SMOKE_REPORT if path.is_dir() else path)
    flags = ("contract_ready", "optimizer_ready", "backend_launch_ready")
    level = part(document, "verdict").get("level")
    return {"path": str(path), "level": level, **{flag: document.get(flag) is True for flag in flags}}


def read_replay(path: Path) -> dict[str, Any]:
    """Counts of a DPPO replay, JSON or JSONL, in bounded memory for JSONL."""
    if not path.is_file():
        raise fail("file_missing", f"{path} does not exist", fields=["replay"])
    counts = {"records": 0, "train_logprobs_ready": 0, "rwml_transitions": 0, "echo_observations": 0}
    for record in _replay_records(path):
        counts["records"] += 1
        counts["train_logprobs_ready"] += part(record, "optimizer").get("train_logprobs_ready") is True
        world = part(record, "world_model")
        transitions, segments = world.get("rwml_transitions"), part(world, "echo").get("segments")
        counts["rwml_transitions"] += len(transitions) if isinstance(transitions, list) else 0
        segments = segments if isinstance(segments, list) else []
        counts["echo_observations"] += sum(isinstance(s, dict) and s.get("role") == "observation" for s in segments)
    return {"path": str(path), **counts, "world_model": bool(counts["rwml_transitions"] or counts["echo_observations"])}


def _replay_records(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix == ".jsonl":
        yield from iter_jsonl(path)
        return
    try:
        records = read_object(path).get("records")
    except BashGymError as error:
        raise fail("file_unreadable", f"{path} is no replay: {error.message}", fields=["replay"]) from error
    yield from (record for record in (records if isinstance(records, list) else []) if isinstance(record, dict))
