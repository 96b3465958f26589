"""RunService: what every surface calls to start, watch and control runs. State is files; the database is an index."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bashgym.core.canonical import digest_json
from bashgym.core.clock import utc_now
from bashgym.core.errors import BashGymError, fail
from bashgym.core.files import writable_dir
from bashgym.core.ids import check_identifier, new_run_id
from bashgym.core.settings import Settings
from bashgym.runs.reconcile import ensure_supervised, spawn_supervisor
from bashgym.store.run_dir import TERMINAL, RunDir, RunState, RunStatus, create_run_dir

if TYPE_CHECKING:
    from bashgym.ledger.service import Ledger
    from bashgym.runs.prepare import Prepared


class RunService:
    """One per process; cheap to make. What only a start needs is imported by a start."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self.settings, self.ledger = settings, ledger

    # -- before and at the start ---------------------------------------------------------------------------------

    def check(self, body: Mapping[str, Any], force: Sequence[str] = ()) -> Prepared:
        """The whole preflight of a start, starting nothing."""
        from bashgym.runs.prepare import prepare

        return prepare(body, self.settings, force=force)

    def start(
        self,
        body: Mapping[str, Any],
        *,
        force: Sequence[str] = (),
        dry_run: bool = False,
        origin: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Checks, records, registers, launches; returns at once with the run's id. With `dry_run` only checks."""
        from bashgym.runs.prepare import refuse_blocked
        from bashgym.runs.records import tracking_of

        body = {**body, **({"origin": dict(origin)} if origin and not body.get("origin") else {})}
        key, digest = body.get("idempotency_key"), digest_json(_plain(body))
        if dry_run:
            prepared = self.check(body, force)
            refuse_blocked(prepared)
            tracking_of(prepared)
            return self._dry_run(prepared)
        if key and (earlier := self.ledger.claim_idempotency(str(key), digest)):
            return {**self.get(str(earlier["run_id"])), "replayed": True}
        try:
            prepared = self.check(body, force)
            refuse_blocked(prepared)
            run, ids = self._begin(prepared)
        except BaseException:
            if key:
                self.ledger.release_idempotency(str(key))
            raise
        if key:
            self.ledger.store_idempotency(str(key), digest, {"run_id": run.run_id})
        spawn_supervisor(run, self.settings)
        return self._response(run) | {"tracking_ids": ids, "warnings": self._warnings(prepared)}

    def _begin(self, prepared: Prepared, checkpoint: Path | None = None) -> tuple[RunDir, dict[str, Any]]:
        """A whole, registered, queued run directory, or none."""
        from bashgym.runs.records import tracking_of

        tracking = tracking_of(prepared)
        run = self._create(prepared)
        try:
            if checkpoint is not None:
                shutil.copytree(checkpoint, run.file(checkpoint.name))
            return run, self._record(run, prepared, tracking)
        except BaseException:
            shutil.rmtree(run.path, ignore_errors=True)
            raise

    def _create(self, prepared: Prepared) -> RunDir:
        models_dir = writable_dir(self.settings.models_dir)
        chosen = prepared.request["run_id"]
        return create_run_dir(models_dir, check_identifier(chosen, "run_id") if chosen else new_run_id())

    def _record(self, run: RunDir, prepared: Prepared, tracking: Any) -> dict[str, Any]:
        """Everything durable, in an order such that a crash leaves either no run or a whole one."""
        from bashgym.runs.records import settings_plan, source_manifest

        request = {**prepared.request.as_dict(), "run_id": run.run_id}
        manifest = prepared.manifest(run.run_id)
        run.write_json("manifest.json", manifest)
        run.write_json("preflight.json", msgspec.to_builtins(prepared.report))
        run.write_json("estimate.json", prepared.estimate)
        run.write_json("training_plan.json", settings_plan(prepared))
        run.write_json("source_manifest.json", source_manifest(run.run_id, prepared))
        run.write_json("request.json", request)
        ids = self.ledger.register_run(
            request=request,
            strategy=prepared.request.strategy,
            run_id=run.run_id,
            run_dir=str(run.path),
            tracking=tracking,
            model=manifest["model"],
            dataset=manifest["dataset"],
            environment=manifest["environment"],
            recipe_digest=manifest["recipe_digest"],
            correlation_id=prepared.request["correlation_id"] or f"training:{run.run_id}",
            origin=prepared.request["origin"] or {},
        )
        run.write_json("tracking.json", ids)
        run.append_event("training-queued", request_digest=manifest["request_digest"], forced=prepared.forced)
        run.write_state(
            RunState(
                run_id=run.run_id, strategy=prepared.request.strategy, status=RunStatus.QUEUED, queued_at=utc_now()
            )
        )
        return ids

    def _dry_run(self, prepared: Prepared) -> dict[str, Any]:
        return {
            "dry_run": True,
            "strategy": prepared.request.strategy,
            "request": prepared.request.as_dict(),
            "request_digest": digest_json(prepared.request.as_dict()),
            "manifest": prepared.manifest("run_dry"),
            "preflight": msgspec.to_builtins(prepared.report),
            "estimate": prepared.estimate,
            "warnings": self._warnings(prepared),
        }

    @staticmethod
    def _warnings(prepared: Prepared) -> list[dict[str, Any]]:
        findings = [msgspec.to_builtins(f) for f in prepared.report.findings if f.severity != "info"]
        return [*prepared.request.warnings, *findings]

    # -- watching ------------------------------------------------------------------------------------------------

    def locate(self, run_id: str) -> RunDir:
        """The directory of a run: under models_dir, else where the index says. `run_not_found` otherwise."""
        check_identifier(run_id, "run_id")
        here = RunDir(self.settings.models_dir / run_id)
        if here.exists():
            return here
        known = self.ledger.find_run(run_id)
        if known and known.get("run_dir") and RunDir(Path(str(known["run_dir"]))).exists():
            return RunDir(Path(str(known["run_dir"])))
        raise fail(
            "run_not_found", f"no run {run_id!r}", hint="`bashgym training list` shows the runs.", fields=["run_id"]
        )

    def get(self, run_id: str) -> dict[str, Any]:
        """One run's TrainingResponse."""
        run = self.locate(run_id)
        ensure_supervised(run, self.settings)
        return self._response(run)

    def list_runs(self, status: str | None = None, limit: int = 50) -> list[dict[str, Any]]:
        """The newest runs of the index, each from its own files."""
        found = []
        for row in self.ledger.recent_runs(status, limit):
            run = RunDir(Path(str(row["run_dir"]))) if row.get("run_dir") else None
            if run is None or not run.exists():
                continue
            ensure_supervised(run, self.settings)
            found.append(self._response(run))
        return found

    def runs(self) -> dict[str, Any]:
        """The run directories of models_dir, newest first."""
        found = []
        for path in self.settings.models_dir.glob("*/run_state.json"):
            run = RunDir(path.parent)
            found.append(
                {
                    "run_id": run.run_id,
                    "modified": path.parent.stat().st_mtime,
                    "has_metrics": run.metrics_path.is_file(),
                    "has_final": run.file("final").is_dir(),
                }
            )
        return {"runs": sorted(found, key=lambda entry: (entry["modified"], entry["run_id"]), reverse=True)}

    def log(self, run_id: str, tail: int = 500, grep: str | None = None) -> dict[str, Any]:
        """The end of training.log; `grep` filters before the cut."""
        from bashgym.runs import logs

        return logs.read(self.locate(run_id), tail, grep)

    def follow_log(self, run_id: str) -> Iterator[str]:
        """Lines of training.log as they come, until the run has ended."""
        from bashgym.runs import logs

        return logs.follow(self.locate(run_id))

    def metrics(self, run_id: str) -> dict[str, Any]:
        """Every point of metrics.jsonl, one dict a step."""
        return {"run_id": run_id, "metrics": self.locate(run_id).metrics()}

    def analysis(self, run_id: str) -> dict[str, Any]:
        """The same object as `training analyze`."""
        from bashgym.runs.analysis import analyze

        run = self.locate(run_id)
        return analyze(run_id=run_id, run_dir=run.path)

    def classification(self, run_id: str) -> dict[str, Any]:
        """What kind of run it was and what evidence it has."""
        from bashgym.runs.classify import classify

        return classify(self.locate(run_id).path)

    # -- control -------------------------------------------------------------------------------------------------

    def pause(self, run_id: str) -> dict[str, Any]:
        """Asks for a checkpoint at the next optimizer step; the trainer then ends and its memory is free."""
        from bashgym.runs import control

        return control.pause(self.locate(run_id), self.settings)

    def resume(self, run_id: str) -> dict[str, Any]:
        """Continues a paused run. A failed one is continued as a new run from its last valid checkpoint."""
        from bashgym.runs import control

        run = self.locate(run_id)
        ensure_supervised(run, self.settings)
        if run.state().status == RunStatus.FAILED:
            return self._continue(run)
        return control.resume(run, self.settings)

    def stop(self, run_id: str) -> dict[str, Any]:
        """Ends the run's process group; the run becomes cancelled."""
        from bashgym.runs import control

        return control.stop(self.locate(run_id), self.settings, self.ledger)

    def recover(self) -> list[str]:
        """Adopts or closes every run that should be live and has no supervisor; returns their ids."""
        adopted = []
        for row in self.ledger.recent_runs(None, 1000):
            if row["status"] in TERMINAL or not row.get("run_dir"):
                continue
            run = RunDir(Path(str(row["run_dir"])))
            if run.exists() and ensure_supervised(run, self.settings):
                adopted.append(run.run_id)
            elif row["status"] == RunStatus.QUEUED and not run.exists():
                # Registered, then its starter died before the run directory was whole.
                error = {"code": "supervisor_lost", "message": "the run was registered but never launched"}
                self.ledger.set_status(str(row["run_id"]), "failed", error=error, catch_up=True)
        return adopted

    def _continue(self, failed: RunDir) -> dict[str, Any]:
        """A new run with the same request that begins at the failed one's last valid checkpoint."""
        from bashgym.runs import control
        from bashgym.runs.prepare import refuse_blocked

        checkpoint = control.valid_checkpoint(failed)
        body = {**failed.request(), "run_id": None, "idempotency_key": None}
        prepared = self.check(body, failed.manifest().get("forced", []))
        refuse_blocked(prepared)
        control.same_data(failed, prepared.report.sha256, prepared.model.digest)
        run, ids = self._begin(prepared, checkpoint)
        run.append_event("continues", run_id=failed.run_id, checkpoint=checkpoint.name)
        spawn_supervisor(run, self.settings)
        return self._response(run) | {"success": True, "tracking_ids": ids, "continues": failed.run_id}

    def _response(self, run: RunDir) -> dict[str, Any]:
        """TrainingResponse: the wire form of a run."""
        state = run.state()
        request = run.request()
        return {
            "run_id": run.run_id,
            "status": str(state.status),
            "strategy": state.strategy,
            "message": state.message,
            "error": state.error,
            "started_at": state.started_at or None,
            "completed_at": state.completed_at or None,
            "progress": state.progress,
            "metrics": state.last_metrics,
            "output_path": str(run.path),
            "base_model": request.get("base_model"),
            "origin": request.get("origin"),
            "correlation_id": request.get("correlation_id") or f"training:{run.run_id}",
            "compute_target": request.get("compute_target") or "local",
            "last_checkpoint": state.last_checkpoint,
            "attempt": state.attempt,
            "exit": state.exit,
            "tracking_ids": _tracking_ids(run),
        }


def _tracking_ids(run: RunDir) -> dict[str, Any] | None:
    from bashgym.core.files import read_object

    try:
        return read_object(run.file("tracking.json"))
    except BashGymError:
        return None


def _plain(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != "idempotency_key"}
