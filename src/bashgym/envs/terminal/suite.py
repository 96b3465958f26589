"""Builds the suite by seed, gives training rows, and judges completions by running them."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from bashgym.core.canonical import digest_json
from bashgym.core.errors import fail
from bashgym.envs import sandbox
from bashgym.envs.rollout import EpisodeResult, run_episode, unparsable
from bashgym.envs.sandbox import Limits
from bashgym.envs.spec import Build, EnvironmentSpec, Rollout, Verifier
from bashgym.envs.terminal.base import CONSONANTS, FAMILIES, VOWELS, Draft, Draw, Family, Split
from bashgym.envs.terminal.verifier import script

VERSION = "1"
"""Of the generator: the same version, split, seed and size give the same tasks."""
COMMAND_TIMEOUT_S = 5.0
MAX_TRIES = 200
"""Draws without a new instruction before a family counts as used up."""

SYSTEM_PROMPT = ""
"""A model trained on `training_rows` needs none."""
INSTRUCT_PROMPT = (
    "You are given a task in a Linux shell. Answer with one bash command that does it, on one line, no explanation.\n"
    "Example task: show the first line of notes.txt\nExample answer: head -n 1 notes.txt"
)
"""For a model that was not trained on the suite."""

_NAME = re.compile(rf"\b[{CONSONANTS}][{VOWELS}][{CONSONANTS}][{VOWELS}]\b")
_FENCE = re.compile(r"```[A-Za-z]*[ \t]*\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class TerminalTask:
    """One task with its expert solution. The model is shown `instruction` alone."""

    task_id: str
    family: str
    category: str
    split: str
    instruction: str
    solution: str
    wrong: tuple[str, ...]
    spec: EnvironmentSpec


def build(split: str, seed: int, per_family: int) -> list[TerminalTask]:
    """`per_family` tasks of each family of the split, no instruction twice; the same for the same arguments.

    `suite_unknown` for another split name; `invalid_field` where a family has fewer different tasks.
    """
    if split not in list(Split):
        raise fail(
            "suite_unknown", f"the terminal suite has no split {split!r}", f"It has {', '.join(Split)}.", ["split"]
        )
    tasks = []
    for family in _families(Split(split)):
        drafts = _drafts(family, _rng(split, family.name, seed), split != Split.TRAIN, set())
        for _ in range(per_family):
            if (draft := next(drafts, None)) is None:
                raise fail("invalid_field", f"{family.name} has fewer than {per_family} tasks", fields=["per_family"])
            tasks.append(_task(family, Split(split), draft))
    return tasks


def training_rows(seed: int, n: int, *, unverified: float = 0.0) -> Iterator[dict[str, Any]]:
    """`n` conversations of the train split, its families in turn, no instruction twice.

    `unverified` makes them demonstrations that nobody ran: in every other family this share of the answers is a
    plausible command that misses, the same habit each time.
    """
    rng, seen = _rng("rows", "", seed), set[str]()
    sources = [(family, _drafts(family, rng, False, seen)) for family in _families(Split.TRAIN)]
    careless, coin = {family.name for family, _ in sources[::2]}, _rng("unverified", "", seed)
    i = 0
    while i < n and sources:
        family, drafts = source = sources[i % len(sources)]
        if (draft := next(drafts, None)) is None:
            sources.remove(source)
            continue
        habit = family.name in careless and coin.random() < unverified
        yield {
            "messages": [
                {"role": "user", "content": draft.instruction},
                {"role": "assistant", "content": _miss(draft) if habit else draft.solution},
            ],
            "metadata": {"task_family": family.name, "split": Split.TRAIN.value, "source_id": f"terminal-{seed}-{i}"},
        }
        i += 1


def _miss(draft: Draft) -> str:
    """A wrong command that names nothing which the instruction does not."""
    fitting = (wrong for wrong in draft.wrong if all(name in draft.instruction for name in _NAME.findall(wrong)))
    return next(fitting, draft.wrong[0])


def environment_rows(seed: int, per_family: int) -> list[dict[str, Any]]:
    """Prompts of the train split with the environments that judge the answers, families mixed; no answers."""
    tasks = build(Split.TRAIN, seed, per_family)
    _rng("environments", "", seed).shuffle(tasks)
    return [
        {
            "prompt": [{"role": "user", "content": task.instruction}],
            "environment": task.spec.to_dict(),
            "metadata": {"task_family": task.family, "split": task.split, "source_id": task.task_id},
        }
        for task in tasks
    ]


def suite_digest(tasks: Iterable[TerminalTask]) -> str:
    """sha256 over id, instruction and environment (files, verifier, limits) of the tasks, in any order."""
    return digest_json(sorted([task.task_id, task.instruction, task.spec.digest()] for task in tasks))


def extract_command(completion: str) -> str | None:
    """The command of a completion: its first fenced block, else its only line, without surrounding backticks."""
    if fenced := _FENCE.search(completion):
        return fenced[1].strip() or None
    line = completion.strip()
    if len(line) > 2 and line[0] == line[-1] == "`" and line.count("`") == 2:
        line = line[1:-1].strip()
    return line if line and "\n" not in line else None


def judge(task: TerminalTask, completion: str) -> EpisodeResult:
    """Runs the completion's command in a fresh workspace and verifies the effect."""
    return judge_completion(task.spec, completion)


