"""The one error tree, and the one table from an error code to its class, exit status and HTTP status.

1. Every refusal and failure that a user can see is a `BashGymError` with a stable `code`.
2. The code decides the class; the class decides the exit status and the HTTP status.
3. `fail(code, ...)` is the way to make one; a code that is not in `CODES` is a programming error.
4. Surfaces render `error.detail()`: `{"code", "message", "hint", "fields"}`. Nobody sees a traceback.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class BashGymError(Exception):
    """Something a user can act on. `fields` names the offending input fields."""

    exit_status: ClassVar[int] = 1
    http_status: ClassVar[int] = 500
    ledger_exit: ClassVar[int] = 2

    def __init__(self, code: str, message: str, hint: str = "", fields: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.code, self.message, self.hint, self.fields = code, message, hint, list(fields)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.code, self.message, self.hint, self.fields))

    def detail(self) -> dict[str, object]:
        """The error body that CLI (`--json`) and API share, under the key `detail`."""
        return {"code": self.code, "message": self.message, "hint": self.hint, "fields": self.fields}


class Usage(BashGymError, ValueError):
    """The call itself is malformed."""

    exit_status, http_status = 2, 400


class Invalid(BashGymError, ValueError):
    """The input was understood and is not acceptable."""

    http_status, ledger_exit = 422, 7


class NotFound(BashGymError, LookupError):
    """No such thing."""

    http_status, ledger_exit = 404, 5


class Conflict(BashGymError):
    """The thing exists with other content, or its state does not allow this."""

    http_status, ledger_exit = 409, 6


class Unauthorized(BashGymError, PermissionError):
    """Who are you?"""

    http_status, ledger_exit = 401, 3


class Forbidden(BashGymError, PermissionError):
    """You may not."""

    http_status, ledger_exit = 403, 4


class TooLarge(Invalid):
    """More than this will take."""

    http_status = 413


class WrongMediaType(Invalid):
    """The body is not of the type that is read here."""

    http_status = 415


class WrongMethod(Usage):
    """The route exists, but not with this method."""

    http_status = 405


class Unavailable(BashGymError, RuntimeError):
    """Something this needs (an extra, a sandbox, a lane, disk, memory) is not here."""

    http_status, ledger_exit = 503, 8


class Failed(BashGymError, RuntimeError):
    """It was tried and did not work."""

    http_status, ledger_exit = 500, 8


CODES: dict[str, tuple[type[BashGymError], str]] = {
    # input
    "usage": (Usage, "the command line or request is malformed"),
    "unknown_field": (Invalid, "a field that this request does not have; the nearest valid name is given"),
    "invalid_field": (Invalid, "a field's type or bounds are wrong"),
    "missing_field": (Invalid, "a required field is absent"),
    "field_has_flag": (Invalid, "a config key that has its own flag or is controlled elsewhere"),
    "unknown_strategy": (Invalid, "no such training method"),
    "not_direct_strategy": (Invalid, "the method has its own workflow and is not started directly"),
    "unknown_trainer_arg": (Invalid, "an argument that the installed TRL config class does not have"),
    "file_missing": (NotFound, "the file does not exist"),
    "file_unreadable": (Invalid, "the file cannot be read or is not of the stated format"),
    "file_exists": (Conflict, "the file to write exists"),
    "file_too_large": (Invalid, "the file is over the limit for this input"),
    "path_outside": (Forbidden, "the path leaves the allowed folders"),
    "directory_unwritable": (Unavailable, "the directory cannot be written"),
    # data and preflight
    "dataset_missing": (NotFound, "the dataset file does not exist"),
    "dataset_unreadable": (Invalid, "the dataset file cannot be read"),
    "dataset_empty": (Invalid, "the dataset has no rows"),
    "dataset_format": (Invalid, "no known dataset format fits the rows"),
    "preflight_blocked": (Invalid, "blocking preflight findings; --force CODE overrides one on record"),
    "unsupported_model": (Invalid, "the model's architecture lacks what a field needs"),
    "template_failed": (Invalid, "the model's chat template does not compile, or refuses a conversation"),
    "row_not_encodable": (Invalid, "a row cannot be tokenised with a mask that is certain"),
    "unknown_finding": (Usage, "--force names a finding that does not exist"),
    "digest_mismatch": (Invalid, "a stated digest is not that of the thing it names"),
    # models
    "model_missing": (NotFound, "the model is neither built in, a local path, nor in the Hub cache"),
    "model_unsafe": (Invalid, "only safetensors weights without remote code are loaded"),
    "model_incomplete": (Invalid, "the model folder lacks a file that is needed"),
    "teacher_vocab_differs": (Invalid, "teacher and student do not share a vocabulary"),
    "teacher_without_logits": (Invalid, "a hosted model gives text, not the logits that distillation matches"),
    # machine
    "missing_extra": (Unavailable, "an optional dependency is not installed"),
    "sandbox_unavailable": (Unavailable, "bubblewrap is missing or user namespaces are off"),
    "disk_full": (Unavailable, "not enough free disk space"),
    "memory_short": (Unavailable, "the estimate does not fit in this machine's memory"),
    "quantization_unavailable": (Unavailable, "4-bit loading needs a CUDA device and bitsandbytes"),
    "target_unavailable": (Unavailable, "the compute target is not built or not reachable"),
    "device_not_found": (NotFound, "no such device"),
    "target_ambiguous": (Invalid, "the compute target does not name one place"),
    "target_other_surface": (Invalid, "the compute target has its own submission surface"),
    "export_unavailable": (Unavailable, "an export step needs a tool that is not here"),
    "export_failed": (Failed, "an export tool failed, or what it wrote is not sound"),
    "merge_failed": (Failed, "the merged weights do not answer as adapter and base do"),
    "hub_refused": (
        Forbidden,
        "the Hub did not take the push, or the repository's visibility is not the one asked for",
    ),
    "hub_unavailable": (Unavailable, "the Hub push needs a token or is not reachable"),
    # runs
    "run_not_found": (NotFound, "no run with this id"),
    "run_exists": (Conflict, "a run with this id exists"),
    "invalid_transition": (Conflict, "the run's state does not allow this"),
    "run_finished": (Conflict, "the run has already ended"),
    "not_queued": (Conflict, "the run does not wait in the queue"),
    "no_checkpoint": (Conflict, "no valid checkpoint to continue from"),
    "log_too_large": (TooLarge, "the whole log is too large; ask for its tail"),
    "training_failed": (Failed, "the trainer ended with an error"),
    "reward_unhealthy": (Failed, "a reward rule was broken and reward_health is stop"),
    "supervisor_lost": (Failed, "the supervisor did not start"),
    # ledger
    "ledger_identity_conflict": (Conflict, "the id exists with another identity"),
    "ledger_invalid_transition": (Conflict, "the ledger status does not allow this"),
    "ledger_not_found": (NotFound, "no such ledger record"),
    "ledger_scope_mismatch": (Invalid, "path, query and body name different scopes"),
    "ledger_comparison_invalid": (Usage, "a comparison needs 2 to 20 different runs"),
    "request_in_progress": (Conflict, "the same request is being handled by another process"),
    "ledger_payload_unsafe": (Invalid, "a secret-looking key or value, or an oversized payload"),
    "training_tracking_invalid": (Invalid, "the tracking context is not acceptable"),
    "database_newer": (Unavailable, "the database was written by a newer version"),
    "database_unavailable": (Unavailable, "the database cannot be opened"),
    # environments and evaluation
    "environment_invalid": (Invalid, "the environment spec is not acceptable"),
    "suite_unknown": (NotFound, "no such evaluation suite"),
    "eval_not_found": (NotFound, "no such evaluation"),
    "eval_incomplete": (Invalid, "missing or doubled items, or another suite digest: no comparison"),
    "too_few_clusters": (Invalid, "a comparison needs at least two clusters"),
    "scoring_failed": (Failed, "the scoring process ended with an error"),
    "endpoint_invalid": (Invalid, "the model endpoint's address, provider or key is not acceptable"),
    "endpoint_unreachable": (Unavailable, "the model endpoint did not answer"),
    "endpoint_failed": (Failed, "the model endpoint answered with an error, or with what is no completion"),
    "attempts_invalid": (Invalid, "attempts are unknown, doubled, or too few for k"),
    "too_many_missing": (Failed, "too much was not observed to say anything"),
    "canary_unknown": (Invalid, "no such category of reward-hacking canaries"),
    "replay_invalid": (Invalid, "the replay, or the log probabilities for it, are not acceptable"),
    "reward_rows_invalid": (Invalid, "the reward examples or predictions are not acceptable"),
    "benchmark_invalid": (Invalid, "benchmark results are not in a known format"),
    "backend_unavailable": (Unavailable, "the external training backend is not installed"),
    "container_unavailable": (Unavailable, "the environment needs Docker or Podman, and neither works here"),
    "stage_failed": (Failed, "a stage of a cascade did not end well"),
    "signature_invalid": (Invalid, "a signature is missing, of another key, or does not fit the content"),
    # evidence
    "run_card_invalid": (Invalid, "the file is not a RunCard"),
    # API
    "api_base_refused": (Usage, "the API base is not acceptable"),
    "api_path_refused": (Usage, "the API path is not acceptable"),
    "query_credential": (Usage, "a credential does not belong in a query"),
    "api_unreachable": (Unavailable, "the API did not answer"),
    "host_refused": (Forbidden, "the Host header is not on the allow-list"),
    "origin_refused": (Forbidden, "the Origin header is not on the allow-list"),
    "content_type_refused": (WrongMediaType, "a body must be application/json"),
    "token_missing": (Unauthorized, "this server needs a token"),
    "bind_refused": (Usage, "binding beyond loopback needs a token"),
    "route_not_found": (NotFound, "no such route"),
    "method_refused": (WrongMethod, "the route does not take this method"),
    "body_too_large": (TooLarge, "the request's body is over the limit"),
    "body_unreadable": (Usage, "the request's body is not a JSON object, or did not arrive in time"),
    "checkpoint_in_use": (Conflict, "the artifact belongs to a run that is not finished"),
    "checkpoint_not_found": (NotFound, "no such checkpoint or artifact"),
    "port_in_use": (Unavailable, "another program listens on the port"),
    "internal": (Failed, "a fault of ours; the log has the details"),
    "interrupted": (Failed, "stopped by the user"),
}


def fail(code: str, message: str, hint: str = "", fields: Sequence[str] = ()) -> BashGymError:
    """The error of `code`, ready to raise. KeyError if the code is not in the table."""
    return CODES[code][0](code, message, hint, fields)
