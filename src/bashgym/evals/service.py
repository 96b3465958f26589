"""`EvalService`: an evaluation from request to report, resumable at every point.

The stages are generate (one scoring process for both sides), judge (sandboxes), compare, report, attach. Each leaves
files that the next attempt with the same id and the same request takes up.
"""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bashgym.core.canonical import digest_file, digest_json
from bashgym.core.clock import utc_now
from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import atomic_write_json, read_object, writable_dir
from bashgym.core.ids import check_identifier, new_run_id
from bashgym.core.settings import Settings
from bashgym.evals import attach, scoring, suites
from bashgym.evals.compare import compare, pass_at, pass_rate
from bashgym.evals.files import write_scores
from bashgym.evals.folder import EvalFolder, EvalStatus
from bashgym.evals.suites import Score, Suite
from bashgym.inference.job import Decoding, JobModel, Prompt

if TYPE_CHECKING:
    from bashgym.models.catalog import ModelRef

SCHEMA = "bashgym.eval_report.v1"
SMOKE_BELOW = 20
"""Fewer items show that the path works, not how good a model is."""
_GENERATING = 0.6
"""Share of the progress bar until all answers are there."""
_STATE_INTERVAL_S = 0.5

Progress = Callable[[float, str], None]
"""Called with (share done in 0..1, what to show)."""


class Plan(msgspec.Struct, frozen=True):
    """A checked request: everything that decides the report."""

    suite: Suite
    models: dict[str, Any]
    """`candidate` and, if there is one, `baseline` -> ModelRef."""
    decoding: Decoding
    run_id: str | None
    n_resamples: int
    limit: int | None

    def request(self) -> dict[str, Any]:
        """request.json with the digest of what must not change between attempts."""
        decided = {
            "suite": self.suite.facts(),
            "models": {side: ref.facts() for side, ref in self.models.items()},
            "decoding": _decoding_facts(self.decoding),
            "attempts": self.decoding.attempts,
            "n_resamples": self.n_resamples,
            "run_id": self.run_id,
            "limit": self.limit,
        }
        same = {**decided, "models": {side: ref.digest for side, ref in self.models.items()}}
        return {**decided, "request_digest": digest_json(same), "created_at": utc_now()}