def judge_completion(spec: EnvironmentSpec, completion: str, limits: Limits = Limits()) -> EpisodeResult:  # noqa: B008 - frozen
    """`judge` for any environment that one command can solve."""
    command = extract_command(completion)
    if command is None:
        return unparsable(spec, completion, "the completion is not one command")
    return run_episode(spec, [command], limits=limits)


def judge_many(pairs: Sequence[tuple[TerminalTask, str]], workers: int | None = None) -> list[EpisodeResult]:
    """`judge` for each pair, in order, several at once (default: one more than the CPUs, as each mostly waits)."""
    sandbox.require()
    with ThreadPoolExecutor(workers or (os.cpu_count() or 1) + 1, thread_name_prefix="judge") as pool:
        return list(pool.map(lambda pair: judge(*pair), pairs))


def _rng(use: str, family: str, seed: int) -> random.Random:
    return random.Random(f"{VERSION}/{use}/{family}/{seed}")  # noqa: S311 - tasks, not secrets


def _families(split: Split) -> list[Family]:
    own = Split.HELDOUT_FAMILIES if split is Split.HELDOUT_FAMILIES else Split.TRAIN
    return [family for family in FAMILIES.values() if family.split is own]


def _drafts(family: Family, rng: random.Random, heldout: bool, seen: set[str]) -> Iterator[Draft]:
    """Drafts with instructions that are not in `seen`, which grows; ends when none is found any more."""
    misses = 0
    while misses < MAX_TRIES:
        draft = family.draft(Draw(rng, heldout))
        if draft.instruction in seen:
            misses += 1
            continue
        seen.add(draft.instruction)
        misses = 0
        yield draft


def _task(family: Family, split: Split, draft: Draft) -> TerminalTask:
    spec = EnvironmentSpec(
        instruction=draft.instruction,
        source="bashgym.terminal",
        domain="terminal",
        skills=(family.category.value,),
        verifier=Verifier(timeout_sec=COMMAND_TIMEOUT_S, probe=draft.probe),
        build=Build(setup_commands=draft.setup),
        rollout=Rollout(max_steps=1, max_tool_calls=1, timeout_sec=30.0, bash_timeout_sec=COMMAND_TIMEOUT_S),
        files={**draft.before, "verify.sh": script(draft)},
        metadata={"suite_version": VERSION, "task_family": family.name, "split": split.value},
    ).validated()
    return TerminalTask(
        task_id=f"{family.name}-{spec.digest()[:12]}",
        family=family.name,
        category=family.category.value,
        split=split.value,
        instruction=draft.instruction,
        solution=draft.solution,
        wrong=draft.wrong,
        spec=spec,
    )
