"""One self-contained HTML page about a run and its evaluation, made from their files. All content is escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bashgym.core.files import atomic_write_text
from bashgym.demo import charts
from bashgym.demo.story import SecondAct, Story

MAX_FLIPS = 12
MAX_SAMPLES = 12
_CLIP = 220
_REPEATED = re.compile(r"(.)\1{11,}")


def write_report(story: Story, folder: Path) -> Path:
    """Writes report.html and the PNGs into `folder`, and returns the page's path."""
    page = _environment().get_template("report.html.j2").render(**_context(story, folder))
    path = folder / "report.html"
    atomic_write_text(path, page)
    return path


def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("bashgym.demo", ".")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, finalize=_without_controls)


def _without_controls(value: Any) -> Any:
    """Text without control characters; our own SVG stays as it is."""
    from markupsafe import Markup

    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(c for c in value if c.isprintable() or c in " \n")


def _context(story: Story, folder: Path) -> dict[str, Any]:
    main, second = story.main_report, story.second
    rates = {
        split: [report["pass_rate"]["baseline"], report["pass_rate"]["candidate"]]
        for split, report in story.reports.items()
    }
    comparisons = [_comparison_row(split, report) for split, report in story.reports.items()]
    if second:
        first = next(iter(rates))
        rates[first] = [*rates[first], second.report["pass_rate"]["candidate"]]
        comparisons.append(_comparison_row(f"{first}, RLVR against SFT", second.report))
    return {
        "title": story.title,
        "subtitle": story.subtitle,
        "verdict": story.verdict(),
        "tiles": story.tiles(),
        "charts": {
            "loss": charts.loss_curve(story.metrics, folder / "loss.png"),
            "pass_rates": charts.pass_rates(rates, folder / "pass_at_1.png"),
            "by_cluster": charts.by_cluster(main["by_cluster"], folder / "by_family.png"),
        },
        "comparisons": comparisons,
        "second": second and _second(second, folder),
        "flips": _flips(story),
        "samples": _samples(story),
        "lineage": story.lineage(),
        "card": story.card_summary(),
        "footer": story.footer(),
    }


def _second(act: SecondAct, folder: Path) -> dict[str, Any]:
    rows = act.report["by_cluster"]
    return {
        "sentence": act.sentence(),
        "reward": charts.reward_curve(act.run.metrics(), folder / "reward.png"),
        "by_cluster": charts.by_cluster(rows, folder / "rlvr_by_family.png", ("SFT", "RLVR")),
        "command": f"bashgym training samples {act.run.run_id} --max-reward 0",
    }


def _comparison_row(split: str, report: Mapping[str, Any]) -> dict[str, Any]:
    c = report["comparison"]
    m = c.get("mcnemar") or {}
    return {
        "split": split,
        "effect": f"{c['effect']:+.1%}",
        "interval": f"{c['ci_low']:+.1%} to {c['ci_high']:+.1%}",
        "method": c["method"],
        "mcnemar": f"p = {m['p_value']:.2g} ({m['b']} / {m['c']})" if m else "–",
        "n": c["n"],
        "clusters": c["n_clusters"],
        "mde": f"{c['minimum_detectable_effect']:.1%}" if c.get("minimum_detectable_effect") is not None else "–",
        "verdict": c["verdict"],
    }


def _flips(story: Story) -> dict[str, Any]:
    flips = story.main_report["flips"]
    scores = story.scores()
    chosen = [(item, True) for item in _spread(flips["gained"], scores)] + [
        (item, False) for item in flips["lost"][: MAX_FLIPS // 3]
    ]
    rows = []
    for item, gained in chosen[:MAX_FLIPS]:
        base, tuned = scores["baseline"].get(item, {}), scores["candidate"].get(item, {})
        rows.append(
            {
                "gained": gained,
                "prompt": clip(prompt_text(tuned.get("prompt"))),
                "cluster": tuned.get("cluster", ""),
                "baseline": clip(base.get("completion", "")),
                "candidate": clip(tuned.get("completion", "")),
            }
        )
    return {"gained_n": len(flips["gained"]), "lost_n": len(flips["lost"]), "rows": rows}


def _spread(items: list[str], scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One item a family first, so that the table shows the breadth."""
    seen: set[str] = set()
    first = []
    for item in items:
        cluster = scores["candidate"].get(item, {}).get("cluster", "")
        if cluster not in seen:
            seen.add(cluster)
            first.append(item)
    return first[: MAX_FLIPS - 3]


def _samples(story: Story) -> list[dict[str, Any]]:
    rows = [
        {
            "step": sample["step"],
            "prompt": clip(prompt_text(sample["prompt"])),
            "completion": clip(sample["completion"]),
            "expected": clip(sample.get("expected", "")),
        }
        for sample in story.samples
    ]
    stride = max(1, -(-len(rows) // MAX_SAMPLES))
    return rows[::-1][::stride][::-1]


def prompt_text(prompt: Any) -> str:
    """The last user turn of a conversation, or the string itself."""
    if isinstance(prompt, list):
        return next((str(m.get("content", "")) for m in reversed(prompt) if m.get("role") == "user"), "")
    return str(prompt or "")


def clip(text: object) -> str:
    """Text that fits a table cell, with control characters made visible."""
    shown = "".join(c if c.isprintable() or c == " " else "␊" if c == "\n" else "�" for c in str(text))
    shown = _REPEATED.sub(lambda run: f"{run[1] * 3}… ({len(run[0])} times)", shown)
    return shown if len(shown) <= _CLIP else shown[:_CLIP] + "…"
