"""The typed client: one WebSocket, one episode at a time. Async; `.sync()` gives the blocking one, as in the package's README."""

from __future__ import annotations

from typing import Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult

from polyguard.models import PolyGuardAction, PolyGuardObservation, PolyGuardState


class PolyGuardEnv(EnvClient[PolyGuardAction, PolyGuardObservation, PolyGuardState]):
    """A session on a PolyGuard server."""

    def _step_payload(self, action: PolyGuardAction) -> dict[str, Any]:
        return action.model_dump(mode="json", exclude_none=True)

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[PolyGuardObservation]:
        seen = {**payload["observation"], "reward": payload.get("reward"), "done": payload.get("done", False)}
        observation = PolyGuardObservation.model_validate(seen)
        return StepResult(
            observation=observation,
            reward=payload.get("reward"),
            done=observation.done,
            metadata=observation.metadata,
        )

    def _parse_state(self, payload: dict[str, Any]) -> PolyGuardState:
        return PolyGuardState.model_validate(payload)
