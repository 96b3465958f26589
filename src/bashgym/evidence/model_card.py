"""The Markdown model card of a run, from its manifest, request, metrics, evidence and RunCard. Says only what was recorded,
and claims only what the RunCard claims while it holds.

Paths of this machine stay out of it. The licence is the base model's own where its files state one, never invented.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bashgym.core.errors import BashGymError
from bashgym.core.files import atomic_write_text
from bashgym.evidence.binding import read_or_empty
from bashgym.evidence.card import CLAIMS, TIERS
from bashgym.evidence.inspection import number, part
from bashgym.methods import registry
from bashgym.methods.common import LORA, OPTIMIZER
from bashgym.methods.spec import Method
from bashgym.store.metrics import read_points

_LICENSE = re.compile(r"^license:\s*['\"]?([\w.+-]+)", re.MULTILINE)
_UNSAFE = re.compile(r"[\r\n|<>`]+")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_LOADERS = {"SEQ_CLS": "AutoModelForSequenceClassification", "TOKEN_CLS": "AutoModelForTokenClassification"}
"""Head of a reward model -> the class that loads it."""
_SHAPE = ("max_steps", "num_epochs", "batch_size", "gradient_accumulation_steps", "max_seq_length", "dtype", "seed")


def model_card(run_dir: Path, card_path: Path | None = None, artifact: str = "final") -> str:
    """The card's text for the model in `<run>/<artifact>`."""
    manifest, request = read_or_empty(run_dir / "manifest.json"), read_or_empty(run_dir / "request.json")
    place = card_path or run_dir / "run_card.json"
    card, judged = read_or_empty(place), _judged(place, run_dir)
    model, data = part(manifest, "model"), part(manifest, "dataset")
    license_ = base_license(Path(str(model.get("path") or run_dir)))
    adapter = (run_dir / artifact / "adapter_config.json").is_file()
    base, code = _base_name(model), part(manifest, "code")
    rows = [
        ("Base model", f"{_text(base)} (`{_short(model.get('digest'))}`)"),
        ("Method", _text(manifest.get("strategy"))),
        ("Objective", _text(manifest.get("objective"))),
        ("Training rows", f"{_text(data.get('train_rows'))} (`{_short(data.get('digest'))}`)"),
        ("Evaluation rows", _text(data.get("eval_rows"))),
        ("Seed", _text(manifest.get("seed"))),
        ("Code", _text(code.get("git_commit") or code.get("version"))),
        ("Status", _text(read_or_empty(run_dir / "model_profile.json").get("status"))),
        ("Decision", f"{_text(card.get('decision'))}, claim tier {_text(card.get('claim_tier'))}"),
    ]
    lines = [*_front(license_, base, adapter, manifest), f"# {_text(manifest.get('run_id') or run_dir.name)}", ""]
    lines += _table("", (row for row in rows if not row[1].startswith("unknown")))
    lines += _table("## Settings", _settings(request))
    lines += _results(run_dir, str(manifest.get("strategy")))
    lines += _evaluation(run_dir, judged)
    lines += _claim(card, judged)
    lines += _loading(base, adapter, str(read_or_empty(run_dir / "reward.json").get("task")))
    lines += _limitations(run_dir, card, manifest)
    if license_ == "unknown":
        lines += ["The base model's licence was not found in its files: find out before publishing.", ""]
    return "\n".join(lines)


def write_model_card(run_dir: Path, output: Path, card_path: Path | None = None, artifact: str = "final") -> Path:
    """Writes `model_card` to `output`."""
    atomic_write_text(output, model_card(run_dir, card_path, artifact))
    return output


def base_license(folder: Path) -> str:
    """The licence that a model folder states (README front matter or provenance note), else `unknown`."""
    stated = read_or_empty(folder / "bashgym_provenance.json").get("license")
    if isinstance(stated, str) and stated:
        return _text(stated)
    readme = folder / "README.md"
    if readme.is_file():
        front = readme.read_text(encoding="utf-8", errors="replace")[:10_000].split("---")
        found = _LICENSE.search(front[1]) if len(front) > 2 else None
        if found:
            return found[1]
    return "unknown"


def _front(license_: str, base: str, adapter: bool, manifest: dict[str, Any]) -> list[str]:
    """The metadata block. `base_model` only where it is a name that others can look up."""
    lines = ["---", f"license: {license_}"]
    if _HUB_ID.fullmatch(base):
        lines.append(f"base_model: {base}")
    use = "text-classification" if manifest.get("strategy") == "reward_model" else "text-generation"
    lines += [f"library_name: {'peft' if adapter else 'transformers'}", f"pipeline_tag: {use}"]
    return [*lines, "tags:", "- bashgym", f"- {_text(manifest.get('strategy'))}", "---", ""]


def _base_name(model: dict[str, Any]) -> str:
    """The base's name; of a folder only its own name, as its path is nobody's business."""
    name = str(model.get("name") or "unknown").partition("@")[0]
    return Path(name).name if model.get("source") == "path" else name


def _settings(request: dict[str, Any]) -> list[tuple[str, str]]:
    """The fields that shape the optimisation; texts that look like paths are left out."""
    names, method = [field.name for field in OPTIMIZER], _method(request.get("strategy"))
    names += [field.name for field in LORA] if request.get("use_lora") else ["use_lora"]
    names += [field.name for field in method.own_fields] if method else []
    found = []
    for name in dict.fromkeys([*_SHAPE, *names]):
        value = request.get(name)
        plain = not isinstance(value, dict | list) and not (isinstance(value, str) and ("/" in value or "\\" in value))
        if value not in (None, "", [], {}) and plain:
            found.append((name, _text(str(value).lower() if isinstance(value, bool) else value)))
    return found


