"""`make`: a loaded tokenizer for the template that a test asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_folder import PLAIN, write_model

from bashgym.data.tokens import TokenizerBundle

Make = Callable[..., TokenizerBundle]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Builds and loads a model folder: `make(template, **options of write_model)`."""

    def build(template: str | None = PLAIN, **options: Any) -> TokenizerBundle:
        return TokenizerBundle.load(write_model(tmp_path / "model", template, **options))

    return build
