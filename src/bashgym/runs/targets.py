"""Where a direct run executes: the normalisation rules for `compute_target` and the older routing fields."""

from __future__ import annotations

from collections.abc import Mapping

from bashgym.core.errors import BashGymError, fail

_NEMO = frozenset({"cloud:nemo-customizer", "nemo-customizer", "cloud:nemo", "nemo"})
_HF_JOBS = frozenset({"hf-jobs", "hf_jobs", "cloud:hf-jobs"})


def normalise_target(request: Mapping[str, object]) -> str:
    """`local`, or a typed refusal that says which surface or lane the target belongs to."""
    target = str(request.get("compute_target") or "").strip()
    ssh = bool(request.get("use_remote_ssh") or request.get("device_id"))
    nemo = bool(request.get("use_nemo_customizer") or request.get("use_nemo_gym"))
    if ssh and nemo:
        raise _refuse("target_ambiguous", "use_remote_ssh and use_nemo_customizer name two places")
    if target in ("", "local"):
        if target and (ssh or nemo):
            raise _refuse("target_ambiguous", "compute_target is local, but a remote routing field is set")
        if ssh:
            return _ssh(f"ssh:{request.get('device_id') or 'remote'}", request)
        if nemo:
            raise _lane("cloud:nemo-customizer")
        return "local"
    if target == "private" or target.startswith("ssh:"):
        if nemo:
            raise _refuse("target_ambiguous", f"{target} and use_nemo_customizer name two places")
        return _ssh("ssh:remote" if target == "private" else target, request)
    if target in _NEMO:
        raise _refuse("target_ambiguous", f"{target} and use_remote_ssh name two places") if ssh else _lane(target)
    if target == "cloud":
        raise _refuse(
            "target_ambiguous", "compute target 'cloud' is ambiguous", "Name one, e.g. cloud:nemo-customizer."
        )
    if target in _HF_JOBS or target.startswith(("managed:", "skypilot", "dstack")):
        raise _refuse(
            "target_other_surface", f"{target} is not a direct training target; it has its own submission surface"
        )
    raise _refuse("target_unavailable", f"there is no compute target {target!r}", "Use local.")


def _ssh(target: str, request: Mapping[str, object]) -> str:
    device = target.removeprefix("ssh:")
    stated = str(request.get("device_id") or "")
    if not device:
        raise _refuse("target_unavailable", "ssh: needs a device id")
    if stated and device not in (stated, "remote"):
        raise _refuse("target_ambiguous", f"{target} and device_id {stated} name two devices")
    raise _lane(target)


def _lane(target: str) -> BashGymError:
    return _refuse("target_unavailable", f"the lane for {target} is not in this version", "Use --compute-target local.")


def _refuse(code: str, message: str, hint: str = "") -> BashGymError:
    return fail(code, message, hint=hint, fields=["compute_target"])
