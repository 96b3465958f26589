"""A language model of this machine as a policy. torch is imported when one is made; a fresh process is wise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from polyguard.env.text import messages
from polyguard.env.types import Action, Observation

MAX_NEW_TOKENS = 96
"""One JSON object with two or three facts and a line of rationale."""


class ModelPolicy:
    """Reads the observation as text, writes JSON. All running episodes are answered in one batch."""

    def __init__(
        self,
        model: str | Path,
        adapter: str | Path | None = None,
        *,
        temperature: float = 0.0,
        seed: int = 0,
        max_new_tokens: int = MAX_NEW_TOKENS,
        name: str = "llm-only",
    ) -> None:
        """`model` is anything that `bashgym.models.catalog` resolves: a built-in name, a Hub id, or a folder (an adapter too)."""
        from bashgym.core.settings import Settings
        from bashgym.inference.job import JobModel
        from bashgym.inference.scoring import load
        from bashgym.models.catalog import resolve

        self.name, self._temperature, self._seed, self._budget = name, temperature, seed, max_new_tokens
        ref = resolve(str(adapter or model), Settings.from_env())
        base = resolve(str(model), Settings.from_env()).path if adapter else ref.path
        self.model_name, self.digest = str(model), ref.digest
        over = str(ref.adapter_path) if ref.adapter_path else None
        self._model, self._tokenizer = load(JobModel(path=str(base), adapter_path=over))
        self._steps = 0

    def begin(self, n: int) -> None:
        """Sampled answers depend on the step since here, and on nothing else."""
        self._steps = 0

    def act(self, observations: Sequence[Observation]) -> list[Action | str]:
        """Raw texts, as the model wrote them."""
        return list(self.complete([messages(item) for item in observations]))

    def complete(self, conversations: Sequence[list[dict[str, str]]]) -> list[str]:
        """What the model writes to any conversations."""
        from bashgym.inference.local import generate

        self._steps += 1
        return generate(
            self._model,
            self._tokenizer,
            conversations,
            max_new_tokens=self._budget,
            temperature=self._temperature,
            seed=self._seed + 1_000_003 * self._steps,
        )
