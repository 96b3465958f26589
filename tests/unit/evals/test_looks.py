"""How many candidates met a baseline on the same items: each model, and each way to decode it, is one look."""

import json
from pathlib import Path

import msgspec
import pytest

from bashgym.evals import service, suites
from bashgym.evals.folder import EvalFolder
from bashgym.inference.job import Decoding
from bashgym.models.catalog import ModelRef

SUITE = suites.load("terminal", limit=4)


def model(digest):
    facts = {"source": "path", "revision": "", "config_digest": "", "n_parameters": 1, "weight_bytes": 1, "config": {}}
    return ModelRef(name=digest, path=Path("/nowhere"), digest=digest, **facts)


def plan(candidate, baseline="base", temperature=0.0, attempts=1):
    decoding = Decoding(max_new_tokens=8, temperature=temperature, top_p=1.0, seed=0, attempts=attempts)
    return service.Plan(SUITE, {"candidate": model(candidate), "baseline": model(baseline)}, decoding, None, 1000, 4)


@pytest.fixture()
def report(tmp_path):
    def write(name, of, **more):
        found = {
            "suite": SUITE.facts(),
            "candidate": {"digest": of.models["candidate"].digest},
            "baseline": {"digest": of.models["baseline"].digest},
            "decoding": service._decoding_facts(of.decoding),
            "attempts": of.decoding.attempts,
            **more,
        }
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(json.dumps(msgspec.to_builtins(found)))

    return write


def test_every_other_candidate_and_every_other_decoding_is_a_look(tmp_path, report):
    here = EvalFolder(tmp_path / "eval_now")

    def looks(of):
        return service._looks(here, of)

    assert looks(plan("a")) == 1
    report("eval_1", plan("a"))
    assert looks(plan("a")) == 1, "the same again is no new look"
    assert looks(plan("b")) == 2
    assert looks(plan("a", temperature=0.7, attempts=4)) == 2, "another decoding is another chance to be lucky"
    report("eval_2", plan("b"))
    assert looks(plan("c")) == 3


def test_another_baseline_other_items_and_broken_reports_are_no_looks(tmp_path, report):
    report("eval_1", plan("a", baseline="other"))
    report("eval_2", plan("b"), suite={**SUITE.facts(), "digest": "0" * 64})
    (tmp_path / "eval_3").mkdir()
    (tmp_path / "eval_3" / "report.json").write_text("{")
    assert service._looks(EvalFolder(tmp_path / "eval_now"), plan("c")) == 1
