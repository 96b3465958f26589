"""Every field that all strategies have changes what is built, or is refused. A field without a line here fails."""

import json
import sqlite3
from functools import cached_property, partial
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from bashgym.core.errors import BashGymError
from bashgym.methods import registry
from bashgym.methods.common import COMMON, STORAGE_FIELDS
from bashgym.runs.prepare import refuse_blocked
from bashgym.store import budget
from bashgym.training import sft
from bashgym.training.loop import Job, _prepare_process

from .conftest import TINY
from .strategies import rows

pytestmark = pytest.mark.train


class Made:
    """A registered run that nothing launched, and on demand the trainer that its process would build."""

    def __init__(self, workspace, body):
        prepared = workspace.runs.check(body)
        refuse_blocked(prepared)
        self.run, _ = workspace.runs._begin(prepared)
        self.request, self.manifest = self.run.request(), self.run.manifest()
        self.database = workspace.settings.home / "bashgym.sqlite3"

    @cached_property
    def built(self):
        _prepare_process(self.request)
        return sft.build(Job(self.run, self.request, self.manifest))

    @property
    def args(self):
        return self.built.trainer.args

    @property
    def lora(self):
        return self.built.trainer.model.peft_config["default"]

    @property
    def row(self):
        """The run's line in the index, every column."""
        with sqlite3.connect(self.database) as connection:
            connection.row_factory = sqlite3.Row
            found = connection.execute("select * from runs where run_id = ?", (self.run.run_id,))
            return dict(found.fetchone())


def arg(name):
    return lambda made: getattr(made.args, name)


def lora(name):
    return lambda made: getattr(made.lora, name)


def _tokens(made):
    return sum(len(row["input_ids"]) for row in made.built.trainer.train_dataset)


def _trainable(made):
    return sum(p.numel() for p in made.built.trainer.model.parameters() if p.requires_grad)


def _drawn(made):
    """The adapter as it was drawn, and the order of the rows."""
    first = next(p for name, p in made.built.trainer.model.named_parameters() if "lora_A" in name)
    return float(first.detach().sum()), made.args.seed, made.args.data_seed


def _optimizer(made):
    return type(made.built.trainer.create_optimizer()).__name__


def _threads(made):
    _prepare_process(made.request)
    return torch.get_num_threads()


def _evaluated(made):
    return len(made.built.trainer.eval_dataset or [])


CHANGES = {
    # field: (another value, what has to differ, further fields of both runs)
    "dataset_path": ("OTHER", lambda made: len(made.built.trainer.train_dataset), {}),
    "base_model": ("FOLDER", lambda made: made.manifest["model"]["path"], {}),
    "num_epochs": (2, arg("num_train_epochs"), {}),
    "max_steps": (5, arg("max_steps"), {}),
    "batch_size": (2, arg("per_device_train_batch_size"), {}),
    "gradient_accumulation_steps": (4, arg("gradient_accumulation_steps"), {}),
    "max_seq_length": (48, _tokens, {"dataset_path": "LONG"}),
    "seed": (7, _drawn, {}),
    "learning_rate": (0.5, arg("learning_rate"), {}),
    "warmup_ratio": (0.5, arg("warmup_steps"), {}),
    "weight_decay": (0.3, arg("weight_decay"), {}),
    "max_grad_norm": (0.5, arg("max_grad_norm"), {}),
    "lr_scheduler_type": ("cosine", arg("lr_scheduler_type"), {}),
    "optim": ("adafactor", _optimizer, {}),
    "dtype": ("bfloat16", lambda made: (made.args.bf16, next(made.built.trainer.model.parameters()).dtype), {}),
    "gradient_checkpointing": (True, arg("gradient_checkpointing"), {}),
    "use_lora": (False, _trainable, {}),
    "lora_rank": (2, lora("r"), {}),
    "lora_alpha": (99, lora("lora_alpha"), {}),
    "lora_dropout": (0.4, lora("lora_dropout"), {}),
    "lora_target_modules": (["q_proj"], _trainable, {}),
    "eval_dataset_path": ("OTHER", _evaluated, {}),
    "eval_split": (0.25, _evaluated, {}),
    "eval_steps": (3, arg("eval_steps"), {"eval_split": 0.25}),
    "save_steps": (9, arg("save_steps"), {}),
    "logging_steps": (2, arg("logging_steps"), {}),
    "sample_prompts": (3, lambda made: len(made.built.sample_prompts), {}),
    "num_processes": (2, lambda made: made.manifest["backend"]["processes"], {}),
    "torch_threads": (2, _threads, {}),
    "report_to": (["tensorboard"], arg("report_to"), {}),
    "trainer_args": ({"adam_beta2": 0.9}, arg("adam_beta2"), {}),
    "max_minutes": (5.0, lambda made: budget.limit(made.request), {}),
    "max_cost": (1.0, lambda made: budget.limit(made.request), {"cost_per_hour": 2.0}),
    "cost_per_hour": (2.0, lambda made: budget.limit(made.request), {"max_cost": 1.0, "was": {"cost_per_hour": 4.0}}),
    "run_id": ("run_mine", lambda made: made.run.path.name, {}),
    "correlation_id": ("c-1", lambda made: made.row["correlation_id"].replace(made.run.run_id, ""), {}),
    "origin": ({"kind": "agent"}, lambda made: made.row["origin"], {}),
}

