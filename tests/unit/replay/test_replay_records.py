"""Replay files: strict records, tokens that must be the tokenizer's own, enrichment, scrubbing."""

import copy
import json
import math
import random

import pytest

from bashgym.core.errors import BashGymError
from bashgym.data.replay_records import parse_record, read_records, write_records
from bashgym.data.replay_tokens import CONTEXT, sequences
from bashgym.data.tokens import TokenizerBundle
from bashgym.evals.replay import TrainLogprobs, enrich, enrich_file, summarize
from bashgym.evals.replay_scrub import scrub_records

from .replay_data import TINY, attempt, write


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    from bashgym.core.settings import Settings
    from bashgym.models.catalog import resolve

    home = tmp_path_factory.mktemp("home")
    return TokenizerBundle.load(resolve(TINY, Settings.from_env({"BASHGYM_DIR": str(home)})).path)


def refused(value):
    with pytest.raises(BashGymError) as caught:
        parse_record(value)
    assert caught.value.code == "replay_invalid"
    return caught.value


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("schema_version", "bashgym.dppo_replay.v0", "schema_version"),
        ("reward", math.nan, "reward"),
        ("reward", "1", "reward"),
        ("optimizer", {"advantage": math.inf}, "advantage"),
        ("attempt_index", -1, "attempt_index"),
        ("colour", "red", "colour"),
        ("behavior_policy.response_logprobs.0.logprobs", [math.nan, -1.0], "logprobs"),
        ("behavior_policy.response_logprobs.0.logprobs", [0.5, -1.0], "logprobs"),
        ("behavior_policy.response_logprobs.0.logprobs", [-math.inf, -1.0], "logprobs"),
        ("behavior_policy.response_logprobs.0.logprobs", [-1.0], "length"),
        ("behavior_policy.response_logprobs.0.token_ids", [1], "length"),
        ("behavior_policy.response_logprobs.0.turn", 0, "turn 0"),
        ("behavior_policy.response_logprobs.0.turn", 9, "turn 9"),
        ("train_policy", {"token_logprobs": [-1.0]}, "1 training log probabilities for 2"),
    ],
)
def test_what_is_not_acceptable_is_refused_by_name(path, value, said):
    record = attempt(0)
    *parents, last = path.split(".")
    at = record
    for name in parents:
        at = at[int(name)] if name.isdigit() else at[name]
    at[last] = value
    error = refused(record)
    assert said in error.message


def test_garbage_is_refused_and_never_a_traceback(tmp_path):
    draw = random.Random(1)
    good = json.dumps(attempt(0)).encode()
    path = tmp_path / "replay.jsonl"
    for _ in range(300):
        data = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        path.write_bytes(bytes(data))
        try:
            read_records(path)
        except BashGymError as error:
            assert error.code == "replay_invalid"


def test_a_repeated_attempt_is_refused_with_both_rows(tmp_path):
    path = write(tmp_path, [attempt(0), attempt(1), attempt(0)])
    with pytest.raises(BashGymError, match=r"row 3 repeats.*row 1"):
        read_records(path)


def test_writing_and_reading_gives_the_same(tmp_path):
    records = [parse_record(attempt(i)) for i in range(4)]
    write_records(tmp_path / "out.jsonl", records)
    assert read_records(tmp_path / "out.jsonl") == records


# -- tokens -------------------------------------------------------------------------------------------------------------


def test_a_sequence_is_the_rendered_prompt_and_the_sampled_tokens(bundle):
    record = parse_record(attempt(7))
    (sequence,) = sequences(bundle, record)
    prompt = bundle.encode(bundle.render(record.trajectory.messages[:1], None, True))
    assert sequence.input_ids.tolist() == [*prompt, *bundle.encode("7<|im_end|>")]
    assert sequence.slots.tolist() == [CONTEXT] * len(prompt) + [0, 1]


def two_turns(bundle):
    record = attempt(0)
    record["trajectory"]["messages"] += [{"role": "user", "content": "more"}, {"role": "assistant", "content": "5"}]
    turn = {"turn": 3, "tokens": ["5", "<|im_end|>"], "logprobs": [-1.0, None]}
    record["behavior_policy"]["response_logprobs"].append(turn)
    return parse_record(record)


def test_turns_share_a_sequence_where_the_next_prompt_extends_it_and_the_limit_allows(bundle):
    record = two_turns(bundle)
    (joined,) = sequences(bundle, record)
    assert [slot for slot in joined.slots if slot != CONTEXT] == [0, 1, 2, 3]
    apart = sequences(bundle, record, len(joined.input_ids) - 1)
    assert [s.sampled for s in apart] == [2, 2]
    assert apart[1].input_ids == joined.input_ids


