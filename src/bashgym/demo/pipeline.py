"""The demo's steps: corpus, SFT, evaluation, RunCard, RLVR from the SFT model, its evaluation, report.

Real services, real files, no shortcuts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bashgym.core.errors import fail
from bashgym.core.files import atomic_write_bytes, writable_dir
from bashgym.demo.report import write_report
from bashgym.demo.story import SecondAct, Story
from bashgym.envs import sandbox
from bashgym.envs.terminal import environment_rows, training_rows
from bashgym.evals.canaries import run as run_canaries
from bashgym.evidence import runcard
from bashgym.evidence.release import build_release_evidence
from bashgym.models.catalog import fetch
from bashgym.models.tiny import NAME as TINY
from bashgym.store.run_dir import RunStatus
from bashgym.workspace import Workspace

Progress = Callable[[str, float, str], None]
"""Called with (step, share done in 0..1, what to show)."""

EVAL_SEED = 58211
"""The suite's seed belongs to the protocol: it does not follow the training seed.

Recipes were chosen while looking at seeds 7 and 2027 (and one was scored at 90417); this one was first evaluated after
they were fixed. Whoever changes a recipe because of a score on it has to move it on.
"""


@dataclass(frozen=True)
class Recipe:
    """How one model is taught in the demo."""

    rows: int
    settings: dict[str, Any]
    suite: str
    per_family: int
    max_new_tokens: int
    notes: tuple[str, ...]
    unverified: float = 0.0
    """Share of wrong answers in every other family of the demonstrations."""
    rlvr: dict[str, Any] = field(default_factory=dict)
    """Settings of the second act; empty: there is none."""
    rlvr_tasks_per_family: int = 20


RECIPES = {
    TINY: Recipe(
        rows=25_600,
        settings={
            "use_lora": False,
            "num_epochs": 1,
            "batch_size": 64,
            "gradient_accumulation_steps": 1,
            "learning_rate": 3e-3,
            "lr_scheduler_type": "cosine",
            "warmup_ratio": 0.1,
            "max_seq_length": 96,
            "save_steps": 100,
            "artifact_retention": "adapter_only",
            "sample_prompts": 3,
        },
        suite="terminal",
        per_family=15,
        max_new_tokens=48,
        notes=(
            "bashgym/tiny-qwen2 starts from random weights, so its baseline knows nothing.",
            "Nobody ran the demonstrations that SFT imitates: in every other task family three of five miss.",
        ),
        unverified=0.6,
        rlvr={
            "grpo_reward_mode": "environment",
            "use_lora": False,
            "batch_size": 64,
            "gradient_accumulation_steps": 2,
            "prompts_per_rollout_batch": 16,
            "grpo_num_generations": 8,
            "grpo_temperature": 1.0,
            "grpo_loss_type": "dapo",
            "filter_zero_std_groups": True,
            "learning_rate": 3e-4,
            "lr_scheduler_type": "constant_with_warmup",
            "max_steps": 14,
            "max_seq_length": 112,
            "max_completion_length": 48,
            "save_steps": 100,
            "sample_prompts": 0,
        },
    ),
    "bashgym/smollm2-135m-instruct": Recipe(
        rows=800,
        settings={
            "use_lora": True,
            "lora_rank": 16,
            "lora_alpha": 32,
            "lora_dropout": 0.0,
            "num_epochs": 1,
            "batch_size": 8,
            "gradient_accumulation_steps": 1,
            "learning_rate": 5e-4,
            "lr_scheduler_type": "cosine",
            "warmup_ratio": 0.1,
            "max_seq_length": 192,
            "save_steps": 50,
            "sample_prompts": 3,
        },
        suite="terminal-instruct",
        per_family=6,
        max_new_tokens=48,
        notes=("The baseline is the untouched instruct model, told to answer with one shell command.",),
    ),
}


@dataclass
class Demo:
    """One demo run: what it has done so far and how long each step took."""

    workspace: Workspace
    folder: Path
    model: str
    seed: int
    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Times a step and shows it beginning and done."""
        self.progress(name, 0.0, "")
        begin = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - begin
        self.progress(name, 1.0, f"{self.seconds[name]:.0f} s")


