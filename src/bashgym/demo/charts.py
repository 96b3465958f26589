"""The report's pictures, drawn from files only. Each comes as SVG text (for the page) and as PNG (for everything else)."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

INK, MUTED, GRID = "#1f2430", "#6b7280", "#e5e7eb"
BASE, TUNED, ACCENT = "#9aa5b8", "#1f6feb", "#d97706"
MODELS = {"base model": BASE, "SFT": TUNED, "RLVR": "#18794e"}
"""The bars of a group, in their order."""


def _figure(width: float, height: float) -> tuple[Any, Any]:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update(
        {
            "font.family": "DejaVu Sans",
            "font.size": 9,
            "axes.edgecolor": GRID,
            "axes.labelcolor": MUTED,
            "xtick.color": MUTED,
            "ytick.color": MUTED,
            "text.color": INK,
            "svg.fonttype": "path",
            "svg.hashsalt": "bashgym",
        }
    )
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _save(figure: Any, png: Path) -> str:
    figure.savefig(png, dpi=160)
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def _smooth(values: Sequence[float], window: int) -> list[float]:
    """Trailing mean over at most `window` points."""
    out, total = [], 0.0
    for i, value in enumerate(values):
        total += value
        if i >= window:
            total -= values[i - window]
        out.append(total / min(i + 1, window))
    return out


def loss_curve(points: Sequence[Mapping[str, Any]], png: Path) -> str:
    """Training loss by step (raw and smoothed) and evaluation loss where there is one."""
    figure, axes = _figure(4.6, 3.0)
    train = [(p["step"], p["loss"]) for p in points if isinstance(p.get("loss"), int | float)]
    steps, losses = [s for s, _ in train], [v for _, v in train]
    axes.plot(steps, losses, color=TUNED, alpha=0.25, linewidth=0.8)
    axes.plot(steps, _smooth(losses, max(1, len(losses) // 40)), color=TUNED, linewidth=1.8, label="training loss")
    held = [(p["step"], p["eval_loss"]) for p in points if isinstance(p.get("eval_loss"), int | float)]
    if held:
        axes.plot(
            *zip(*held, strict=True), color=ACCENT, marker="o", markersize=3, linewidth=1.4, label="evaluation loss"
        )
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("cross-entropy, nats a token")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return _save(figure, png)


def reward_curve(points: Sequence[Mapping[str, Any]], png: Path) -> str:
    """Mean reward and the share of groups without contrast, by step."""
    figure, axes = _figure(4.6, 3.0)
    for name, label, colour in (
        ("reward", "mean reward", TUNED),
        ("frac_reward_zero_std", "groups without contrast", BASE),
    ):
        found = [(p["step"], p[name]) for p in points if isinstance(p.get(name), int | float)]
        if found:
            axes.plot(*zip(*found, strict=True), color=colour, linewidth=1.8, label=label)
    axes.set_xlabel("optimizer step")
    axes.set_ylim(0, 1.05)
    axes.legend(frameon=False)
    return _save(figure, png)


def pass_rates(groups: Mapping[str, Sequence[Mapping[str, Any]]], png: Path) -> str:
    """pass@1 of the models in the order base model, SFT, RLVR; a group of bars a split, with 95 % Wilson intervals."""
    figure, axes = _figure(4.6, 3.0)
    for i, rates in enumerate(groups.values()):
        for j, (rate, colour) in enumerate(zip(rates, MODELS.values(), strict=False)):
            at = i + 0.28 * (j - (len(rates) - 1) / 2)
            low, high, value = float(rate["ci_low"]), float(rate["ci_high"]), float(rate["value"])
            axes.bar(at, value, 0.26, color=colour)
            axes.errorbar(at, value, [[value - low], [high - value]], color=INK, capsize=3, linewidth=1)
            axes.annotate(f"{value:.0%}", (at, high), (0, 3), textcoords="offset points", ha="center", fontsize=8)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_ylim(0, 1.18)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.set_ylabel("pass@1")
    shown = list(MODELS.items())[: max(len(rates) for rates in groups.values())]
    handles = [axes.bar(0, 0, color=colour) for _, colour in shown]
    axes.legend(handles, [name for name, _ in shown], frameon=False, ncols=3, loc="upper right", fontsize=8)
    return _save(figure, png)


def by_cluster(rows: Sequence[Mapping[str, Any]], png: Path, names: tuple[str, str] = ("base model", "SFT")) -> str:
    """pass@1 by task family, of two models as two dots on a line."""
    rows = sorted(rows, key=lambda row: (row["candidate"], row["cluster"]))
    figure, axes = _figure(6.4, max(2.0, 0.24 * len(rows) + 0.8))
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.grid(axis="y", visible=False)
    for y, row in enumerate(rows):
        axes.plot([row["baseline"], row["candidate"]], [y, y], color=GRID, linewidth=3, zorder=1)
    axes.scatter([row["baseline"] for row in rows], range(len(rows)), color=BASE, s=28, zorder=2, label=names[0])
    axes.scatter([row["candidate"] for row in rows], range(len(rows)), color=TUNED, s=28, zorder=3, label=names[1])
    axes.set_yticks(range(len(rows)), [f"{row['cluster']} ({row['n']})" for row in rows], fontsize=8)
    axes.set_xlim(-0.03, 1.03)
    axes.set_xlabel("share of held-out tasks passed")
    axes.legend(frameon=False, loc="lower right")
    return _save(figure, png)
