"""Topics of `training docs`: short texts of our own and the parts that come from the registry, as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bashgym.methods import registry
from bashgym.methods.grpo import PROFILES, TERMINAL
from bashgym.methods.spec import Method, Metric

DOCS_PATH = "docs/methods.md"

GLOSSARY: dict[str, str] = {
    "run": "one training job, identified by its directory; everything known about it stands there",
    "attempt": "one start of a run's trainer; a resume begins the next attempt",
    "checkpoint": "weights, optimizer, schedule and random state at a step, enough to go on exactly",
    "adapter": "the LoRA weights alone; useless without the base model of the same digest",
    "rollout": "one sampled answer or episode with its reward",
    "group": "the rollouts of one prompt, compared with each other",
    "advantage": "reward of a rollout relative to its group",
    "zero_std": "a group whose rewards are all equal; it teaches nothing",
    "verifier": "the program that decides whether an attempt passed",
    "held-out": "never used for training or for choosing settings",
    "pass@k": "chance that at least one of k attempts passes",
    "suite": "a fixed list of evaluation items, named by digest",
    "baseline": "what a candidate is compared with, on the same items and seeds",
    "incumbent": "the best model so far that passed its gate",
    "candidate": "the model that wants to pass",
    "lineage": "what a model was made from: base, data, code, runs",
    "gate": "a rule over paired scores with an interval; it says ship or not and why",
    "RunCard": "the claim about a run, bound by digest to the evidence for it",
}

WORLD_MODELS = """\
ECHO adds a loss on the terminal output that follows an action; RWML rewards a prediction of the next observation that
lies close enough in embedding space. Both say whether a policy foresees what its commands do. They are diagnostics: a
better echo_loss or rwml_pass_rate promotes nothing unless held-out pass@k or safety moves with it on the same tasks.
Both are switched on in a grpo run: echo_enabled where episodes use tools, whose results are what is predicted, and
rwml_enabled on a replay with transitions, each of which becomes a prompt that asks for the next observation.
"""

TERMINAL_RECIPE = """\
1. Take a model that already passes some tasks; where pass@1 is near zero, fine-tune it on expert sessions first.
2. Choose task families with a spread of difficulty and hold whole families out.
3. Attack the verifiers with the canaries before training; every hole is found by the policy sooner or later.
4. Sample groups that are large enough to have contrast, and drop groups without any.
5. Watch held-out pass@1 beside the reward. When they part, the reward is wrong.
6. Treat timeouts and verifier faults as missing observations, never as zero reward.
"""

SESSION = """\
A session holds decisions that went wrong and were then repaired. Each becomes a record: the context as it was, the same
context with a hint, and the repaired action as target. The model learns to give, without the hint, the answer that it
gives with it; only the target's tokens are trained. Records below the confidence limit are left out, the target is
never the failed action, and the context is shortened before the target is. Zero trained tokens stop the run.
"""

CAMPAIGN = """\
A campaign changes one thing at a time: baseline, hypothesis, candidate, paired evaluation on a frozen suite, decision.
The baseline runs on at least two seeds, so that its noise is known; a difference within the noise is inconclusive, a
change of seed alone is no candidate, and simulated results count for nothing. Scores come from the evaluation's files.
"""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in (head, *rows)]
    return "\n".join(f"| {line} |" for line in (lines[0], " | ".join(["---"] * len(head)), *lines[1:])) + "\n"


def anchor(title: str) -> str:
    """The fragment under which Markdown viewers know a heading."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def built(method: Method) -> str:
    """How a method can be used in this version."""
    return "direct" if method.direct else "own workflow"


def strategy_table() -> str:
    """When to use which method."""
    rows = [(f"`{m.name}`", m.summary, m.recipe.when_to_use, built(m)) for m in registry.METHODS.values()]
    return table(("method", "what it does", "when", "in this version"), rows)


def all_metrics() -> list[Metric]:
    """Every metric once, in registry order."""
    return list({metric.name: metric for method in registry.METHODS.values() for metric in method.metrics}.values())


def metric_table(metrics: Sequence[Metric]) -> str:
    """What each metric means and what to do about it."""
    rows = [(f"`{m.key}`", str(m.role), m.means, m.watch_for, m.action) for m in metrics]
    return table(("metric", "role", "means", "watch for", "then"), rows)


def _terminal_recipe() -> str:
    values = table(("field", "value"), [(f"`{name}`", str(value)) for name, value in PROFILES[TERMINAL].items()])
    return f"{TERMINAL_RECIPE}\nThe profile `{TERMINAL}` fills what the request leaves open:\n\n{values}"


TOPICS: dict[str, tuple[str, Callable[[], str]]] = {
    "strategy": ("Which method for which data and goal.", strategy_table),
    "world-models": ("ECHO and RWML: what they diagnose and what they don't prove.", lambda: WORLD_MODELS),
    "metrics": ("Every metric, what to watch for, and what to do.", lambda: metric_table(all_metrics())),
    "glossary": ("The words used here.", lambda: table(("word", "meaning"), list(GLOSSARY.items()))),
    "terminal-rl-recipe": ("Reinforcement learning of shell agents, step by step.", _terminal_recipe),
    "session-distillation": ("From failed and repaired decisions to training records.", lambda: SESSION),
    "autoresearch-campaign": ("A loop of hypotheses that can be believed.", lambda: CAMPAIGN),
}
"""Topic -> (summary, text)."""
