"""The environment hold-out gate: whole groups of environments held out, judged on what the model was not trained on.

A model ships only with an observed pass@1 at the threshold, an interval above zero, no contamination, and enough observed:
two environments of two groups at the least, since one group says nothing about others.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from bashgym.core.canonical import digest_json
from bashgym.core.errors import fail
from bashgym.envs.spec import EnvironmentSpec
from bashgym.evals import stats
from bashgym.evals.compare import MAX_MISSING
from bashgym.evals.contamination import contaminated
from bashgym.evals.passk import passk_report
from bashgym.evals.wire import Attempt, check_attempts, environments_of

SCHEMA = "bashgym.environment_holdout.v1"
SPLITS = ("domain", "source", "source_uri", "repo", "generator_seed", "task_family")
UNKNOWN = "_unknown"
MIN_HELD_OUT = 2


class HoldoutRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /api/eval/environments/holdout-gate."""

    model_id: str
    environments: list[dict[str, Any]]
    attempts: list[Attempt]
    k_values: tuple[int, ...] = (1,)
    split_by: str = "task_family"
    holdout_fraction: float = 0.2
    seed: int = 0
    min_pass_at_1: float = 0.05
    max_timeout_rate: float = 0.25
    max_tamper_rate: float = 0.0
    require_no_contamination: bool = True
    train_environment_ids: list[str] = []
    train_hashes: list[str] = []
    """Environment hashes (as `environment_hash` makes them) that the model was trained on."""
    train_dataset_path: str | None = None
    """Training rows; instructions of held-out environments must not be in them (see `contamination`)."""
    record_to_registry: bool = True


def holdout_gate(request: HoldoutRequest) -> dict[str, Any]:
    """The result `bashgym.environment_holdout.v1`. `attempts_invalid`, `environment_invalid`, `invalid_field`."""
    _check(request)
    environments = environments_of(request.environments)
    check_attempts(environments, request.attempts, request.k_values)
    split = _split(environments, request)
    held = [spec for spec in environments if spec.id in set(split["holdout_ids"])]
    report = passk_report(
        held,
        [a for a in request.attempts if a.environment_id in set(split["holdout_ids"])],
        sorted({1, *request.k_values}),
    )
    contamination = _contamination(environments, held, split, request)
    return {
        "schema_version": SCHEMA,
        "model_id": request.model_id,
        "split": split,
        "contamination": contamination,
        "report": report,
        "gate": _gate(request, split, report, contamination),
    }


def environment_hash(spec: EnvironmentSpec) -> str:
    """16 hex digits of what makes the task: instruction, verifier, files, fixtures, build and limits."""
    whole = spec.to_dict()
    names = ("instruction", "verifier", "files", "fixtures", "build", "rollout")
    return digest_json({name: whole[name] for name in names})[:16]


def group_key(spec: EnvironmentSpec, split_by: str) -> str:
    """The group that an environment is split by: a field of its own, or of its metadata."""
    if split_by in ("domain", "source", "source_uri"):
        return str(getattr(spec, split_by) or UNKNOWN)
    value = spec.metadata.get(split_by)
    return UNKNOWN if value is None or value == "" else str(value)


def _check(request: HoldoutRequest) -> None:
    if request.split_by not in SPLITS:
        raise fail(
            "invalid_field", f"split_by is {request.split_by!r}, not one of {', '.join(SPLITS)}", "", ["split_by"]
        )
    bounds = {"min_pass_at_1": (0, 1), "max_timeout_rate": (0, 1), "max_tamper_rate": (0, 1)}
    for name, (low, high) in bounds.items():
        if not low <= getattr(request, name) <= high:
            raise fail("invalid_field", f"{name} must lie in {low} to {high}", fields=[name])
    if not 0 < request.holdout_fraction < 1:
        raise fail("invalid_field", "holdout_fraction must lie between 0 and 1", fields=["holdout_fraction"])


