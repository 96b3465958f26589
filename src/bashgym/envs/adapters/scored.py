"""Question tasks whose judge is a Python package: reasoning-gym data sets and single-turn `verifiers` environments.

The model answers by writing a file. The package's own scorer then runs in the verifier's sandbox, where the installation's
packages are mounted read-only: an answer is hostile text, and scorers parse it with eval-like libraries.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bashgym.core.errors import BashGymError, fail
from bashgym.envs.spec import EnvironmentSpec
from bashgym.envs.verdict import PACKAGES

ANSWER = "answer.txt"
MAX_TASKS = 10_000
_ASK = f"\n\nWrite only the final answer into the file {ANSWER}."
_READ = f"""\
import json, os, stat, sys
sys.path[:0] = ["/packages/site-packages"]
def broken(*error):
    sys.__excepthook__(*error)
    sys.stdout.flush()
    os._exit(127)
sys.excepthook = broken
try:
    fd = os.open("/work/{ANSWER}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    regular = stat.S_ISREG(os.fstat(fd).st_mode)
    answer = os.read(fd, 65536).decode("utf-8", "replace").strip() if regular else None
except OSError:
    answer = None
entry = json.load(open("/verifier/entry.json"))
"""
_GYM = """\
score = 0.0
if answer is not None:
    import reasoning_gym
    score = reasoning_gym.get_score_answer_fn(entry["metadata"]["source_dataset"])(answer, entry)
print(json.dumps({"reward_components": {"score": float(score)}}))
"""
_VERIFIERS = """\
score = 0.0
if answer is not None:
    import asyncio, contextlib, importlib.util
    with contextlib.redirect_stdout(sys.stderr):
        spec = importlib.util.spec_from_file_location("task_environment", "/verifier/environment.py")
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        rubric = module.load_environment(**entry["arguments"]).rubric
        said = [{"role": "assistant", "content": answer}]
        state = {**entry["row"], "input": entry["row"], "completion": said, "trajectory": [], "timing": None}
        asyncio.run(rubric.score_rollout(state))
    score = state["reward"]
print(json.dumps({"reward_components": {"score": float(score)}}))
"""


def reasoning_gym(name: str, n: int, seed: int, config: Mapping[str, Any] | None = None) -> list[EnvironmentSpec]:
    """`n` tasks of a reasoning-gym data set, the same for the same seed and package version.

    `missing_extra` without the package; `environment_invalid` for an unknown data set or configuration, and for one whose own
    answer its own scorer does not accept once both have been through JSON.
    """
    package = _package("reasoning_gym", "reasoning-gym")
    _check_n(n)
    try:
        dataset = package.create_dataset(name, size=n, seed=seed, **(config or {}))
        entries = [json.loads(json.dumps(dataset[i])) for i in range(n)]
        score = package.get_score_answer_fn(name)
        bad = next((i for i, e in enumerate(entries) if not score(e["answer"], e) >= 1.0), None)
    except Exception as error:  # boundary: what a data set raises on a bad name or configuration is its own affair
        raise _refused(f"reasoning-gym {name!r}: {type(error).__name__}: {str(error)[:200]}") from error
    if bad is not None:
        raise _refused(f"reasoning-gym {name!r}: the scorer does not accept the data set's own answer of task {bad}")
    facts: dict[str, Any] = {
        "domain": name,
        "scorer": _GYM,
        "source": f"reasoning-gym {package.__version__}",
        "seed": seed,
    }
    return [
        _task(f"rg_{name}_{seed}_{i}", str(entry["question"]), {"entry.json": json.dumps(entry)}, **facts)
        for i, entry in enumerate(entries)
    ]


def verifiers(module: Path, n: int | None = None, arguments: Mapping[str, Any] | None = None) -> list[EnvironmentSpec]:
    """The rows of a single-turn `verifiers` environment, given as the file that defines `load_environment`.

    The file is run here: only import what you would run. `environment_invalid` for environments of several turns or with
    tools (their loop is theirs: serve a model with `bashgym serve-model` and evaluate with their own command), and for rubrics
    that need a whole group of answers.
    """
    package = _package("verifiers", "verifiers")
    if not module.is_file():
        raise fail("file_missing", f"{module} does not exist", fields=["source"])
    given, text = dict(arguments or {}), module.read_text("utf-8")
    try:
        environment = _load(module).load_environment(**given)
        single = isinstance(environment, package.SingleTurnEnv) and not getattr(environment, "tool_defs", None)
        rows = [json.loads(json.dumps(row)) for row in environment.get_eval_dataset()]
    except BashGymError:
        raise
    except Exception as error:  # boundary: somebody else's module
        raise _refused(f"{module}: {type(error).__name__}: {str(error)[:200]}") from error
    if not single or getattr(environment.rubric, "has_group_rewards", False):
        raise _refused(f"{module} is not a single-turn environment without tools that scores each answer by itself")
    tasks = []
    for i, row in enumerate(rows[: n or MAX_TASKS]):
        hidden = {"environment.py": text, "entry.json": json.dumps({"row": row, "arguments": given})}
        facts: dict[str, Any] = {"domain": module.stem, "source": f"verifiers {package.__version__}"}
        tasks.append(_task(f"vf_{module.stem}_{i}", _question(row), hidden, scorer=_VERIFIERS, **facts))
    return tasks


def _task(
    name: str, question: str, hidden: dict[str, str], *, domain: str, source: str, scorer: str, seed: int | None = None
) -> EnvironmentSpec:
    return EnvironmentSpec.from_dict(
        {
            "id": name,
            "instruction": question + _ASK,
            "source": source,
            "domain": domain,
            "files": {"score.py": _READ + scorer, **hidden},
            "fixtures": [{"path": path, "kind": "private"} for path in hidden],
            "verifier": {
                "kind": PACKAGES,
                "command": "$BASHGYM_PYTHON /verifier/score.py",
                "path": "score.py",
                "reward_type": "multi",
                "reward_components": [{"name": "score"}],
                "timeout_sec": 60,
            },
            "metadata": {"task_family": domain, **({} if seed is None else {"generator_seed": seed})},
        }
    )


def _question(row: Mapping[str, Any]) -> str:
    """The prompt of a row as one text: roles are named where there is more than one message."""
    prompt = row.get("prompt")
    if isinstance(prompt, str):
        return prompt
    messages = [m for m in prompt or [] if isinstance(m, dict) and isinstance(m.get("content"), str)]
    if not messages:
        raise _refused("a row has no prompt of text messages")
    if len(messages) == 1:
        return str(messages[0]["content"])
    return "\n\n".join(f"{m.get('role')}: {m['content']}" for m in messages)


def _load(module: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"bashgym_task_{module.stem}", module)
    if spec is None or spec.loader is None:
        raise _refused(f"{module} is not a Python file")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def _package(name: str, distribution: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        hint = "pip install 'bashgym[adapters]'"
        raise fail("missing_extra", f"{distribution} is not installed: {error}", hint, ["source"]) from error


def _check_n(n: int) -> None:
    if not 1 <= n <= MAX_TASKS:
        raise fail("invalid_field", f"n must lie in 1 to {MAX_TASKS}, not {n}", fields=["n"])


def _refused(reason: str) -> BashGymError:
    return fail("environment_invalid", reason, fields=["source"])
