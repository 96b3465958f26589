"""The driver of a cascade: one ordinary run after another, each from the model of the one before.

Owns how a stage is begun, awaited, taken up again and judged. What the stages are is `cascade`'s and `cascade_distill`'s.
A record is saved before anything that it announces, so that a driver that was killed can be followed by another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bashgym.core.canonical import digest_file
from bashgym.core.errors import BashGymError, fail
from bashgym.core.ids import new_run_id
from bashgym.runs.service import RunService
from bashgym.store.run_dir import TERMINAL, RunDir, RunStatus

POLL_S = 0.5
CARD = "run_card.json"
Stage = dict[str, Any]
Progress = Callable[[float, str], None]


class Driver:
    """Brings `stages` to their end. `save` writes the record that they are part of; `finish` follows a completed run."""

    def __init__(
        self,
        service: RunService,
        stages: list[Stage],
        save: Callable[[], None],
        progress: Progress,
        finish: Callable[[Stage], None] = lambda _: None,
    ) -> None:
        self.service, self.save, self.progress, self.finish = service, save, progress, finish
        self.stages = [stage for stage in stages if stage["status"] != "skipped"]

    def drive(self, model: str) -> str:
        """Runs what is not completed, the first from `model`; the id of the last run. `stage_failed` names a stage."""
        run_id = ""
        for place, stage in enumerate(self.stages):
            if stage["status"] != "completed":
                with self._recorded(stage):
                    self._train(place, stage, model)
                    self.finish(stage)
                    stage["status"] = "completed"
            run_id = stage["run_id"]
            model = trained_model(self.service.locate(run_id))
        return run_id

    @contextmanager
    def _recorded(self, stage: Stage) -> Iterator[None]:
        stage |= {"status": "running", "error": None}
        self.save()
        try:
            yield
        except KeyboardInterrupt:
            stage["status"] = "cancelled"
            self.save()
            stop_run(self.service, stage)
            raise
        except BashGymError as error:
            stage |= {"status": "failed", "error": error.detail()}
            message = f"stage {stage['domain']}: {error.message}"
            raise fail("stage_failed", message, error.hint, [f"stages.{stage['domain']}"]) from error
        finally:
            self.save()

    def _train(self, place: int, stage: Stage, model: str) -> None:
        """Until the stage's run is completed; goes on with one that there is."""
        if not self._taken_up(stage):
            if digest_file(Path(stage["request"]["dataset_path"])) != stage["dataset_sha256"]:
                raise fail("digest_mismatch", f"{stage['request']['dataset_path']} is not what was planned with")
            stage |= {"run_id": new_run_id(), "start_from": model}
            self.save()
            self.service.start({**stage["request"], "base_model": model, "run_id": stage["run_id"]})
        while (run := self.service.get(stage["run_id"]))["status"] not in TERMINAL:
            steps = run["progress"]
            done, total = int(steps.get("step") or 0), int(steps.get("total_steps") or 0)
            text = (
                f"stage {place + 1} of {len(self.stages)}, {stage['domain']}: {run['status']}, step {done} of {total}"
            )
            # Not whole before the run is: after its last step it saves and merges.
            self.progress((place + min(0.99, done / max(1, total))) / len(self.stages), text)
            time.sleep(POLL_S)
        if run["status"] != RunStatus.COMPLETED:
            error = run["error"] or {}
            text = f"run {run['run_id']} is {run['status']}: {error.get('message') or run['message']}"
            raise fail("training_failed", text, str(error.get("hint") or ""))

    def _taken_up(self, stage: Stage) -> bool:
        """Whether the stage has a run that lives or is completed. A failed one is continued from its checkpoint."""
        try:
            found = self.service.get(stage["run_id"] or "none")
        except BashGymError:
            return False
        if found["status"] in (RunStatus.FAILED, RunStatus.CANCELLED):
            stage["earlier_runs"].append(found["run_id"])
            stage["run_id"] = None
            if found["status"] == RunStatus.FAILED:
                with suppress(BashGymError):
                    stage["run_id"] = self.service.resume(found["run_id"])["run_id"]
        self.save()
        return stage["run_id"] is not None


def new_stage(domain: str, strategy: str, rows: int, request: dict[str, Any]) -> Stage:
    """A stage that has not begun. `request` is its training request without a model; its rows are frozen."""
    return {
        "domain": domain,
        "strategy": strategy,
        "status": "pending",
        "rows": rows,
        "request": request,
        "dataset_sha256": digest_file(Path(request["dataset_path"])),
        "run_id": None,
        "start_from": None,
        "earlier_runs": [],
        "error": None,
    }


def trained_model(run: RunDir) -> str:
    """What the next run starts from: merged weights where they were kept, else the run's final/."""
    merged = run.file("merged")
    return str(merged) if (merged / "config.json").is_file() else run.run_id


def stop_run(service: RunService, stage: Stage) -> None:
    """Ends the stage's run if it lives."""
    with suppress(BashGymError):
        service.stop(stage["run_id"] or "none")


def write_card(service: RunService, stage: Stage) -> None:
    """The RunCard of a completed stage, judged as for promotion."""
    from bashgym.evidence.runcard import create

    run = service.locate(stage["run_id"])
    path = run.file(CARD)
    if not path.is_file():
        create(
            run_id=run.run_id,
            training_method=stage["strategy"],
            base_model=str(run.request()["base_model"]),
            compute_target=str(run.request().get("compute_target") or "local"),
            output=path,
            models_dir=service.settings.models_dir,
        )
    stage["card_path"] = str(path)
    judge_card(stage, service.settings.models_dir)


def judge_card(stage: Stage, models_dir: Path) -> None:
    """Judges a stage's card as it is now: evidence may have been attached, or edited, since."""
    from bashgym.evidence.runcard import validate

    path = Path(stage["card_path"])
    try:
        judged = validate(path, promotion=True, models_dir=models_dir)
    except BashGymError as error:
        stage |= {"card_ok": False, "card": None, "card_says": error.message}
        return
    says = judged["promotion_explanation"]["headline"]
    stage |= {"card_ok": judged["ok"], "card": {"path": str(path), "sha256": digest_file(path)}, "card_says": says}
