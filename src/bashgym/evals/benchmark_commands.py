"""Commands of public benchmarks against an OpenAI-compatible endpoint, to be copied and run where the harness is installed.

Nothing is run here. Harnesses that go through LiteLLM want OPENAI_API_KEY set, to anything where the endpoint asks for none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bashgym.core.errors import fail

FORGETTING_TASKS = ("mmlu", "gsm8k", "ifeval", "hellaswag")
INCLUDES = ("forgetting", "terminal_bench", "harbor_terminal_bench", "bfcl", "swebench")
_CHOICES = re.compile(
    r"(mmlu(?!_(pro|generative|flan_(cot|n_shot_generative)))|hellaswag|arc_|winogrande|piqa|boolq|openbookqa|truthfulqa_mc)"
)
"""lm-eval tasks that compare the log likelihood of given answers, which the chat endpoint cannot."""


def commands(
    base_url: str, model: str, tasks: Sequence[str] = FORGETTING_TASKS, include: Sequence[str] = ("forgetting",)
) -> dict[str, list[str]]:
    """Name -> argv. What needs a second step has a second name, such as `swebench_evaluate`. `invalid_field`."""
    if unknown := [name for name in include if name not in INCLUDES]:
        hint = f"Known: {', '.join(INCLUDES)}."
        raise fail("invalid_field", f"no benchmark is called {unknown[0][:80]!r}", hint, ["include"])
    root = base_url.rstrip("/")
    if not re.fullmatch(r"https?://[^\s,]+", root):
        raise fail("invalid_field", "base_url must be an http address without a comma", fields=["base_url"])
    for field, names in (("model", [model]), ("tasks", list(tasks))):
        if any(not re.fullmatch(r"[^\s,=-][^\s,=]*", name) for name in names):
            raise fail("invalid_field", f"{field} must be names without spaces, commas and =", fields=[field])
    known = {"forgetting": _forgetting(root, model, tasks), **_agents(root, model)}
    return {name: argv for chosen in dict.fromkeys(include) for name, argv in known[chosen].items()}


def _forgetting(root: str, model: str, tasks: Sequence[str]) -> dict[str, list[str]]:
    choices = [task for task in tasks if _CHOICES.match(task)]
    written = [task for task in tasks if task not in choices]
    shared = ["--output_path", "lm-eval-results", "--log_samples"]
    found = {}
    if written:
        arguments = f"model={model},base_url={root}/chat/completions,num_concurrent=8,max_retries=3"
        chat = ["lm_eval", "--model", "local-chat-completions", "--model_args", arguments, "--apply_chat_template"]
        found["forgetting"] = [*chat, "--tasks", ",".join(written), *shared]
    if choices:
        arguments = f"model={model},base_url={root}/completions,num_concurrent=8,max_retries=3"
        plain = ["lm_eval", "--model", "local-completions", "--model_args", arguments]
        found["forgetting_loglikelihood"] = [*plain, "--tasks", ",".join(choices), *shared]
    return found


def _agents(root: str, model: str) -> dict[str, dict[str, list[str]]]:
    litellm, base = f"openai/{model}", f"api_base={root}"
    bfcl = ["--model", model, "--test-category", "single_turn"]
    swebench = ["--subset", "lite", "--split", "test", "--model", litellm, "--output", "swebench-predictions"]
    config = ["-c", "swebench.yaml", "-c", f"model.model_kwargs.{base}", "-c", "model.cost_tracking=ignore_errors"]
    judge = ["--dataset_name", "princeton-nlp/SWE-bench_Lite", "--predictions_path", "swebench-predictions/preds.json"]
    return {
        "terminal_bench": {
            "terminal_bench": [
                *("tb", "run", "--dataset", "terminal-bench-core==0.1.1", "--agent", "terminus-2"),
                *("--model", litellm, "--agent-kwarg", base),
            ]
        },
        "harbor_terminal_bench": {
            "harbor_terminal_bench": [
                *("harbor", "run", "-d", "terminal-bench@2.0", "-a", "terminus-2", "-m", litellm),
                *("--agent-kwarg", base),
            ]
        },
        "bfcl": {
            "bfcl": ["env", f"REMOTE_OPENAI_BASE_URL={root}", "bfcl", "generate", *bfcl, "--skip-server-setup"],
            "bfcl_evaluate": ["bfcl", "evaluate", *bfcl],
        },
        "swebench": {
            "swebench": ["mini-extra", "swebench", *swebench, *config],
            "swebench_evaluate": [
                "python",
                "-m",
                "swebench.harness.run_evaluation",
                *judge,
                "--run_id",
                model.replace("/", "_"),
            ],
        },
    }