class EvalService:
    """Runs evaluations and reads them back. `resolve` gives a model by name."""

    def __init__(self, settings: Settings, resolve: Callable[[str], ModelRef]) -> None:
        self._settings, self._resolve = settings, resolve
        self.root = settings.models_dir.parent / "evals"

    def run(
        self,
        suite: str = "terminal",
        model: str = "",
        baseline: str | None = None,
        *,
        split: str = "heldout_values",
        seed: int = 0,
        per_family: int = suites.DEFAULT_PER_FAMILY,
        limit: int | None = None,
        attempts: int = 1,
        temperature: float = 0.0,
        top_p: float = 1.0,
        max_new_tokens: int = 64,
        eval_id: str | None = None,
        run_id: str | None = None,
        progress: Progress | None = None,
        n_resamples: int = 10_000,
    ) -> dict[str, Any]:
        """The report (`bashgym.eval_report.v1`), also at `report_path`. Without a baseline its comparison is null.

        With the `eval_id` of an unfinished evaluation and the same request it goes on; with that of a finished one it
        returns the report. Errors are typed; all but a refusal at the start leave a resumable evaluation.
        """
        plan = self._plan(
            suite,
            model,
            baseline,
            split=split,
            seed=seed,
            per_family=per_family,
            limit=limit,
            attempts=attempts,
            temperature=temperature,
            top_p=top_p,
            max_new_tokens=max_new_tokens,
            run_id=run_id,
            n_resamples=n_resamples,
        )
        folder = EvalFolder(writable_dir(self.root) / check_identifier(eval_id or _new_id(), "eval_id"))
        folder.path.mkdir(exist_ok=True)
        with folder.held():
            folder.begin(plan.request())
            return _Evaluation(folder, plan, self._settings, progress).finish()

    def check(self, suite: str, model: str, baseline: str | None, *, eval_id: str | None = None, **how: Any) -> None:
        """All that `run` would refuse at the start, starting nothing. The same arguments but `progress`."""
        check_identifier(eval_id or "eval", "eval_id")
        self._plan(suite, model, baseline, **{"n_resamples": 10_000, **how})

    def _plan(self, suite: str, model: str, baseline: str | None, **how: Any) -> Plan:
        from bashgym.envs import sandbox

        # Both sides get this seed: it is the suite's, so that no recipe can choose a lucky one.
        decoding = Decoding(**{n: how[n] for n in ("max_new_tokens", "temperature", "top_p", "seed", "attempts")})
        _check_decoding(decoding, how["n_resamples"])
        chosen = suites.load(suite, **{name: how[name] for name in ("split", "seed", "per_family", "limit")})
        models = self._models(chosen, model, baseline)
        owner = attach.run_of(models["candidate"], how["run_id"], self._settings)
        sandbox.require()
        return Plan(chosen, models, decoding, owner, how["n_resamples"], how["limit"])

    def get(self, eval_id: str) -> dict[str, Any]:
        """The report of a finished evaluation; else its state with the request. `eval_not_found`."""
        folder = self._folder(eval_id)
        request = folder.request()
        if folder.report.is_file():
            return read_object(folder.report)
        return {**folder.state(), "request": request}

    def list(self) -> list[dict[str, Any]]:
        """One row per evaluation, the newest first."""
        rows = []
        for path in self.root.glob("*/request.json"):
            try:
                rows.append(_row(EvalFolder(path.parent)))
            except BashGymError as error:
                print(f"passed over {path.parent.name}: {error.message}", file=sys.stderr)  # noqa: T201  one unreadable folder must not hide the rest
        return sorted(rows, key=lambda row: str(row["created_at"]), reverse=True)

    def report_path(self, eval_id: str) -> Path:
        """report.json of a finished evaluation; `eval_not_found`, or `eval_incomplete` if it is not finished."""
        folder = self._folder(eval_id)
        folder.request()
        if not folder.report.is_file():
            raise fail("eval_incomplete", f"{eval_id} is not finished", "Run it again with --eval-id.")
        return folder.report

    def _folder(self, eval_id: str) -> EvalFolder:
        return EvalFolder(self.root / check_identifier(eval_id, "eval_id"))

    def _models(self, suite: Suite, model: str, baseline: str | None) -> dict[str, ModelRef]:
        if not model:
            raise fail("missing_field", "no model to evaluate", "Give --model.", ["model"])
        if baseline and len(suite.clusters()) < 2:
            raise fail(
                "too_few_clusters", "a comparison needs items of at least two families", "Raise --limit.", ["limit"]
            )
        return {"candidate": self._resolve(model)} | ({"baseline": self._resolve(baseline)} if baseline else {})


