"""`bundle`: the tokenizer of the tiny model, without weights. `write`: rows into a file. `encode`: rows into pairs."""

import json

import pytest

from bashgym.data.pairs import encode_pairs
from bashgym.data.prompts import iter_prompt_rows
from bashgym.data.tokens import TokenizerBundle
from bashgym.models import tiny


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny._build_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(tiny.CONFIG))
    return folder


@pytest.fixture(scope="session")
def bundle(model):
    return TokenizerBundle.load(model)


@pytest.fixture
def write(tmp_path):
    def lines(*rows):
        path = tmp_path / "pairs.jsonl"
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return path

    return lines


@pytest.fixture
def encode(bundle, write):
    def run(*rows, max_length=256, wrap=False, mapping=None):
        """(pairs, problems)"""
        problems = []
        read = iter_prompt_rows(write(*rows), "dpo", column_mapping=mapping, wrap=wrap)
        pairs = encode_pairs(bundle, read, max_length=max_length, on_problem=problems.append)
        return [pair for _, pair in pairs], problems

    return run
