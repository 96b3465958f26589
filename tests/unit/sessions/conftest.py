"""The tiny model's folder, built once, for the tests that need its tokenizer."""

import pytest

from bashgym.data.tokens import TokenizerBundle
from bashgym.models import tiny


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    tiny.build(folder)
    return folder


@pytest.fixture(scope="session")
def bundle(tiny_folder):
    return TokenizerBundle.load(tiny_folder)