class _Evaluation:
    """One attempt at finishing one evaluation."""

    def __init__(self, folder: EvalFolder, plan: Plan, settings: Settings, progress: Progress | None) -> None:
        self._folder, self._plan, self._settings = folder, plan, settings
        self._progress, self._begin = progress or (lambda *_: None), time.monotonic()
        self._written, self._share, self._text = 0.0, 0.0, ""

    def finish(self) -> dict[str, Any]:
        """The report. Records in state.json how the attempt ended."""
        if self._folder.report.is_file():
            return read_object(self._folder.report)
        try:
            report = self._evaluate()
        except KeyboardInterrupt:
            self._folder.write_state(EvalStatus.INTERRUPTED, self._share, self._text)
            raise
        except BashGymError as error:
            self._folder.write_state(EvalStatus.FAILED, self._share, self._text, error.detail())
            raise
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise fail(
                "disk_full", f"the disk is full: {error}", "Free space, then run it again with --eval-id."
            ) from error
        self._folder.write_state(EvalStatus.COMPLETED, 1.0, "")
        return report

    def _evaluate(self) -> dict[str, Any]:
        self._show(0.0, "loading the models", force=True)
        sides = list(self._plan.models)
        prompts = [Prompt(item_id=item.item_id, messages=list(item.messages)) for item in self._plan.suite.items]
        for side in sides:
            ref = self._plan.models[side]
            source = JobModel(str(ref.path), str(ref.adapter_path) if ref.adapter_path else None)
            batch_size, threads = _engine_sizes(ref.n_parameters)
            decoding = msgspec.structs.replace(self._plan.decoding, batch_size=batch_size)
            scoring.prepare(self._folder.job(side), source, prompts, decoding, threads=threads)
        scoring.run([self._folder.job(side) for side in sides], self._settings, self._generating)
        scores = {side: self._judge(i, side, prompts) for i, side in enumerate(sides)}
        report = self._report(scores)
        atomic_write_json(self._folder.report, report)
        if self._plan.run_id:
            attach.attach(report, self._folder.report, self._settings.models_dir / self._plan.run_id)
        return report

    def _generating(self, job: Path, progress: dict[str, Any]) -> None:
        sides = list(self._plan.models)
        done, total = progress["done"], progress["total"]
        share = (sides.index(job.name) + done / total) / len(sides)
        self._show(
            share * _GENERATING, f"{job.name} answers {done}/{total}, {progress['tokens_per_second']:.0f} tokens/s"
        )

    def _judge(self, index: int, side: str, prompts: list[Prompt]) -> list[Score]:
        completions = scoring.results(self._folder.job(side), prompts, self._plan.decoding.attempts)
        known = self._folder.judged(side, completions)
        left = [done for done in completions if done.key not in known]

        def keep(part: list[Score]) -> None:
            self._folder.add_judged(side, part)
            known.update((score.key, score) for score in part)
            share = (index + len(known) / len(completions)) / len(self._plan.models)
            self._show(
                _GENERATING + (1 - _GENERATING) * share, f"{side} answers executed {len(known)}/{len(completions)}"
            )

        suites.score_items(self._plan.suite, left, on_scored=keep)
        scores = [known[done.key] for done in completions]
        write_scores(self._folder.scores(side), scores)
        return scores

    def _report(self, scores: dict[str, list[Score]]) -> dict[str, Any]:
        plan = self._plan
        comparison, beside = None, _one_sided(scores["candidate"])
        if "baseline" in scores:
            comparison = compare(
                scores["candidate"],
                scores["baseline"],
                n_resamples=plan.n_resamples,
                seed=plan.suite.seed,
                looks=_looks(self._folder, plan),
            )
            beside = {key: comparison.pop(key) for key in ("missing", "by_cluster", "flips")}
        return {
            "schema_version": SCHEMA,
            "eval_id": self._folder.eval_id,
            "created_at": utc_now(),
            "suite": plan.suite.facts(),
            "candidate": self._model_facts("candidate"),
            "baseline": self._model_facts("baseline"),
            "decoding": _decoding_facts(plan.decoding),
            "attempts": plan.decoding.attempts,
            "seeds": [plan.decoding.seed],
            "n_items": len(plan.suite.items),
            "n_scored": comparison["n"] if comparison else pass_rate(scores["candidate"])["n"],
            "pass_rate": {side: pass_rate(found) for side, found in scores.items()},
            "pass_at_k": {side: pass_at(found) for side, found in scores.items()},
            "comparison": comparison,
            **beside,
            "scores": {side: _file_facts(self._folder.scores(side)) for side in scores},
            "simulated": False,
            "smoke": plan.limit is not None or len(plan.suite.items) < SMOKE_BELOW,
            "duration_s": round(time.monotonic() - self._begin, 3),
        }

    def _model_facts(self, side: str) -> dict[str, Any] | None:
        ref = self._plan.models.get(side)
        if ref is None:
            return None
        run_id = self._plan.run_id if side == "candidate" else attach.run_of(ref, None, self._settings)
        return {"label": side, "model": ref.name, **ref.facts(), "run_id": run_id}

    def _show(self, share: float, text: str, force: bool = False) -> None:
        self._share, self._text = share, text
        self._progress(share, text)
        if force or time.monotonic() - self._written >= _STATE_INTERVAL_S:
            self._written = time.monotonic()
            self._folder.write_state(EvalStatus.RUNNING, share, text)