def run(
    workspace: Workspace, folder: Path, *, model: str = TINY, seed: int = 7, progress: Progress = lambda *_: None
) -> dict[str, Any]:
    """The whole job. Returns {verdict, run_id, report, card, ...}; every failure is a typed error."""
    if model not in RECIPES:
        raise fail(
            "model_missing",
            f"the demo has no recipe for {model!r}",
            hint=f"It knows {', '.join(RECIPES)}.",
            fields=["model"],
        )
    sandbox.require()
    recipe = RECIPES[model]
    demo = Demo(workspace, writable_dir(folder), model, seed, progress)
    with demo.step("model"):
        fetch(model, workspace.settings)
    with demo.step("corpus"):
        dataset = _write_corpus(demo, recipe)
    with demo.step("SFT"):
        body = {"strategy": "sft", "base_model": model, "dataset_path": str(dataset), **recipe.settings}
        run_id = _train(demo, "SFT", body)
    with demo.step("evaluation"):
        reports = _evaluate(demo, recipe, run_id)
    with demo.step("RunCard"):
        card, card_path = _card(demo, run_id, next(iter(reports.values())), "sft")
    second = _second_act(demo, recipe, run_id) if recipe.rlvr else None
    with demo.step("report"):
        run_dir = workspace.runs.locate(run_id)
        story = Story(run_dir, reports, card, card_path, demo.seconds, list(recipe.notes), second)
        page = write_report(story, demo.folder)
    return _summary(demo, story, page)


def _second_act(demo: Demo, recipe: Recipe, sft_run: str) -> SecondAct:
    """RLVR on tasks of the same families, from the SFT model, which is then the baseline on the same held-out tasks."""
    rows = environment_rows(demo.seed + 1, recipe.rlvr_tasks_per_family)
    dataset = _write(demo.folder / "tasks.jsonl", rows)
    with demo.step("RLVR"):
        body = {"strategy": "rlvr", "base_model": sft_run, "dataset_path": str(dataset), **recipe.rlvr}
        run_id = _train(demo, "RLVR", body)
    with demo.step("evaluation of RLVR"):
        report = _score(demo, recipe, "heldout_values", model=run_id, baseline=sft_run, step="evaluation of RLVR")
    with demo.step("canaries"):
        canaries = _canaries(demo, run_id)
    card, card_path = _card(demo, run_id, report, "rlvr", {"canaries": canaries})
    return SecondAct(demo.workspace.runs.locate(run_id), report, card, card_path)


def _write_corpus(demo: Demo, recipe: Recipe) -> Path:
    """The demonstrations, from the suite's train split only."""
    system = _system_prompt(recipe)
    rows = training_rows(demo.seed, recipe.rows, unverified=recipe.unverified)
    return _write(demo.folder / "train.jsonl", ({**row, "messages": [*system, *row["messages"]]} for row in rows))


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    atomic_write_bytes(path, "".join(lines).encode())
    return path


def _system_prompt(recipe: Recipe) -> list[dict[str, str]]:
    from bashgym.evals.suites import system_prompt

    text = system_prompt(recipe.suite)
    return [{"role": "system", "content": text}] if text else []


def _train(demo: Demo, step: str, body: dict[str, Any]) -> str:
    """Starts the run and shows it until its end; the id of a completed run."""
    runs = demo.workspace.runs
    body = {**body, "compute_target": "local", "seed": demo.seed}
    run_id = str(runs.start(body, origin={"kind": "demo"})["run_id"])
    try:
        while (state := runs.get(run_id))["status"] not in ("completed", "failed", "cancelled", "paused"):
            done, total = state["progress"].get("step") or 0, state["progress"].get("total_steps")
            left = state["progress"].get("eta_s")
            shown = f"step {done}/{total}{_objective(state['metrics'])}" if total else state["status"]
            demo.progress(step, done / total if total else 0.0, shown + (f"  {left:.0f} s left" if left else ""))
            time.sleep(0.3)
    except KeyboardInterrupt:
        runs.stop(run_id)
        raise
    if state["status"] != RunStatus.COMPLETED:
        error = state["error"] or {}
        raise fail(
            "training_failed",
            f"{run_id} ended {state['status']}: {error.get('message', state['message'])}",
            hint=str(error.get("hint", "")),
        )
    return run_id


