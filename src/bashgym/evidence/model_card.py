"""A short Markdown model card from a run's manifest, profile and RunCard. Says only what was recorded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bashgym.core.files import atomic_write_text
from bashgym.evidence.binding import read_or_empty
from bashgym.evidence.inspection import number, part

_LICENSE = re.compile(r"^license:\s*['\"]?([\w.+-]+)", re.MULTILINE)
_UNSAFE = re.compile(r"[\r\n|<>`]+")


def model_card(run_dir: Path, card_path: Path | None = None) -> str:
    """The card's text. The licence is the base model's where its files state one, else `unknown`."""
    manifest, profile = read_or_empty(run_dir / "manifest.json"), read_or_empty(run_dir / "model_profile.json")
    card = read_or_empty(card_path or run_dir / "run_card.json")
    model, data = part(manifest, "model"), part(manifest, "dataset")
    license_ = base_license(Path(str(model.get("path") or run_dir)))
    name = _text(manifest.get("run_id") or run_dir.name)
    rows = [
        ("Base model", f"{_text(model.get('name'))} (`{_short(model.get('digest'))}`)"),
        ("Method", _text(manifest.get("strategy"))),
        ("Objective", _text(manifest.get("objective"))),
        ("Training rows", f"{_text(data.get('train_rows'))} (`{_short(data.get('digest'))}`)"),
        ("Seed", _text(manifest.get("seed"))),
        ("Code", _text(part(manifest, "code").get("git_commit") or part(manifest, "code").get("version"))),
        ("Status", _text(profile.get("status"))),
        ("Decision", f"{_text(card.get('decision'))}, claim tier {_text(card.get('claim_tier'))}"),
    ]
    lines = ["---", f"license: {license_}", f"base_model: {_text(model.get('name'))}", "---", "", f"# {name}", ""]
    lines += ["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows), ""]
    lines += _evaluation(run_dir)
    limits = card.get("known_limitations")
    if isinstance(limits, list) and limits:
        lines += ["## Known limitations", "", *(f"- {_text(item)}" for item in limits), ""]
    if license_ == "unknown":
        lines += ["The base model's licence was not found in its files: find out before publishing.", ""]
    return "\n".join(lines)


def write_model_card(run_dir: Path, output: Path, card_path: Path | None = None) -> Path:
    """Writes `model_card` to `output`."""
    atomic_write_text(output, model_card(run_dir, card_path))
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


def _evaluation(run_dir: Path) -> list[str]:
    """What the release evidence observed, with its interval; the absence of one is said."""
    evidence = read_or_empty(run_dir / "release_evidence.json")
    seen: dict[str, Any] = part(part(evidence, "release_gate"), "observed")
    effect, low, high = (number(seen.get(name)) for name in ("effect", "ci_low", "ci_high"))
    lines = ["## Evaluation", ""]
    if effect is None or low is None or high is None:
        return [*lines, "Not evaluated on held-out tasks.", ""]
    label = " Smoke evaluation: proves the path, not quality." if evidence.get("smoke") is not False else ""
    return [
        *lines,
        f"Suite {_text(part(evidence, 'suite').get('name'))}: pass rate {effect:+.3f} against the base model "
        f"(95 % interval {low:+.3f} to {high:+.3f}, n = {_text(seen.get('n_scored'))}).{label}",
        "",
    ]


def _text(value: object) -> str:
    return _UNSAFE.sub(" ", str(value)).strip()[:200] if value not in (None, "") else "unknown"


def _short(digest: object) -> str:
    return _text(digest)[:12]
