"""Any model behind an OpenAI-compatible endpoint as a policy. What an endpoint sends back is text for the parser, no more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bashgym.inference.client import ChatClient, ChatRequest, EndpointSpec
from polyguard.env.text import messages
from polyguard.env.types import Action, Observation

_MAX_TOKENS = 256
_AT_ONCE = 16


class EndpointPolicy:
    """Asks for all running episodes at once. The key is in `spec` and goes nowhere else."""

    def __init__(
        self, spec: EndpointSpec, *, temperature: float = 0.0, timeout_s: float = 60.0, name: str = "endpoint"
    ) -> None:
        self.name, self._spec, self._temperature, self._timeout_s = name, spec, temperature, timeout_s

    def begin(self, n: int) -> None:
        """Nothing to prepare."""

    def act(self, observations: Sequence[Observation]) -> list[Action | str]:
        """One completion each. An endpoint that fails ends the evaluation: a missing answer is no wrong answer."""
        return list(asyncio.run(self._ask(observations)))

    async def _ask(self, observations: Sequence[Observation]) -> list[str]:
        async with ChatClient(self._spec, timeout_s=self._timeout_s, max_concurrency=_AT_ONCE) as client:
            requests = [
                ChatRequest(messages=messages(item), temperature=self._temperature, max_tokens=_MAX_TOKENS)
                for item in observations
            ]
            replies = await asyncio.gather(*map(client.chat, requests))
        return [reply.text for reply in replies]