def test_a_template_that_rewrites_history_gives_each_turn_its_own_sequence(bundle):
    record = two_turns(bundle)
    record.trajectory.messages[1]["content"] = "0 with reasoning taken out"
    apart = sequences(bundle, record)
    assert [s.sampled for s in apart] == [2, 2]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokens": ["0 1", "<|im_end|>"]}, "tokenise"),
        ({"tokens": ["\ufffd", "<|im_end|>"]}, "token"),
        ({"tokens": ["\ud800", "<|im_end|>"]}, "surrogate"),
        ({"token_ids": [5, 10**6]}, "vocabulary"),
        ({"token_ids": [5, -1]}, "vocabulary"),
        ({"token_ids": [40, 41]}, "spell"),
        ({"prompt_tokens": 3}, "counted 3"),
    ],
)
def test_tokens_that_are_not_this_tokenizers_are_refused(bundle, changes, said):
    record = attempt(0)
    record["behavior_policy"]["response_logprobs"][0] |= changes
    with pytest.raises(BashGymError) as caught:
        sequences(bundle, parse_record(record))
    assert caught.value.code == "replay_invalid" and said in caught.value.message


def test_recorded_ids_are_used_as_they_are(bundle):
    record = attempt(0)
    ids = bundle.encode("0<|im_end|>")
    record["behavior_policy"]["response_logprobs"][0]["token_ids"] = ids
    assert sequences(bundle, parse_record(record))[0].input_ids.tolist()[-2:] == ids


# -- enrichment ---------------------------------------------------------------------------------------------------------


def entries(count=8, **changes):
    found = [
        {"environment_id": f"env_{i // 4}", "attempt_index": i % 4, "token_logprobs": [-1.0, -0.5]}
        for i in range(count)
    ]
    return [TrainLogprobs(**{**entry, **changes}) for entry in found]


def test_enrichment_adds_advantages_and_telemetry():
    records = [parse_record(attempt(i)) for i in range(8)]
    report = enrich(records, entries())
    assert [r.optimizer.advantage for r in records] == [0.5, -0.5] * 4
    assert [r.optimizer.dppo_token_offset for r in records] == list(range(0, 16, 2))
    assert all(r.optimizer.train_logprobs_ready and r.train_policy.token_logprobs == [-1.0, -0.5] for r in records)
    assert report["telemetry"]["n_tokens"] == 16 and report["groups"] == 2
    # p rose from e^-2 to e^-1 at the first token of each attempt: masked where the advantage is positive.
    assert report["telemetry"]["reasons"]["positive_advantage_above_trust_region"] == 4
    assert report["telemetry"]["masked_updates"] == 4
    assert summarize(records)["train_logprobs_ready"] == 8


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (entries(7), "'env_1' attempt 3 is missing"),
        ([*entries(), entries(1)[0]], "'env_0' attempt 0 is given twice"),
        ([*entries(), *entries(1, environment_id="env_9")], "no environment 'env_9'"),
        (entries(token_logprobs=[-1.0]), "1 training log probabilities for 2 sampled"),
        (entries(token_logprobs=[math.nan, -1.0]), "nan is no log probability"),
        (entries(token_logprobs=[0.1, -1.0]), "0.1 is no log probability"),
        (entries(tokens=["x", "<|im_end|>"]), "differ from those recorded, the first at 0"),
    ],
)
def test_entries_that_do_not_match_are_refused_by_name_and_change_nothing(given, said):
    records = [parse_record(attempt(i)) for i in range(8)]
    before = copy.deepcopy(records)
    with pytest.raises(BashGymError) as caught:
        enrich(records, given)
    assert caught.value.code == "replay_invalid" and said in caught.value.message
    assert records == before


def test_the_same_attempt_in_two_batches_needs_the_batch():
    records = [parse_record(attempt(0)), parse_record({**attempt(0), "batch_id": "b2", "reward": 3.0})]
    with pytest.raises(BashGymError, match="in 2 batches"):
        enrich(records, entries(1))
    enrich(records, [*entries(1, batch_id="b1"), *entries(1, batch_id="b2")])
    assert [record.optimizer.advantage for record in records] == [0.0, 0.0]  # batches are groups of their own


def test_a_refused_file_leaves_no_output(tmp_path):
    body = {"input_path": str(write(tmp_path, [attempt(0)])), "output_path": str(tmp_path / "o.jsonl")}
    body["train_logprobs"] = [{"environment_id": "env_0", "attempt_index": 0, "token_logprobs": [-1.0]}]
    with pytest.raises(BashGymError):
        enrich_file(body)
    assert not (tmp_path / "o.jsonl").exists()
    with pytest.raises(BashGymError) as caught:
        enrich_file({**body, "treshold": 0.1})
    assert caught.value.code == "unknown_field" and "threshold" in caught.value.hint


# -- scrubbing ----------------------------------------------------------------------------------------------------------


def test_scrubbing_takes_secrets_and_the_tokens_that_spell_or_follow_them():
    leaked = attempt(0)
    leaked["trajectory"]["messages"][0]["content"] = "use api_key=sk-live-0123456789abcdef"
    long = attempt(1)
    long["trajectory"]["observations"] = ["x" * 5000]
    (first, second, third), report = scrub_records([parse_record(v) for v in (leaked, long, attempt(2))], 100)
    assert "0123456789abcdef" not in json.dumps(first.trajectory.messages)
    assert first.behavior_policy.response_logprobs == [] and not first.optimizer.behavior_logprobs_ready
    assert len(second.trajectory.observations[0]) < 200 and second.behavior_policy.response_logprobs
    assert third == parse_record(attempt(2))
    assert report["records_changed"] == 2 and report["logprobs_dropped"] == 1
