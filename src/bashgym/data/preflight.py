"""`check`: everything that can be known of a run's data before compute is spent, without torch.

Owns the order of the checks, the step arithmetic and the report. The contract of the rows, duplicates and splits are
their modules'; what tokens show is token_checks'. Two passes over the file, memory bounded by one batch of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from bashgym.core.errors import fail
from bashgym.data.types import Finding, LossPolicy, Severity

SCHEMA = "bashgym.preflight.v1"
TOKEN_PASSES = {
    "sft": "bashgym.data.preflight",
    "dpo": "bashgym.data.dpo_checks",
    "grpo": "bashgym.data.grpo_checks",
    "rlvr": "bashgym.data.grpo_checks",
    "distillation": "bashgym.data.distillation_checks",
    "session_distillation": "bashgym.data.session_checks",
    "dppo": "bashgym.data.dppo_checks",
    "reward_model": "bashgym.data.reward_checks",
}
"""Method -> the module whose `token_pass(query, model_dir)` gives (TokenStats, trainable rows, findings)."""
OWN_CODES = frozenset({"eval_split_rounds_to_zero", "too_few_rows", "packing_unavailable", "packing_without_kernel"})
"""Codes of the findings that are made here."""


class TokenStats(msgspec.Struct, frozen=True):
    """Token figures of a dataset."""

    total: int
    """Tokens that training sees in an epoch."""
    supervised: int
    """Those of them that are trained."""
    max: int
    """Longest row before truncation; p50 and p95 likewise."""
    p50: int
    p95: int
    truncated_rows: int
    zero_supervised_rows: int


@dataclass(frozen=True)
class DatasetQuery:
    """What preflight needs to know of a request."""

    path: Path
    method: str = "sft"
    model_dir: Path | None = None
    """Folder of the tokenizer. None: no check that needs one."""
    max_seq_length: int = 1024
    assistant_only_loss: bool | None = None
    completion_only_loss: bool | None = None
    dataset_format: str = "auto"
    column_mapping: dict[str, str] | None = None
    eval_path: Path | None = None
    eval_split: float = 0.0
    """Share of the rows held out, where there is no `eval_path`."""
    seed: int = 42
    batch_size: int = 1
    """Rows per process and micro-batch."""
    gradient_accumulation_steps: int = 1
    num_processes: int = 1
    num_epochs: float = 1.0
    max_steps: int = -1
    """Above 0: this many optimizer steps, whatever `num_epochs` says."""
    packing: bool = False
    device: str = "cpu"
    """cpu or cuda; decides whether packing can have its attention kernel."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The whole request, for what only one method asks."""

    @property
    def global_batch(self) -> int:
        """Rows of one optimizer step."""
        return self.batch_size * self.gradient_accumulation_steps * self.num_processes


class PreflightReport(msgspec.Struct, frozen=True, kw_only=True):
    """What preflight found. JSON-able."""

    schema_version: str = SCHEMA
    path: str
    sha256: str
    format: str
    rows: int
    """Rows of the file."""
    valid_rows: int
    """Rows that keep the contract and, with a tokenizer, can be trained on."""
    train_rows: int
    eval_rows: int
    steps_per_epoch: int
    total_steps: int
    tokens: TokenStats | None = None
    findings: list[Finding] = []
    blocking: list[str] = []
    """Codes of the errors, each once."""


def check(query: DatasetQuery) -> PreflightReport:
    """Reads, tokenises and judges the dataset. Raises `dataset_*`, `model_incomplete` and `template_failed`."""
    from bashgym.data.contracts import check_dataset

    for path in filter(None, (query.path, query.eval_path)):
        if not path.is_file():
            raise fail("dataset_missing", f"there is no dataset file {path}", fields=["dataset_path"])
    contract = check_dataset(
        query.path,
        query.method,
        dataset_format=query.dataset_format,
        column_mapping=query.column_mapping,
        reward_mode=query.options.get("grpo_reward_mode"),
    )
    found = list(contract.findings)
    valid, tokens = contract.valid_rows, None
    if query.model_dir is not None:
        tokens, valid, more = import_module(TOKEN_PASSES[query.method]).token_pass(query, query.model_dir)
        found += more
    eval_rows, more = _eval_rows(query, valid)
    train_rows = valid if query.eval_path else valid - eval_rows
    units = math.ceil(tokens.total / query.max_seq_length) if query.packing and tokens else train_rows
    if prompts := query.options.get("prompts_per_rollout_batch") if query.method in ("grpo", "rlvr") else None:
        # Steps count sampled answers; prompts that fill no rollout batch are left out of an epoch.
        units = train_rows // prompts * prompts * query.options["grpo_group_size"]
        per_epoch, total = steps(query, units)
        found += [*more, *_rollout_findings(prompts, train_rows)]
    else:
        per_epoch, total = steps(query, units)
        found += [*more, *_batch_findings(query, valid, train_rows, per_epoch, total)]
    found.sort(key=lambda finding: list(Severity).index(finding.severity))
    return PreflightReport(
        path=str(query.path),
        sha256=contract.sha256,
        format=contract.format,
        rows=contract.rows,
        valid_rows=valid,
        train_rows=train_rows,
        eval_rows=eval_rows,
        steps_per_epoch=per_epoch,
        total_steps=total,
        tokens=tokens,
        findings=found,
        blocking=list(dict.fromkeys(f.code for f in found if f.severity is Severity.ERROR)),
    )


