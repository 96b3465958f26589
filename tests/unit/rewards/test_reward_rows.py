"""Reward examples as training rows: what is selected, where it is scored, and what preflight says of a file."""

import json

import pytest

from bashgym.core.errors import BashGymError
from bashgym.core.settings import Settings
from bashgym.data.preflight import DatasetQuery, check
from bashgym.data.reward_checks import loss_of
from bashgym.data.reward_rows import Selection, iter_rows, sequences
from bashgym.data.tokens import TokenizerBundle
from bashgym.methods import registry
from bashgym.models.catalog import ensure_tiny

ROW = {"example_id": "a", "prompt": "count: ", "split": "train"}
PAIR = {**ROW, "reward_type": "preference_reward", "chosen": "one two", "rejected": "three"}
OUTCOME = {**ROW, "reward_type": "orm", "response": "one two", "reward": 1.0}
PROCESS = {**ROW, "reward_type": "prm", "steps": [{"text": "one", "reward": 1}, {"text": "two three", "reward": 0}]}
OPTIONS = {
    field.name: field.default for field in registry.get("reward_model").own_fields if field.name.startswith("reward_")
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return ensure_tiny(
        Settings.from_env({"BASHGYM_DIR": str(tmp_path_factory.mktemp("home"))}, tmp_path_factory.mktemp("w"))
    )


def write(tmp_path, rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def encoded(model, path, kind, length=64, **how):
    bundle, problems = TokenizerBundle.load(model), []
    rows = (row for row in iter_rows(path, **how) if row.example.kind == kind)
    found = list(sequences(bundle, rows, kind=kind, max_length=length, on_problem=problems.append))
    return bundle, [one for _, one in found], problems


def test_a_pair_shares_its_prompt_and_is_scored_at_both_ends(model, tmp_path):
    bundle, ((chosen, rejected),), _ = encoded(model, write(tmp_path, [PAIR]), "preference")
    assert bundle.decode(chosen.input_ids) == "count: one two" + bundle.eos_token
    assert bundle.decode(rejected.input_ids) == "count: three" + bundle.eos_token
    assert chosen.ends == [len(chosen.input_ids) - 1] and chosen.targets == []


def test_an_outcome_is_scored_at_its_end_and_its_prompt_gives_way(model, tmp_path):
    bundle, ((one,),), _ = encoded(model, write(tmp_path, [OUTCOME]), "outcome")
    assert bundle.decode(one.input_ids) == "count: one two" + bundle.eos_token
    assert one.ends == [len(one.input_ids) - 1] and one.targets == [1.0]
    _, ((cut,),), _ = encoded(model, write(tmp_path, [OUTCOME]), "outcome", len(one.input_ids) - 1)
    assert cut.input_ids == one.input_ids[1:] and cut.full_length == len(one.input_ids)
    _, none, (problem,) = encoded(model, write(tmp_path, [OUTCOME]), "outcome", 2)
    assert none == [] and problem.code == "answers_do_not_fit" and problem.needed <= len(one.input_ids)


def test_every_step_of_a_process_is_scored_at_its_line_break(model, tmp_path):
    bundle, ((one,),), _ = encoded(model, write(tmp_path, [PROCESS]), "process")
    assert bundle.decode(one.input_ids) == "count: one\ntwo three\n"
    first, second = one.ends
    assert bundle.decode(one.input_ids[: first + 1]) == "count: one\n" and second == len(one.input_ids) - 1
    assert one.targets == [1.0, 0.0]


def test_conversations_use_the_template_and_plain_text_does_if_it_is_wrapped(model, tmp_path):
    asked = [{"role": "user", "content": "count: "}]
    told = [{"role": "assistant", "content": "one two"}]
    rows = write(tmp_path, [{**OUTCOME, "prompt": asked, "response": told}])
    bundle, ((turns,),), _ = encoded(model, rows, "outcome")
    assert bundle.decode(turns.input_ids).strip() == bundle.render([*asked, *told]).strip()
    _, ((wrapped,),), _ = encoded(model, write(tmp_path, [OUTCOME]), "outcome", wrap=True)
    assert wrapped.input_ids == turns.input_ids
    _, ((process,),), _ = encoded(model, write(tmp_path, [{**PROCESS, "prompt": asked}]), "process")
    assert bundle.decode(process.input_ids) == bundle.render(asked, None, True) + "one\ntwo three\n"


def test_columns_may_have_other_names_and_hostile_rows_are_left_out(model, tmp_path):
    renamed = {k: v for k, v in OUTCOME.items() if k != "response"} | {"answer": "one two"}
    path = write(
        tmp_path, [renamed, {**OUTCOME, "response": "\ud800"}, {**PROCESS, "steps": [{"text": "\ud800", "reward": 1}]}]
    )
    _, found, problems = encoded(model, path, "outcome", mapping={"response": "answer"})
    assert len(found) == 1 and len(problems) <= 1
    _, found, _ = encoded(model, path, "process")
    assert found == []


def test_a_split_is_kept_apart_and_rows_without_one_are_trained(tmp_path):
    rows = [PAIR, {**PAIR, "split": "eval"}, {**PAIR, "split": None}]
    selection = Selection("preference", "train")
    kept = [selection.takes(row.example) for row in iter_rows(write(tmp_path, rows))]
    assert kept == [True, False, True]
    assert all(Selection("preference", None).takes(row.example) for row in iter_rows(write(tmp_path, rows)))


def report(model, tmp_path, rows, **options):
    values = {**OPTIONS, **options}
    query = DatasetQuery(
        path=write(tmp_path, rows), method="reward_model", model_dir=model, max_seq_length=64, options=values
    )
    return check(query)


def several(row, n=8):
    """Rows that differ; of every second outcome and step the reward is 0."""
    return [
        {**row, "example_id": f"e{i}", "prompt": f"case {i}: "} | ({"reward": float(i % 2)} if "reward" in row else {})
        for i in range(n)
    ]


@pytest.mark.parametrize("row", [PAIR, OUTCOME, PROCESS])
def test_a_sound_file_of_each_kind_can_be_trained_on(model, tmp_path, row):
    found = report(model, tmp_path, several(row))
    assert found.blocking == [] and found.valid_rows == found.train_rows == 8, found.findings
    assert found.tokens.total > 0 and found.format == "reward"


@pytest.mark.parametrize(
    ("rows", "options", "code"),
    [
        ([*several(PAIR), *several(OUTCOME)], {}, "reward_kinds_mixed"),
        (several(OUTCOME), {"reward_kind": "preference"}, "no_rows_of_split"),
        (several(PAIR), {"reward_train_split": "fit"}, "no_rows_of_split"),
        ([*several(PAIR), {**PAIR, "prompt": " CASE  1:", "split": "eval"}], {}, "eval_only_leakage"),
        ([{**row, "reward": 1.0} for row in several(OUTCOME)], {}, "rewards_without_contrast"),
        ([{**row, "reward": 7.0 * i} for i, row in enumerate(several(OUTCOME))], {"reward_loss": "bce"}, "rewards_outside_unit"),
        (several(OUTCOME), {"reward_center_coefficient": 0.1}, "centering_without_pairs"),
        ([{**row, "response": "long " * 99} for row in several(OUTCOME)], {}, "answers_do_not_fit"),
    ],
)  # fmt: skip
def test_what_makes_training_pointless_blocks_it(model, tmp_path, rows, options, code):
    found = report(model, tmp_path, rows, **options)
    assert code in found.blocking, found.findings


def test_rows_that_are_left_out_are_counted(model, tmp_path):
    found = report(
        model,
        tmp_path,
        [*several(PAIR), *several(OUTCOME), {**PAIR, "prompt": "new", "split": "eval"}],
        reward_kind="preference",
    )
    assert found.blocking == [] and found.valid_rows == 8
    assert {"rows_of_other_kinds", "rows_of_other_splits"} <= {finding.code for finding in found.findings}


def test_the_loss_follows_the_rewards_unless_it_is_named():
    assert loss_of({"reward_loss": "auto"}, 0, 1) == "bce"
    assert loss_of({"reward_loss": "auto"}, -1, 1) == loss_of({"reward_loss": "auto"}, 0, 10) == "mse"
    assert loss_of({"reward_loss": "mse"}, 0, 1) == "mse"


def test_a_model_that_is_no_file_of_ours_is_told_by_its_head(model, tmp_path):
    from bashgym.models.catalog import resolve

    folder = tmp_path / "judge"
    folder.mkdir()
    for path in model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    settings = Settings.from_env({"BASHGYM_DIR": str(tmp_path / "home")}, tmp_path)
    assert resolve(str(folder), settings).task == "CAUSAL_LM"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["Qwen2ForSequenceClassification"]}))
    with pytest.raises(BashGymError) as caught:
        resolve(str(folder), settings)
    assert caught.value.code == "unsupported_model"
    assert resolve(str(folder), settings, scorers=True).task == "SEQ_CLS"
