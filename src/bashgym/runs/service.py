"""RunService: what every surface calls to start, watch and control runs. State is files; the database is an index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bashgym.core.canonical import digest_json
from bashgym.core.errors import BashGymError, fail
from bashgym.core.ids import check_identifier
from bashgym.core.settings import Settings
from bashgym.runs import queue
from bashgym.runs.reconcile import ensure_supervised, spawn_supervisor, waits
from bashgym.store.run_dir import TERMINAL, RunDir, RunStatus

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
        queued: bool = False,
        stop_on_error: bool = False,
        event: tuple[str, Mapping[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """Checks, records, registers, launches; returns at once with the run's id. With `dry_run` only checks.

        `queued` leaves the launch to the queue; with `stop_on_error` this run's failure holds it. `event` is recorded.
        """
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
            run, ids = self._begin(prepared, queued=queued, stop_on_error=stop_on_error, event=event)
        except BaseException:
            if key:
                self.ledger.release_idempotency(str(key))
            raise
        if key:
            self.ledger.store_idempotency(str(key), digest, {"run_id": run.run_id})
        self._launch(run, queued)
        return self._response(run) | {"tracking_ids": ids, "warnings": self._warnings(prepared)}

    def _begin(self, prepared: Prepared, **how: Any) -> tuple[RunDir, dict[str, Any]]:
        from bashgym.runs.create import begin

        return begin(prepared, self.settings, self.ledger, **how)

    def _launch(self, run: RunDir, queued: bool) -> None:
        if queued:
            queue.advance(self.settings)
        else:
            spawn_supervisor(run, self.settings)

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
        queue.advance(self.settings)
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
        queue.advance(self.settings)
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

    def samples(self, run_id: str, **filters: Any) -> dict[str, Any]:
        """The samples that pass the filters of `runs.samples.search`."""
        from bashgym.runs.samples import search

        return search(self.locate(run_id), **filters)

    def diff(self, run_a: str, run_b: str) -> dict[str, Any]:
        """What differs between two runs, and how they ended side by side."""
        from bashgym.runs.diff import diff

        return diff(self.locate(run_a), self.locate(run_b))

    def reproduce(self, run_id: str, **how: Any) -> dict[str, Any]:
        """Starts the same request again; see `runs.reproduce`."""
        from bashgym.runs.reproduce import reproduce

        return reproduce(self, run_id, **how)

    def compare_reproduction(self, run_id: str, new_id: str) -> dict[str, Any]:
        """Whether two finished runs have the same final weights, and how they went apart."""
        from bashgym.runs.reproduce import compare

        return compare(self, run_id, new_id)

    # -- artifacts -----------------------------------------------------------------------------------------------

    def push(self, run_id: str, repo: str, *, private: bool = True, artifact: str = "auto") -> dict[str, Any]:
        """Pushes a finished run's model to the Hub; see `runs.delivery`."""
        from bashgym.runs import delivery

        return delivery.push(self.locate(run_id), repo, private=private, artifact=artifact)

    def export_gguf(self, run_id: str, quantization: str | None = None) -> dict[str, Any]:
        """Exports a finished run's merged model as GGUF; see `runs.delivery`."""
        from bashgym.runs import delivery

        return delivery.export_gguf(self.locate(run_id), self.settings, quantization)

    # -- the queue -----------------------------------------------------------------------------------------------

    def queue_list(self) -> dict[str, Any]:
        """Who trains and who waits, in order."""
        queue.advance(self.settings)
        return queue.listing(self.settings)

    def queue_run(self) -> dict[str, Any]:
        """Launches what is due, and goes on after a failure that held the queue."""
        return {"launched": queue.advance(self.settings, go_on=True), **queue.listing(self.settings)}

    def queue_move(self, run_id: str, to: int) -> dict[str, Any]:
        """Another place in the order; position 1 is launched next."""
        queue.move(self.locate(run_id).run_id, to, self.settings)
        return queue.listing(self.settings)

    def queue_remove(self, run_id: str) -> dict[str, Any]:
        """Cancels a run that waits; one that was cancelled already stays so. `not_queued` for any other."""
        run = self.locate(run_id)
        if not queue.cancel(run, self.settings, self.ledger) and run.state().status != RunStatus.CANCELLED:
            raise queue.not_queued(run_id)
        return self._response(run)

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
        return adopted + queue.advance(self.settings)

    def _continue(self, failed: RunDir) -> dict[str, Any]:
        """A new run with the same request that begins at the failed one's last valid checkpoint."""
        from bashgym.runs import control
        from bashgym.runs.prepare import refuse_blocked

        checkpoint = control.valid_checkpoint(failed)
        body = {**failed.request(), "run_id": None, "idempotency_key": None}
        prepared = self.check(body, failed.manifest().get("forced", []))
        refuse_blocked(prepared)
        control.same_data(failed, prepared.report.sha256, prepared.model.digest)
        event = ("continues", {"run_id": failed.run_id, "checkpoint": checkpoint.name})
        run, ids = self._begin(prepared, continues=(failed, checkpoint), event=event)
        spawn_supervisor(run, self.settings)
        return self._response(run) | {"success": True, "tracking_ids": ids, "continues": failed.run_id}

    def _response(self, run: RunDir) -> dict[str, Any]:
        """TrainingResponse: the wire form of a run."""
        state = run.state()
        request = run.request()
        return {
            "run_id": run.run_id,
            "status": str(state.status),
            "waiting": state.status == RunStatus.QUEUED and waits(run, self.settings),
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
