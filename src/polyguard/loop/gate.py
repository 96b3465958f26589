"""The acceptance gate: named checks of evidence, each with what was found and what mends it. Strings prove nothing here.

Reads the reports of the current folder, hashes the artifacts that they name, and computes again what can be computed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError
from bashgym.core.files import read_object
from polyguard import DISCLAIMER

LINKS = "POLYGUARD_ENFORCE_SUBMISSION_LINKS"
ACCEPTED = ("trl_unsloth", "trl_transformers")
MIN_EPISODES, MAX_EXPLOIT, MIN_LEGALITY, MIN_GREEDY = 100, 0.05, 0.9, 0.95
SCHEMA = "polyguard.acceptance_gate.v1"
Finding = tuple[bool, str]


class Check(msgspec.Struct, frozen=True):
    """One thing that has to hold."""

    name: str
    passed: bool
    evidence: str
    remediation: str


class Root:
    """The folder that is judged."""

    def __init__(self, root: Path) -> None:
        self.path = root

    def report(self, name: str) -> dict[str, Any]:
        """A report; empty if it is not there or cannot be read."""
        try:
            found: dict[str, Any] = read_object(self.path / "outputs/reports" / name)
        except BashGymError:
            return {}
        return found


def run_checks(root: Path, only: tuple[str, ...] = ()) -> list[Check]:
    """Every check of the folder, in order."""
    place, found = Root(root), []
    for name, (check, mend) in CHECKS.items():
        if only and name not in only:
            continue
        try:
            passed, evidence = check(place)
        except KeyError as error:
            passed, evidence = False, f"its report is not there, or does not say {error}"
        except (TypeError, ValueError, OSError, BashGymError) as error:
            passed, evidence = False, f"it cannot be judged: {type(error).__name__}: {str(error)[:160]}"
        found.append(Check(name, passed, evidence, "" if passed else mend))
    return found


def document(root: Path, checks: list[Check]) -> dict[str, Any]:
    """`docs/results/acceptance_gate.json`."""
    weights = (
        root / str(Root(root).report("grpo_trl_run.json").get("artifact_path") or "none") / "adapter_model.safetensors"
    )
    return {
        "schema_version": SCHEMA,
        "disclaimer": DISCLAIMER,
        "passed": all(check.passed for check in checks),
        "artifact_sha256": digest_file(weights) if weights.is_file() else None,
        "checks": msgspec.to_builtins(checks),
    }


def _backend(name: str) -> Callable[[Root], Finding]:
    def check(root: Root) -> Finding:
        report = root.report(name)
        good = report.get("backend") in ACCEPTED and report.get("status") == "ok" and bool(report.get("artifact_path"))
        return good, f"{name}: backend {report.get('backend')}, status {report.get('status')}"

    return check


def _artifacts(root: Root) -> Finding:
    seen = 0
    for name in ("sft_trl_run.json", "grpo_trl_run.json"):
        report = root.report(name)
        for file, digest in dict(report["artifact_sha256"]).items():
            path = root.path / report["artifact_path"] / file
            if not path.is_file() or digest_file(path) != digest:
                return False, f"{report['artifact_path']}/{file} is not what {name} names"
            seen += file.endswith(".safetensors")
    return seen >= 2, f"{seen} weight files are as their reports say"


def _moved(root: Root) -> Finding:
    reports = [root.report(f"{stage}_trl_run.json") for stage in ("sft", "grpo")]
    norms = [float(report["weight_delta_norm"]) for report in reports]
    steps = [int(report["steps_completed"]) for report in reports]
    good = all(norm > 0 for norm in norms) and min(steps) > 0
    return good, f"norms {norms[0]:.3g} and {norms[1]:.3g} after {steps[0]} and {steps[1]} steps"


def _behaviour(root: Root) -> Finding:
    report = root.report("grpo_trl_run.json")
    exploit, legal = float(report["exploit_rate"]), float(report["legality_rate"])
    return exploit <= MAX_EXPLOIT and legal >= MIN_LEGALITY, f"exploits {exploit:.1%}, legal {legal:.1%}"


def _postsave(root: Root) -> Finding:
    report = root.report("postsave_inference.json")
    weights = [
        root.path / report["artifact_path"] / name for name in ("adapter_model.safetensors", "model.safetensors")
    ]
    same = any(path.is_file() and digest_file(path) == report["artifact_sha256"] for path in weights)
    good = report["model_source"] not in (None, "fallback_policy") and same and len(report["rows"]) == report["samples"]
    return (
        good,
        f"{report['model_source']}, {report['samples']} situations, weights {'as named' if same else 'changed'}",
    )


def _improvement(root: Root) -> Finding:
    report = root.report("improvement_report.json")
    n, low = int(report["n"]), float(report["metrics"]["avg_reward"]["ci_low"])
    good = report["improved"] is True and report["eval_split"] == "test" and n >= MIN_EPISODES and low > 0
    return good, f"improved {report['improved']}, n {n} on {report['eval_split']}, interval from {low:+.3f}"


def _corpus(root: Root) -> Finding:
    report = root.report("training_corpus_report.json")
    for name, digest in dict(report["sha256"]).items():
        if digest_file(root.path / name) != digest:
            return False, f"{name} is not what the report names"
    return report["holdout_overlap"] == 0, f"{report['holdout_overlap']} rows of held-out templates"


def _merge(root: Root) -> Finding:
    report = root.report("merge_report.json")
    for name, digest in dict(report["files"]).items():
        if digest_file(root.path / report["output_dir"] / name) != digest:
            return False, f"{report['output_dir']}/{name} is not what the report names"
    return float(report["greedy_agreement"]) >= MIN_GREEDY, f"same token at {report['greedy_agreement']:.1%}"


def _knowledge(_: Root) -> Finding:
    from polyguard.knowledge.tables import read_tables
    from polyguard.knowledge.validate import faults

    found = faults(read_tables())
    return not found, found[0] if found else "the tables hold together"


def _deterministic(_: Root) -> Finding:
    from polyguard.env import trace
    from polyguard.env.engine import Engine
    from polyguard.env.tasks import TASKS
    from polyguard.env.types import Action

    def played(task: str) -> str:
        engine = Engine()
        engine.reset(task, split="test", index=0)
        while not engine.done:
            seen = engine.observation.candidates
            engine.step(Action(seen[engine.steps * 3 % len(seen)].candidate_id))
        return trace.digest(engine.trace)

    different = [task for task in TASKS if played(task) != played(task)]
    return (
        not different,
        f"traces differ in {different}" if different else f"{len(TASKS)} episodes give the same bytes twice",
    )


def _openenv(_: Root) -> Finding:
    from importlib import resources

    import yaml

    raw = yaml.safe_load(resources.files("polyguard").joinpath("openenv.yaml").read_text(encoding="utf-8"))
    block = raw.get("validation") or {}
    low, high = block["reward"]["range"]
    good = (low, high) == (0.001, 0.999) and block["reward"]["oracle_tolerance"] <= 0.1 and raw["spec_version"] == 1
    return good, "the manifest has its validation block; `openenv validate` judges it"


def _relative(root: Root) -> Finding:
    found = [
        path.name
        for path in sorted((root.path / "outputs/reports").rglob("*.json"))
        if re.search(rb'"(/(home|root|tmp|Users|work)/|[A-Z]:\\\\)', path.read_bytes())
    ]
    return not found, f"absolute paths in {', '.join(found)}" if found else "no absolute path in a report"


def _no_fallback(root: Root) -> Finding:
    found = [
        path.name
        for path in sorted((root.path / "outputs/reports").rglob("*.json"))
        if b'"fallback_' in path.read_bytes()
    ]
    return not found, f"fallback in {', '.join(found)}" if found else "no fallback in a report"


def _links(root: Root) -> Finding:
    if os.environ.get(LINKS, "").lower() != "true":
        return True, f"not asked for ({LINKS})"
    readme = root.path / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    missing = [what for what, pattern in _WANTED.items() if not re.search(pattern, text)]
    return not missing, f"README.md has no link to {', '.join(missing)}" if missing else "all links are there"


_WANTED = {
    "a Space": r"https://huggingface\.co/spaces/[\w.-]+/[\w.-]+",
    "a model": r"https://huggingface\.co/(?!spaces/|datasets/|docs/)[\w.-]+/[\w.-]+",
}
CHECKS: dict[str, tuple[Callable[[Root], Finding], str]] = {
    "sft_report": (_backend("sft_trl_run.json"), "scripts/train_sft_trl.py"),
    "grpo_report": (_backend("grpo_trl_run.json"), "scripts/train_grpo_trl.py"),
    "artifacts": (_artifacts, "train again: an artifact was changed or removed"),
    "weights_moved": (_moved, "train for more steps"),
    "behaviour": (_behaviour, "train longer, and read the sample generations in outputs/reports/grpo_trl_run.json"),
    "postsave": (_postsave, "scripts/test_inference_postsave.py"),
    "merge": (_merge, "scripts/merge_adapters_safe.py --force"),
    "improvement": (_improvement, "scripts/evaluate_compare_runs.py on at least 100 test episodes"),
    "corpus": (_corpus, "scripts/build_training_corpus.py"),
    "knowledge": (_knowledge, "scripts/validate_knowledge.py"),
    "determinism": (_deterministic, "an episode depends on something besides its seed"),
    "openenv": (_openenv, "openenv validate src/polyguard --level static"),
    "relative_paths": (_relative, "write the reports again, from this folder"),
    "no_fallback": (_no_fallback, "remove what a fallback made and train with TRL"),
    "submission_links": (_links, "name the Space and the model in README.md"),
}
"""Name -> (check, what mends it)."""