def _results(run_dir: Path, strategy: str) -> list[str]:
    """The last value of every metric that the method must report, and of the losses."""
    points, _ = read_points(run_dir / "metrics.jsonl")
    method = _method(strategy)
    wanted = ["loss", "eval_loss", *(method.must_emit if method else ())]
    rows = []
    for name in dict.fromkeys(wanted):
        last = next((point for point in reversed(points) if number(point.get(name)) is not None), None)
        if last:
            rows.append((name, f"{last[name]:.4g} at step {last['step']}"))
    return _table("## Training metrics, last values", rows)


def _judged(card: Path, run_dir: Path) -> dict[str, Any] | None:
    """The card, judged now, beyond local_smoke as a promotion; None where there is none."""
    if not card.is_file():
        return None
    from bashgym.evidence.runcard import validate

    try:
        beyond = read_or_empty(card).get("claim_tier") != TIERS[0]
        return validate(card, promotion=beyond, models_dir=run_dir.parent)
    except BashGymError as error:
        return {"ok": False, "promotion_explanation": {"headline": error.message}, "artifact_status": {}}


def _evaluation(run_dir: Path, judged: dict[str, Any] | None) -> list[str]:
    """What the release evidence observed, with its interval; the absence of one is said.

    Where there is a card, evidence that it does not accept is not told.
    """
    evidence = read_or_empty(run_dir / "release_evidence.json")
    seen: dict[str, Any] = part(part(evidence, "release_gate"), "observed")
    effect, low, high = (number(seen.get(name)) for name in ("effect", "ci_low", "ci_high"))
    lines = ["## Evaluation", ""]
    status = part(part(judged or {}, "artifact_status"), "release_evidence")
    if judged is not None and not status.get("accepted"):
        return [*lines, "Nothing that the RunCard accepts as evidence.", ""]
    if effect is None or low is None or high is None:
        return [*lines, "Not evaluated on held-out tasks.", ""]
    label = " Smoke evaluation: proves the path, not quality." if evidence.get("smoke") is not False else ""
    return [
        *lines,
        f"Suite {_text(part(evidence, 'suite').get('name'))}: pass rate {effect:+.3f} against the base model "
        f"(95 % interval {low:+.3f} to {high:+.3f}, n = {_text(seen.get('n_scored'))}).{label}",
        "",
    ]


def _claim(card: dict[str, Any], judged: dict[str, Any] | None) -> list[str]:
    """The claim of the card's tier, as far as it holds: a tier that is not earned is not repeated."""
    text = "Nothing: there is no RunCard."
    if judged is not None:
        text = f"Nothing: the RunCard does not hold. {_text(judged['promotion_explanation']['headline'])}"
        if judged["ok"]:
            text = f"{CLAIMS[card['claim_tier']].capitalize()}."
    return ["## What may be claimed", "", text, ""]


def _loading(base: str, adapter: bool, task: str) -> list[str]:
    """Code that loads the model; FOLDER is this repository or folder. `task`: reward.json's, of a reward model."""
    name = base if re.fullmatch(r"[\w./-]+", base) else "the base model"
    loader = _LOADERS.get(task, "AutoModelForCausalLM")
    one = ", num_labels=1" if task in _LOADERS else ""
    body = [f"from transformers import {loader}, AutoTokenizer", ""]
    if adapter:
        body = [body[0], "from peft import PeftModel", "", f'base = {loader}.from_pretrained("{name}"{one})']
        body.append('model = PeftModel.from_pretrained(base, "FOLDER")')
    else:
        body.append(f'model = {loader}.from_pretrained("FOLDER"{one})')
    return ["## How to load", "", "```python", *body, 'tokenizer = AutoTokenizer.from_pretrained("FOLDER")', "```", ""]


def _limitations(run_dir: Path, card: dict[str, Any], manifest: dict[str, Any]) -> list[str]:
    """What the RunCard says, a divergence, and findings that were overridden."""
    stated = card.get("known_limitations")
    found = [_text(item) for item in stated] if isinstance(stated, list) else []
    points, _ = read_points(run_dir / "metrics.jsonl")
    broken = next((point for point in points if point.get("non_finite")), None)
    if broken:
        found.append(
            f"Training diverged: {_text(', '.join(broken['non_finite']))} not finite at step {broken['step']}."
        )
    forced = manifest.get("forced")
    if isinstance(forced, list) and forced:
        found.append(f"Started against preflight findings: {_text(', '.join(map(str, forced)))}.")
    return ["## Known limitations", "", *(f"- {item}" for item in found), ""] if found else []


def _method(strategy: object) -> Method | None:
    return registry.get(str(strategy)) if strategy in registry.METHODS else None


def _table(title: str, rows: Any) -> list[str]:
    body = [f"| {key} | {value} |" for key, value in rows]
    return [*([title, ""] if title else []), "| | |", "|---|---|", *body, ""] if body else []


def _text(value: object) -> str:
    return _UNSAFE.sub(" ", str(value)).strip()[:200] if value not in (None, "") else "unknown"


def _short(digest: object) -> str:
    return _text(digest)[:12]