def _objective(metrics: Mapping[str, Any]) -> str:
    name = next((name for name in ("reward", "loss") if isinstance(metrics.get(name), float)), "")
    return f"  {name} {metrics[name]:.3f}" if name else ""


def _evaluate(demo: Demo, recipe: Recipe, run_id: str) -> dict[str, dict[str, Any]]:
    """Held-out values decide; held-out families are measured beside them and shown."""
    splits = {"held-out values": ("heldout_values", (0.0, 0.5)), "held-out families": ("heldout_families", (0.5, 1.0))}
    return {
        name: _score(demo, recipe, split, model=run_id, baseline=demo.model, step="evaluation", part=part)
        for name, (split, part) in splits.items()
    }


def _score(
    demo: Demo,
    recipe: Recipe,
    split: str,
    *,
    model: str,
    baseline: str,
    step: str,
    part: tuple[float, float] = (0.0, 1.0),
) -> dict[str, Any]:
    """The report of `model` against `baseline`; `part` is the share of the step's progress that it fills."""

    def show(share: float, text: str) -> None:
        demo.progress(step, part[0] + share * (part[1] - part[0]), f"{split.replace('_', ' ')}: {text}")

    return demo.workspace.evals.run(
        suite=recipe.suite,
        split=split,
        model=model,
        baseline=baseline,
        seed=EVAL_SEED,
        per_family=recipe.per_family,
        max_new_tokens=recipe.max_new_tokens,
        run_id=model,
        progress=show,
    )


def _canaries(demo: Demo, run_id: str) -> Path:
    """Attacks on the sandbox, and on the verifiers that paid the rewards: one task of each family."""
    specs = [row["environment"] for row in environment_rows(demo.seed + 1, 1)]

    def show(done: int, total: int) -> None:
        demo.progress("canaries", done / total, f"{done}/{total} attacks")

    found = run_canaries(demo.workspace.settings, {"run_id": run_id, "environments": specs}, show)
    return Path(found["output_path"])


def _card(
    demo: Demo, run_id: str, report: dict[str, Any], method: str, evidence: dict[str, Path] | None = None
) -> tuple[dict[str, Any], Path]:
    """Release evidence from the gate's evaluation, then a card that asks for promotion."""
    run = demo.workspace.runs.locate(run_id)
    eval_report = demo.workspace.evals.report_path(report["eval_id"])
    release = build_release_evidence(eval_report, run_dir=run.path, output=run.file("release_evidence.json"))
    card_path = run.file("run_card.json")
    card = runcard.create(
        run_id=run_id,
        training_method=method,
        base_model=run.manifest()["model"]["name"],
        compute_target="local",
        output=card_path,
        metrics=run.metrics_path,
        release_evidence=run.file("release_evidence.json"),
        claim_tier="narrow_routing",
        evidence=dict(evidence or {}),
        decision="promote" if release["ship"] else "hold",
        promotion=True,
    )
    return card, card_path


def _summary(demo: Demo, story: Story, page: Path) -> dict[str, Any]:
    rate = story.main_report["pass_rate"]
    return {
        "verdict": story.verdict(),
        "promoted": story.promoted(),
        "model": demo.model,
        "run_id": story.run.run_id,
        "pass_rate": {"baseline": rate["baseline"]["value"], "candidate": rate["candidate"]["value"]},
        "second_act": story.second and story.second.summary(),
        "comparison": {k: v for k, v in story.main_report["comparison"].items() if not isinstance(v, list)},
        "report": str(page.absolute()),
        "run_card": str(story.card_path),
        "run_dir": str(story.run.path),
        "seconds": {name: round(value, 1) for name, value in demo.seconds.items()},
        "notes": story.notes,
    }
