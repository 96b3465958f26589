"""What the demo has to tell, in words and numbers, read back from the files that the run and its evaluation left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bashgym.store.jsonl import iter_jsonl
from bashgym.store.run_dir import RunDir


@dataclass
class SecondAct:
    """RLVR from the first run's model: the run, its evaluation against that model, and its card."""

    run: RunDir
    report: dict[str, Any]
    card_result: dict[str, Any]
    card_path: Path

    def sentence(self) -> str:
        """What the comparison says, and where the card stands."""
        c, rate = self.report["comparison"], self.report["pass_rate"]
        better = (
            "better than the SFT model" if c["verdict"] == "improved" else "not shown to be better than the SFT model"
        )
        decision = self.card_result["run_card"]["decision"]
        missing = [f["code"] for f in self.card_result["findings"] if f["level"] in ("fail", "blocker", "error")]
        lacks = f": {', '.join(missing)}" if missing else ""
        return (
            f"From {rate['baseline']['value']:.1%} to {rate['candidate']['value']:.1%}, {better} "
            f"({c['effect'] * 100:+.1f} points, 95 % interval {c['ci_low'] * 100:+.1f} to {c['ci_high'] * 100:+.1f}, "
            f"n = {c['n']} pairs). Its RunCard says {decision}{lacks}."
        )

    def summary(self) -> dict[str, Any]:
        """The second act in the demo's result."""
        return {
            "run_id": self.run.run_id,
            "sentence": self.sentence(),
            "pass_rate": {label: rate["value"] for label, rate in self.report["pass_rate"].items()},
            "comparison": {k: v for k, v in self.report["comparison"].items() if not isinstance(v, list)},
            "run_card": str(self.card_path),
            "run_dir": str(self.run.path),
        }


@dataclass
class Story:
    """The records of one run, one or more evaluations (by split, the first is the one the gate used) and a RunCard."""

    run: RunDir
    reports: dict[str, dict[str, Any]]
    card_result: dict[str, Any]
    card_path: Path
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    second: SecondAct | None = None

    def __post_init__(self) -> None:
        self.manifest = self.run.manifest()
        self.metrics, self.samples = self.run.metrics(), self.run.samples()
        self.request = self.run.request()

    @property
    def main_report(self) -> dict[str, Any]:
        """The evaluation that the gate used."""
        return next(iter(self.reports.values()))

    @property
    def title(self) -> str:
        """Headline of the page."""
        return f"{self.manifest['model']['name']}: {self.manifest['strategy'].upper()} on shell tasks"

    @property
    def subtitle(self) -> str:
        """Run id, date and seed."""
        return f"{self.run.run_id} · {self.manifest['created_at'][:10]} · seed {self.manifest['seed']}"

    def promoted(self) -> bool:
        """True if the RunCard may say promote."""
        return bool(self.card_result["ok"]) and self.card_result["run_card"]["decision"] == "promote"

    def verdict(self) -> dict[str, str]:
        """The badge and its two sentences."""
        c = self.main_report["comparison"]
        interval = f"{c['ci_low'] * 100:+.1f} to {c['ci_high'] * 100:+.1f}"
        numbers = f"{c['effect'] * 100:+.1f} points on held-out tasks, 95 % interval {interval}"
        if self.promoted():
            return {
                "kind": "promote",
                "word": "PROMOTE",
                "sentence": f"The candidate is better: {numbers}.",
                "detail": self._detail(),
            }
        kind = "reject" if c["verdict"] == "regressed" else "hold"
        return {
            "kind": kind,
            "word": kind.upper(),
            "sentence": f"Not shown to be better: {numbers}.",
            "detail": self._detail(),
        }

    def _detail(self) -> str:
        c = self.main_report["comparison"]
        return (
            f"Every task was executed in a sandbox without network; n = {c['n']} pairs over {c['n_clusters']} task families, "
            f"one look. " + " ".join(self.notes)
        )

    def tiles(self) -> list[dict[str, str]]:
        """The numbers under the verdict."""
        rate = self.main_report["pass_rate"]
        last = [p for p in self.metrics if isinstance(p.get("loss"), int | float)]
        steps, names = [rate["baseline"]["value"], rate["candidate"]["value"]], ""
        if self.second:
            steps.append(self.second.report["pass_rate"]["candidate"]["value"])
            names = ": base, SFT, RLVR"
        tiles = [
            {"value": " → ".join(f"{step:.0%}" for step in steps), "label": f"pass@1, held-out values{names}"},
            {
                "value": f"{last[0]['loss']:.2f} → {last[-1]['loss']:.2f}",
                "label": f"{self.manifest['strategy'].upper()} loss over {last[-1]['step']} steps",
            },
            {"value": f"{self.manifest['model']['n_parameters'] / 1e6:.1f} M", "label": "parameters"},
            {"value": f"{self.manifest['dataset']['train_rows']:,}", "label": "training rows"},
        ]
        if self.seconds:
            tiles.append({"value": f"{sum(self.seconds.values()):.0f} s", "label": "whole demo on this machine"})
        return tiles

    def scores(self) -> dict[str, dict[str, dict[str, Any]]]:
        """label → item id → per-example score of the main evaluation, first attempt."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for label, entry in self.main_report["scores"].items():
            path = Path(entry["path"])
            found[label] = {row["item_id"]: row for row in iter_jsonl(path) if row.get("attempt", 0) == 0}
        return found

    def lineage(self) -> list[dict[str, str]]:
        """Dataset → model → run → evaluation → card, each with the digest that was measured."""
        m, suite = self.manifest, self.main_report["suite"]
        return [
            {"what": "Dataset", "name": f"{m['dataset']['rows']:,} rows", "digest": f"sha256 {m['dataset']['digest']}"},
            {"what": "Base model", "name": m["model"]["name"], "digest": f"sha256 {m['model']['digest']}"},
            {"what": "Run", "name": self.run.run_id, "digest": f"request sha256 {m['request_digest']}"},
            {"what": "Candidate", "name": "final/", "digest": f"sha256 {self.main_report['candidate']['digest']}"},
            {
                "what": "Suite",
                "name": f"{suite['name']} ({suite['split']}, seed {suite['seed']}, {suite['n_items']} tasks)",
                "digest": f"sha256 {suite['digest']}",
            },
            {
                "what": "Evaluation",
                "name": self.main_report["eval_id"],
                "digest": f"scores sha256 {self.main_report['scores']['candidate']['sha256']}",
            },
            {
                "what": "RunCard",
                "name": self.card_path.name,
                "digest": f"{len(self.card_result['run_card'].get('evidence', []))} pieces of evidence bound by sha256",
            },
        ]

    def card_summary(self) -> dict[str, Any]:
        """Headline, findings, and the command that checks the card again."""
        explanation: Mapping[str, Any] = self.card_result.get("promotion_explanation") or {}
        return {
            "headline": explanation.get("headline", ""),
            "findings": [{k: f.get(k, "") for k in ("level", "code", "message")} for f in self.card_result["findings"]],
            "command": f"bashgym training runcard validate {self.card_path} --promotion",
        }

    def footer(self) -> list[str]:
        """Environment and timings."""
        env = self.manifest["environment"]
        packages = ", ".join(
            f"{name} {version}"
            for name, version in env["packages"].items()
            if name in ("torch", "transformers", "trl", "peft")
        )
        lines = [f"Python {env['python']} on {env['system']} {env['machine']}; {packages}."]
        if self.seconds:
            lines.append("Time: " + ", ".join(f"{name} {value:.0f} s" for name, value in self.seconds.items()) + ".")
        return lines