def _split(environments: Sequence[EnvironmentSpec], request: HoldoutRequest) -> dict[str, Any]:
    keys = {spec.id: group_key(spec, request.split_by) for spec in environments}
    groups = sorted(set(keys.values()))
    if groups == [UNKNOWN]:
        message = f"no environment has a {request.split_by}: there are no groups to hold out"
        raise fail("invalid_field", message, "Split by another field.", ["split_by"])
    if len(groups) < 2:
        raise fail(
            "invalid_field",
            f"all environments share one {request.split_by}: nothing is left to train on",
            "",
            ["split_by"],
        )
    shuffled = list(groups)
    random.Random(request.seed).shuffle(shuffled)  # noqa: S311 - a split, not a secret
    count = min(len(groups) - 1, max(1, round(len(groups) * request.holdout_fraction)))
    chosen = set(shuffled[:count])
    held = [spec.id for spec in environments if keys[spec.id] in chosen]
    train = [spec.id for spec in environments if keys[spec.id] not in chosen]
    return {
        "split_by": request.split_by,
        "fraction": request.holdout_fraction,
        "seed": request.seed,
        "n_train": len(train),
        "n_holdout": len(held),
        "train_ids": train,
        "holdout_ids": held,
        "train_groups": sorted(set(groups) - chosen),
        "holdout_groups": sorted(chosen),
        "hashes": {spec.id: environment_hash(spec) for spec in environments},
    }


def _contamination(
    environments: Sequence[EnvironmentSpec],
    held: Sequence[EnvironmentSpec],
    split: dict[str, Any],
    request: HoldoutRequest,
) -> dict[str, Any]:
    """Held-out environments that the training half, or the model's own training data, holds."""
    hashes, train = split["hashes"], set(split["train_ids"])
    seen = {hashes[spec.id] for spec in environments if spec.id in train} | set(request.train_hashes)
    ids = set(request.train_environment_ids)
    found = {spec.id: "hash" for spec in held if hashes[spec.id] in seen}
    found |= {spec.id: "environment_id" for spec in held if spec.id in ids}
    known = bool(request.train_hashes or ids)
    if request.train_dataset_path:
        path = Path(request.train_dataset_path).expanduser()
        if not path.is_file():
            raise fail("dataset_missing", f"{path} does not exist", fields=["train_dataset_path"])
        hits = contaminated({spec.id: spec.instruction for spec in held}, path)
        found |= {name: f"{hit['kind']} (row {hit['row']})" for name, hit in hits.items() if name not in found}
        known = True
    return {"contaminated": found, "n": len(found), "train_data_known": known}


def _gate(
    request: HoldoutRequest, split: dict[str, Any], report: dict[str, Any], contamination: dict[str, Any]
) -> dict[str, Any]:
    rows = [row for row in report["per_environment"] if row["n"]]
    summary, rates = report["attempt_summary"], [row["mean_success"] for row in rows]
    observed = {
        "pass_at_1": fmean(rates) if rates else None,
        "pass_at_1_ci_low": stats.wilson(sum(rates), len(rates)).low if rates else 0.0,
        "n_environments": len(rows),
        "n_groups": len(split["holdout_groups"]),
        "timeout_rate": summary["timeout_rate"],
        "tamper_rate": summary["tamper_rate"],
        "missing_rate": report["missing"]["rate"],
        "contaminated": contamination["n"],
    }
    rate = observed["pass_at_1"] or 0.0
    fraction = f"{MIN_HELD_OUT} are needed: raise holdout_fraction"
    checks = (
        (len(rows) < MIN_HELD_OUT, f"{len(rows)} held-out environments were observed; {MIN_HELD_OUT} are needed"),
        (observed["n_groups"] < MIN_HELD_OUT, f"{observed['n_groups']} group of environments is held out; {fraction}"),
        (observed["missing_rate"] > MAX_MISSING, f"{observed['missing_rate']:.1%} of the attempts were not observed"),
        (rate < request.min_pass_at_1, f"pass@1 is {rate:.4g}, below {request.min_pass_at_1:g}"),
        (not observed["pass_at_1_ci_low"] > 0, "the interval of pass@1 does not exclude zero"),
        (
            observed["timeout_rate"] > request.max_timeout_rate,
            f"{observed['timeout_rate']:.1%} of the attempts timed out",
        ),
        (observed["tamper_rate"] > request.max_tamper_rate, f"{observed['tamper_rate']:.1%} of the attempts tampered"),
        (
            request.require_no_contamination and contamination["n"] > 0,
            f"{contamination['n']} held-out environments are in the training data",
        ),
    )
    reasons = [reason for failed, reason in checks if failed]
    names = ("min_pass_at_1", "max_timeout_rate", "max_tamper_rate", "require_no_contamination")
    thresholds = {name: getattr(request, name) for name in names}
    warnings = [] if contamination["train_data_known"] else ["train_data_unknown: only the two halves were compared"]
    return {
        "ship": not reasons,
        "reasons": reasons,
        "thresholds": thresholds,
        "observed": observed,
        "warnings": warnings,
    }