def _check_decoding(decoding: Decoding, n_resamples: int) -> None:
    checks = (
        ("attempts", 1 <= decoding.attempts <= 1000, "must lie in 1 to 1000"),
        (
            "attempts",
            decoding.attempts == 1 or decoding.temperature > 0,
            "greedy attempts are all alike: give a temperature",
        ),
        ("temperature", 0 <= decoding.temperature <= 10, "must lie in 0 to 10"),
        ("top_p", 0 < decoding.top_p <= 1, "must lie above 0 and be at most 1"),
        ("max_new_tokens", 1 <= decoding.max_new_tokens <= 65_536, "must lie in 1 to 65536"),
        ("n_resamples", 1_000 <= n_resamples <= 1_000_000, "must lie in 1000 to 1000000"),
    )
    for name, holds, reason in checks:
        if not holds:
            raise fail("invalid_field", f"{name}: {reason}", fields=[name])


def _new_id() -> str:
    return new_run_id().replace("run_", "eval_", 1)


def _engine_sizes(n_parameters: int) -> tuple[int, int | None]:
    """(batch size, CPU threads or None for torch's choice). Small models gain from wide batches, large ones run out
    of memory. In a small model threads wait for each other longer than they work: on a busy machine, twenty times."""
    if n_parameters < 20_000_000:
        return 128, 1
    return (32 if n_parameters < 1_000_000_000 else 8), None


def _decoding_facts(decoding: Decoding) -> dict[str, Any]:
    """What of the decoding decides the answers; the batch size is the machine's affair."""
    facts: dict[str, Any] = msgspec.structs.asdict(decoding)
    del facts["batch_size"], facts["attempts"]
    return {"engine": "transformers", **facts}


def _one_sided(scores: list[Score]) -> dict[str, Any]:
    missing = list(dict.fromkeys(score.item_id for score in scores if score.passed is None))
    rows = []
    for cluster in dict.fromkeys(score.cluster for score in scores):
        rate = pass_rate([score for score in scores if score.cluster == cluster])
        rows.append({"cluster": cluster, "n": rate["n"], "candidate": rate["value"], "baseline": None})
    return {"missing": {"candidate": missing, "baseline": []}, "by_cluster": rows, "flips": {"gained": [], "lost": []}}


def _file_facts(path: Path) -> dict[str, str]:
    return {"path": str(path), "sha256": digest_file(path)}


def _looks(folder: EvalFolder, plan: Plan) -> int:
    """Candidates, each way to decode one counted, that met this baseline on these very items so far, with this one."""
    baseline = plan.models["baseline"].digest
    seen = {digest_json([plan.models["candidate"].digest, _decoding_facts(plan.decoding), plan.decoding.attempts])}
    for path in folder.path.parent.glob("*/report.json"):
        try:
            report = read_object(path)
            same = (_digest(report, "suite"), _digest(report, "baseline")) == (plan.suite.digest, baseline)
        except BashGymError:
            continue
        if same:
            seen.add(digest_json([_digest(report, "candidate"), report.get("decoding"), report.get("attempts")]))
    return len(seen)


def _digest(report: dict[str, Any], name: str) -> Any:
    part = report.get(name)
    return part.get("digest") if isinstance(part, dict) else None


def _row(folder: EvalFolder) -> dict[str, Any]:
    request: dict[str, Any] = folder.request()
    state, models, suite = folder.state(), request["models"], request["suite"]
    row: dict[str, Any] = {
        "eval_id": folder.eval_id,
        "status": state["status"],
        "created_at": request["created_at"],
        "suite": suite["name"],
        "split": suite["split"],
        "n_items": suite["n_items"],
        "candidate": models["candidate"]["name"],
        "baseline": models["baseline"]["name"] if "baseline" in models else None,
        "pass_rate": None,
        "effect": None,
        "verdict": None,
    }
    if folder.report.is_file():
        report: dict[str, Any] = read_object(folder.report)
        comparison = report["comparison"] or {}
        found = {"effect": comparison.get("effect"), "verdict": comparison.get("verdict")}
        row |= {"pass_rate": report["pass_rate"]["candidate"]["value"], **found, "smoke": report["smoke"]}
    return row