def blocking(report: PreflightReport, forced: Iterable[str] = (), known: Iterable[str] = ()) -> list[Finding]:
    """The errors that are not forced. `unknown_finding` for a forced code that no check has.

    `known`: codes of checks elsewhere, for callers that force findings of several reports at once.
    """
    forced = set(forced)
    unknown = forced - {finding.code for finding in report.findings} - set(known)
    if unknown:
        from bashgym.data.token_checks import CODES

        unknown -= CODES.keys() | OWN_CODES
        for module in {*TOKEN_PASSES.values()} - {__name__}:
            unknown -= import_module(module).CODES.keys()
    if unknown:
        hint = f"This report's errors: {', '.join(report.blocking) or 'none'}."
        raise fail("unknown_finding", f"no check finds {', '.join(sorted(unknown))}", hint=hint, fields=["force"])
    return [f for f in report.findings if f.severity is Severity.ERROR and f.code not in forced]


def steps(query: DatasetQuery, rows: int) -> tuple[int, int]:
    """Optimizer steps per epoch and in all, as the Hugging Face Trainer counts: partial batches are not dropped."""
    batches = math.ceil(math.ceil(rows / query.batch_size) / query.num_processes)
    per_epoch = math.ceil(batches / query.gradient_accumulation_steps)
    if not rows:
        return 0, 0
    return per_epoch, query.max_steps if query.max_steps > 0 else math.ceil(query.num_epochs * per_epoch)


def token_pass(query: DatasetQuery, model_dir: Path) -> tuple[TokenStats, int, list[Finding]]:
    """Of SFT rows: figures, rows that training sees, and findings."""
    from bashgym.data import token_checks
    from bashgym.data.encode import iter_full, loss_policy
    from bashgym.data.formats import iter_examples
    from bashgym.data.tokens import TokenizerBundle

    bundle = TokenizerBundle.load(model_dir)
    scan = token_checks.Scan(bundle, query.max_seq_length)
    examples = iter_examples(query.path, [], dataset_format=query.dataset_format, column_mapping=query.column_mapping)
    first = next(examples, None)
    if first is None:
        return scan.stats(), 0, []
    policy: LossPolicy = loss_policy(first, query.assistant_only_loss, query.completion_only_loss)
    watched = scan.watch(chain([first], examples))
    limits = {"max_length": query.max_seq_length, "batch": 2048}
    for full in iter_full(bundle, watched, **limits, policy=policy, on_problem=scan.refuse):
        scan.add(full)
    return scan.stats(), scan.trainable, token_checks.findings(scan, policy, query.assistant_only_loss)


def _eval_rows(query: DatasetQuery, rows: int) -> tuple[int, list[Finding]]:
    if query.eval_path:
        from bashgym.data.contracts import check_dataset

        held_out = check_dataset(
            query.eval_path,
            query.method,
            dataset_format=query.dataset_format,
            column_mapping=query.column_mapping,
            reward_mode=query.options.get("grpo_reward_mode"),
        )
        errors = [
            msgspec.structs.replace(finding, field="eval_path", message=f"eval file: {finding.message}")
            for finding in held_out.findings
            if finding.severity is not Severity.INFO
        ]
        return held_out.valid_rows, [*errors, *_overlap(query, query.eval_path)]
    if not query.eval_split:
        return 0, []
    from bashgym.data.splits import eval_indices

    held = len(eval_indices(rows, query.eval_split, query.seed))
    if round(rows * query.eval_split):
        return held, []
    text = f"eval_split {query.eval_split} of {rows} rows rounds to 0 eval rows; {held} held out: its loss says little"
    mend = "Raise eval_split, add rows or give an eval file."
    return held, [Finding("eval_split_rounds_to_zero", Severity.WARNING, text, mend, field="eval_split")]


def _overlap(query: DatasetQuery, eval_path: Path) -> list[Finding]:
    from bashgym.data.duplicates import overlap

    return overlap(query.path, eval_path, dataset_format=query.dataset_format, column_mapping=query.column_mapping)


def _rollout_findings(prompts: int, rows: int) -> list[Finding]:
    if rows >= prompts:
        return []
    text = f"{rows} prompts can be trained on, and one rollout batch takes {prompts}: there is no step"
    mend = "Lower prompts_per_rollout_batch (or the batch size, which it follows), or add rows."
    return [Finding("too_few_rows", Severity.ERROR, text, mend, field="prompts_per_rollout_batch", count=rows)]


def _batch_findings(query: DatasetQuery, valid: int, rows: int, per_epoch: int, total: int) -> list[Finding]:
    found = []
    sizes = [query.batch_size, query.gradient_accumulation_steps]
    sizes += [query.num_processes] if query.num_processes > 1 else []
    if rows < query.global_batch:
        held = f" ({valid - rows} held out)" if valid > rows else ""
        text = (
            f"{valid} rows / ({' x '.join(map(str, sizes))}) = {valid / query.global_batch:.2f} of one global batch"
            f"{held}: {per_epoch} optimizer steps per epoch, {total} steps in all"
        )
        # One part-filled step is no training; with max_steps or several epochs somebody meant it.
        severity = Severity.ERROR if total < 1 or (total == 1 and query.max_steps <= 0) else Severity.WARNING
        mend = "Lower the batch size or gradient_accumulation_steps, train more epochs, or add rows."
        found.append(Finding("too_few_rows", severity, text, mend, field="gradient_accumulation_steps", count=rows))
    if query.packing and query.device == "cpu":
        text = (
            "packing needs a variable-length attention kernel, and none runs on a CPU: packed rows would see each other"
        )
        found.append(Finding("packing_unavailable", Severity.ERROR, text, "Set packing to false.", field="packing"))
    elif query.packing:
        text = "packing pays only with a variable-length attention kernel such as flash_attention_2"
        mend = "Set packing to false if the kernel is not installed."
        found.append(Finding("packing_without_kernel", Severity.WARNING, text, mend, field="packing"))
    return found