REFUSED = {
    # field: (value, error code, further fields)
    "strategy": ("no_such_strategy", "unknown_strategy", {}),
    "model_type": ("llama", "unsupported_model", {}),
    "load_in_4bit": (True, "quantization_unavailable", {}),
    "data_source": ("traces", "invalid_field", {}),
    "dataset_format": ("alpaca", "dataset_format", {}),
    "column_mapping": ({"messages": "no_such_column"}, "dataset_format", {}),
    "distributed": ("fsdp", "target_unavailable", {"num_processes": 2}),
    "distributed_config": ({"fsdp_version": 2}, "invalid_field", {}),
    "report_to": (["wandb"], "missing_extra", {}),
    "optim": ("adamw_torhc", "invalid_field", {}),
    "trainer_args": ({"activation_checkpointing": True}, "field_has_flag", {}),
    "compute_target": ("ssh:box", "target_unavailable", {}),
    "use_remote_ssh": (True, "target_unavailable", {}),
    "device_id": ("box", "target_unavailable", {}),
    "use_nemo_customizer": (True, "target_unavailable", {}),
    "use_nemo_gym": (True, "target_unavailable", {}),
    "tracking": ({"nonsense": True}, "training_tracking_invalid", {}),
}

ELSEWHERE = {
    "idempotency_key": "test_faults.py",  # one run for one key
}
"""Proved by a whole run in that file."""

ARTIFACTS = {field.name for field in STORAGE_FIELDS}
"""What is left after a run: the tests of retention, export and push."""


def test_every_common_field_has_a_line():
    known = set(CHANGES) | set(REFUSED) | set(ELSEWHERE) | ARTIFACTS
    assert {field.name for field in COMMON} == known


@pytest.fixture
def paths(tmp_path, workspace):
    other = tmp_path / "other.jsonl"
    row = {"messages": [{"role": "user", "content": "Say 7."}, {"role": "assistant", "content": "7"}]}
    other.write_text("".join(json.dumps(row) + "\n" for _ in range(9)))
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in workspace.model(TINY).path.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    long = tmp_path / "long.jsonl"
    row["messages"][1]["content"] = "7 and " * 30
    long.write_text("".join(json.dumps(row) + "\n" for _ in range(9)))
    return {"OTHER": str(other), "LONG": str(long), "FOLDER": str(folder)}


@pytest.mark.parametrize("field", sorted(CHANGES))
def test_another_value_changes_the_run(field, workspace, body, paths):
    value, observe, further = CHANGES[field]
    value = paths.get(value, value) if isinstance(value, str) else value
    further = {name: paths.get(str(given), given) for name, given in further.items()}
    before = {**body, **further.pop("was", {})}
    base = observe(Made(workspace, {**before, **further}))
    changed = observe(Made(workspace, {**before, **further, field: value}))
    assert changed != base, f"{field} {value!r} leaves {base!r}"


@pytest.mark.parametrize("field", sorted(REFUSED))
def test_what_cannot_be_done_is_refused_by_name(field, workspace, body):
    value, code, further = REFUSED[field]
    with pytest.raises(BashGymError) as caught:
        Made(workspace, {**body, **further, field: value})
    assert caught.value.code == code, caught.value.message


def test_a_column_mapping_makes_foreign_columns_readable(workspace, body, tmp_path):
    renamed = tmp_path / "renamed.jsonl"
    lines = [json.loads(line) for line in Path(body["dataset_path"]).read_text().splitlines()]
    renamed.write_text("".join(json.dumps({"conv": line["messages"]}) + "\n" for line in lines))
    made = Made(workspace, {**body, "dataset_path": str(renamed), "column_mapping": {"messages": "conv"}})
    assert len(made.built.trainer.train_dataset) == len(lines)


def test_the_strategy_decides_the_trainer(workspace, body, tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows("dpo")))
    made = Made(workspace, {**body, "strategy": "dpo", "dataset_path": str(pairs)})
    assert made.manifest["strategy"] == "dpo" and made.row["training_method"] == "dpo"
    assert registry.get("dpo").builder != registry.get("sft").builder


class _Gradients(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        named = kwargs["model"].named_parameters()
        self.found = {name: p.grad.clone() for name, p in named if p.grad is not None}


def _step(made):
    """(loss, gradients, how often a decoder layer ran) of one optimizer step."""
    trainer, calls, gradients = made.built.trainer, [], _Gradients()
    layer = next(module for name, module in trainer.model.named_modules() if name.endswith("layers.0.mlp"))
    layer.register_forward_pre_hook(lambda *_: calls.append(1))
    trainer.add_callback(gradients)
    loss = trainer.train().training_loss
    return loss, gradients.found, len(calls)


@pytest.mark.parametrize("use_lora", [True, False])
def test_gradient_checkpointing_recomputes_and_gives_the_same_gradients(workspace, body, use_lora):
    request = partial(dict, body, use_lora=use_lora, lora_dropout=0.0, max_steps=1, save_steps=9, max_grad_norm=0)
    loss, gradients, calls = _step(Made(workspace, request()))
    again, recomputed, more = _step(Made(workspace, request(gradient_checkpointing=True)))
    assert (calls, more) == (1, 2), "the layer runs a second time, in the backward pass"
    assert again == pytest.approx(loss, abs=1e-5)
    assert gradients.keys() == recomputed.keys() and gradients
    for name in gradients:
        assert torch.allclose(gradients[name], recomputed[name], atol=1e-5), name
