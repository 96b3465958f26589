"""Every command, where it lives and what it is for. Nothing is imported until it is called.

To add a command is to add its function and one line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Command:
    """`target` is `module:function` below `bashgym.cli`."""

    target: str
    help: str


@dataclass(frozen=True)
class Group:
    """A noun with its verbs."""

    help: str
    commands: Mapping[str, Command | Group] = field(default_factory=dict)


_RUNCARD = Group(
    "The card that says promote or not, with evidence that re-checks.",
    {
        "create": Command("runcard:create", "Write a RunCard and judge it."),
        "validate": Command("runcard:validate", "Check a RunCard and every file that it names again."),
        "attach-evidence": Command("runcard:attach_evidence", "Bind evidence files to a RunCard by digest."),
        "list": Command("runcard:list_cards", "The RunCards of the run directories."),
    },
)
_QUEUE = Group(
    "Runs that wait for a free training slot; `training start --queue` adds one.",
    {
        "list": Command("queue:list_queue", "Who trains and who waits, in order."),
        "move": Command("queue:move", "Give a waiting run another place."),
        "remove": Command("queue:remove", "Cancel a waiting run."),
        "run": Command("queue:run", "Launch what is due; go on after a failure that holds the queue."),
    },
)
_TRACKING = Group(
    "Which project, experiment, model and data a run belongs to.",
    {"init": Command("tracking:init", "Measure every digest and write a tracking context.")},
)
_SESSION_RECORDS = Group(
    "Records for session distillation.",
    {
        "build": Command("sessions:build", "Failed steps and what mended them, from a folder of sessions."),
        "validate": Command("sessions:validate", "Check a file of records, row by row."),
    },
)
_REWARD_EXAMPLES = Group(
    "Judged answers, pairs and steps.",
    {"validate": Command("rewards:validate", "Check a file of reward examples, row by row.")},
)
_REWARD_EVAL = Group(
    "How good a reward model is.",
    {"evaluate": Command("rewards:evaluate", "Held-out pairs, calibration, bias and leakage of predictions.")},
)
_REWARD_MODEL = Group(
    "Reward models.",
    {
        "smoke": Command("rewards:smoke", "Prove the path with a bag-of-words scorer."),
        "score": Command("rewards:score", "Predictions of a trained reward model, beside the rows."),
    },
)
_DPO_PAIRS = Group(
    "Preference pairs.",
    {"validate": Command("pairs:validate", "Check a file of pairs, row by row: contract, provenance, hashes.")},
)
TRAINING = Group(
    "Plan, start, watch, control and judge training runs.",
    {
        "start": Command("start:start", "Check everything, then start a run."),
        "plan": Command("plan:plan", "What to set, watch and prove for a method; with a dataset also its preflight."),
        "list": Command("runs:list_runs", "The newest runs."),
        "get": Command("runs:get", "Where one run stands."),
        "log": Command("runs:log", "The end of a run's log; --follow goes on."),
        "metrics": Command("runs:metrics", "Every metric point of a run."),
        "samples": Command("samples:samples", "Search what a run generated."),
        "pause": Command("runs:pause", "Checkpoint at the next step and free the memory."),
        "resume": Command("runs:resume", "Go on from the last valid checkpoint."),
        "stop": Command("runs:stop", "End a run and all its processes."),
        "queue": _QUEUE,
        "diff": Command("diff:diff", "What differs between two runs."),
        "reproduce": Command("diff:reproduce", "Run a run again: do the same weights come out?"),
        "push": Command("publish:push", "Push a finished run's model to the Hub, private by default."),
        "export-gguf": Command("publish:export_gguf", "Convert a finished run's merged model with llama.cpp."),
        "analyze": Command("judge:analyze", "Read a run's curves and evidence: verdict, findings, next steps."),
        "classify": Command("judge:classify", "Which method a run used and what evidence it has."),
        "capabilities": Command("catalog:capabilities", "Every method, field and bound of this version."),
        "methods": Command("catalog:methods", "The training methods, one a line."),
        "docs": Command("catalog:docs", "What a strategy, metric or word means."),
        "tracking-context": _TRACKING,
        "runcard": _RUNCARD,
        "session-records": _SESSION_RECORDS,
        "dpo-pairs": _DPO_PAIRS,
        "reward-examples": _REWARD_EXAMPLES,
        "reward-eval": _REWARD_EVAL,
        "reward-model": _REWARD_MODEL,
        "smoke-bundle": Command("eval_replay:smoke_bundle", "Is a DPPO replay ready, and who could train on it here?"),
    },
)
LEDGER = Group(
    "Read the experiment ledger: projects, runs, trends, comparisons, events.",
    {
        "health": Command("ledger:health", "Is the database whole?"),
        "projects": Command("ledger:projects", "The projects of a workspace."),
        "project": Command("ledger:project", "One project's record."),
        "context": Command("ledger:context", "A project in one answer: health, inventory, lineage, recent records."),
        "runs": Command("ledger:runs", "A project's runs, newest first."),
        "run": Command("ledger:run", "One run with its attempts, evaluations and artifacts."),
        "trend": Command("ledger:trend", "How a metric moved."),
        "evaluations": Command("ledger:evaluations", "Evaluation results."),
        "compare": Command("ledger:compare", "Runs side by side, only where they share a suite."),
        "events": Command("ledger:events", "The event log after a cursor."),
    },
)
ROOT = Group(
    "Plan, launch, watch, evaluate and promote LLM post-training runs, with evidence that re-checks.",
    {
        "training": TRAINING,
        "data": Group(
            "Check, look at and convert training data.",
            {
                "check": Command("data:check", "The whole preflight of a dataset, without torch."),
                "preview": Command("data:preview", "One row, token by token: what is trained and what is not."),
                "convert": Command("data:convert", "Write another format as clean JSONL."),
                "overlap": Command("data:overlap", "Rows that training and evaluation data share."),
            },
        ),
        "eval": Group(
            "Run and compare evaluations.",
            {
                "run": Command("evals:run", "Score a model, and its baseline, on a held-out suite."),
                "compare": Command("evals:compare", "Compare two finished score files, paired."),
                "list": Command("evals:list_evals", "The evaluations, newest first."),
                "show": Command("evals:show", "One evaluation report."),
                "parity": Command("eval_parity:parity", "Same token ids in training and at an endpoint?"),
                "replay-score": Command("eval_replay:score", "Add a model's log probabilities to a DPPO replay."),
                "replay-enrich": Command("eval_replay:enrich", "Add log probabilities from elsewhere to a replay."),
                "power": Command("eval_power:power", "How many items a gain needs, before they are paid for."),
                "passk": Command("eval_gates:passk", "pass@k of attempts, unbiased, with intervals."),
                "holdout-gate": Command("eval_gates:holdout_gate", "Judge a model on held-out groups of environments."),
                "holdout-comparison": Command("eval_gates:holdout_comparison", "Candidate against base, paired."),
                "spurious-control": Command("eval_gates:spurious_control", "Against a reward that means nothing."),
                "benchmarks-ingest": Command(
                    "eval_gates:benchmarks_ingest", "What was forgotten, from lm-eval results."
                ),
                "external-ingest": Command("eval_gates:external_ingest", "File lm-eval or Inspect results."),
                "benchmark-commands": Command("eval_gates:benchmark_commands", "Commands of public benchmarks."),
                "verdict": Command("eval_gates:verdict", "What was recorded for a model."),
                "canaries": Command("eval_canaries:canaries", "Attacks that must earn no reward."),
                "heldout": Command("eval_jobs:heldout", "Held-out tool calls: candidate against base."),
                "jobs": Command("eval_jobs:list_jobs", "Evaluation jobs, the newest first."),
                "job": Command("eval_jobs:job", "How one evaluation job goes."),
                "stop": Command("eval_jobs:stop", "End an evaluation job."),
                "resume": Command("eval_jobs:resume", "Go on with a stopped or killed job."),
                "rollouts": Command("eval_rollouts:rollouts", "A model against environments in the sandbox."),
                "local-rollouts": Command("eval_rollouts:local_rollouts", "Given commands, judged."),
                "retrieval": Command(
                    "eval_retrieval:retrieval", "A retriever against the incumbent, from ranked results."
                ),
                "openenv": Command("eval_openenv:openenv", "A model against the environments of an OpenEnv server."),
            },
        ),
        "cascade": Group(
            "Domain after domain, each stage with its own RunCard, then one student.",
            {
                "start": Command("cascade:start", "Train one stage per domain, in a process of its own."),
                "status": Command("cascade:status", "Where a cascade stands, its cards as they are judged now."),
                "stop": Command("cascade:stop", "End a cascade and the run of its stage."),
                "distill": Command("cascade:distill", "One student from the stages of a completed cascade."),
                "distill-status": Command("cascade:distill_status", "Where a distillation stands."),
                "distill-stop": Command("cascade:distill_stop", "End a distillation and its run."),
            },
        ),
        "env": Group(
            "Environments: other projects' tasks, checked and served.",
            {
                "from-harbor": Command("envs:from_harbor", "Harbor task folders as environments."),
                "from-reasoning-gym": Command("envs:from_reasoning_gym", "reasoning-gym tasks as environments."),
                "from-verifiers": Command("envs:from_verifiers", "A verifiers environment as environments."),
                "check": Command("envs:check", "Check a file of environments and what judges them."),
                "serve": Command("envs:serve", "Serve environments over the OpenEnv protocol."),
            },
        ),
        "replay": Group(
            "Recorded rollouts with log probabilities.",
            {
                "summarize": Command("eval_replay:summarize", "What a replay file holds."),
                "scrub": Command("eval_replay:scrub", "A copy without secrets and with shortened output."),
            },
        ),
        "evidence": Group(
            "What stands behind a claim: built, bundled, signed, and checked again.",
            {
                "release": Command("evidence:release", "Release evidence of a run, from an evaluation."),
                "manifests": Command("evidence:manifests", "What was held out, and that it was not trained on."),
                "bundle": Command("evidence:bundle", "A run's card and all its evidence, sealed."),
                "verify": Command("evidence:verify", "Hash and compute everything again."),
                "explain": Command("evidence:explain", "The claim and its gaps in plain words."),
                "keygen": Command("evidence:keygen", "An Ed25519 key pair."),
                "sign": Command("evidence:sign", "Sign a bundle."),
            },
        ),
        "ledger": LEDGER,
        "models": Group(
            "Models by name, and what was measured of them.",
            {
                "list": Command("models:list_models", "The built-in models."),
                "resolve": Command("models:resolve", "Where a name leads, with digests."),
                "build": Command("models:build", "Bring a built-in or Hub model to this disk."),
                "fetch": Command("models:build", "The same as build."),
            },
        ),
        "runs": Group(
            "The run directories.",
            {"reindex": Command("runs:reindex", "Rebuild the index of runs from their directories.")},
        ),
        "compute": Group(
            "Where runs execute.",
            {
                "targets": Command("compute:targets", "The compute targets."),
                "preflight": Command("compute:preflight", "Can this target train?"),
            },
        ),
        "system": Group(
            "This machine.",
            {
                "info": Command("system:info", "GPUs, memory, interpreter, packages."),
                "recommendations": Command("system:recommendations", "What this machine can train."),
                "probe": Command("system:probe", "Train a few probe steps to calibrate the estimates."),
            },
        ),
        "operator": Group("Installation.", {"doctor": Command("system:doctor", "Is everything here that is needed?")}),
        "api": Command("api:api", "Send a request to the API; served in-process if nothing listens."),
        "serve": Command("serve:serve", "Serve the HTTP API, on loopback by default."),
        "serve-model": Command("serve_model:serve_model", "Serve a model over the OpenAI-compatible API."),
        "manifest": Command("catalog:manifest", "What this version can do, as one document."),
        "demo": Command("demo:demo", "The whole promise in minutes: train, evaluate, judge, report."),
    },
)
