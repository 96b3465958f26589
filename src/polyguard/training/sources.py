"""Sources of the corpus beside played episodes. Each gives (rows, why there are none), and never fails for being offline."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bashgym.core.canonical import digest_bytes
from bashgym.core.clock import utc_now
from bashgym.core.files import append_line
from polyguard.env.tasks import template_split
from polyguard.knowledge import load

Row = dict[str, Any]
Found = tuple[list[Row], str | None]
SYSTEM = "Medication safety simulation for research only. Answer with one JSON object and nothing else."
OPENFDA = "https://api.fda.gov/drug/label.json"
CACHE = Path("data/raw/openfda_cache.jsonl")
ALLOWED = ("www.cdc.gov", "www.nia.nih.gov", "deprescribing.org")
"""Domains that the web source may read."""
_TIMEOUT_S, _MAX_BYTES, _MAX_TEXT = 10.0, 2 << 20, 1200


def local(limit: int, seed: int) -> Found:
    """Questions and answers from the knowledge tables; pairs of the training split only."""
    rows = list(_questions())
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(rows))[:limit]
    return [{**rows[at], "id": f"local-{number:05d}"} for number, at in enumerate(order)], None


def _questions() -> Iterator[Row]:
    knowledge = load()
    for pair, hit in sorted(knowledge.pairs.items(), key=lambda item: sorted(item[0])):
        a, b = sorted(pair)
        if template_split(f"{a}+{b}") == "train":
            yield _row(f"interaction {a} {b}", {"severity": hit.severity, "effect": hit.effect}, hit.source)
    for name, drug in sorted(knowledge.drugs.items()):
        rule = knowledge.taper(name)
        if rule:
            answer = {"step_pct": rule.max_step_pct, "interval_days": rule.interval_days}
            yield _row(f"withdraw {name}", answer, rule.source)
        if drug.max_daily_mg:
            yield _row(f"most mg a day {name}", {"max_daily_mg": drug.max_daily_mg}, "fda_label")
        for item in knowledge.substitutes(name)[:1]:
            yield _row(f"instead of {name}", {"drug": item.to, "when": item.when}, item.source)


def _row(question: str, answer: dict[str, Any], source: str) -> Row:
    turns = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": question},
        {"role": "assistant", "content": json.dumps(answer, separators=(",", ":"))},
    ]
    return {"source": "local", "split": "train", "messages": turns, "provenance": source}


def hugging_face(limit: int, seed: int) -> Found:
    """An instruction dataset that POLYGUARD_HF_DATASET names (columns `messages`), where the Hub can be reached."""
    name = os.environ.get("POLYGUARD_HF_DATASET", "")
    if not name:
        return [], "no dataset is named: set POLYGUARD_HF_DATASET"
    if os.environ.get("HF_HUB_OFFLINE") == "1":
        return [], "offline"
    try:
        from datasets import load_dataset

        rows = load_dataset(name, split="train", streaming=True).shuffle(seed=seed, buffer_size=1000).take(limit)
        turns = [row["messages"] for row in rows if isinstance(row.get("messages"), list)]
    except Exception as error:  # noqa: BLE001  a library's network, format and permission faults have no common class
        return [], f"{type(error).__name__}: {str(error)[:200]}"
    made = [
        {"id": f"hf-{i:05d}", "source": "hf", "split": "train", "messages": t, "provenance": name}
        for i, t in enumerate(turns)
    ]
    return made, None if made else f"{name} has no column messages"


def openfda(limit: int, seed: int) -> Found:
    """Interaction sections of drug labels, as weak text; cached with address, date and digest. Never changes legality."""
    known = {row["drug"]: row for row in _cached()}
    rows: list[Row] = []
    for name in sorted(load().drugs)[: max(1, limit)]:
        if name not in known:
            try:
                known[name] = _label(name)
            except (OSError, ValueError, KeyError, IndexError) as error:
                if isinstance(error, urllib.error.HTTPError) and error.code == 404:
                    continue
                return rows, f"offline: {type(error).__name__}: {str(error)[:160]}"
            append_line(CACHE, msgspec.json.encode(known[name]))
        answer = {"label": known[name]["text"]}
        rows.append(
            {**_row(f"label of {name}", answer, "openfda"), "id": f"openfda-{name}", "source": "ddi_api", "weak": True}
        )
    return rows, None


def _cached() -> list[Row]:
    if not CACHE.is_file():
        return []
    return [msgspec.json.decode(line) for line in CACHE.read_bytes().splitlines() if line.strip()]


def _label(name: str) -> Row:
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    query = urllib.parse.urlencode({"search": f'openfda.generic_name:"{name.replace("_", " ")}"', "limit": 1})
    raw = _get(f"{OPENFDA}?{query}")
    text = str(msgspec.json.decode(raw)["results"][0]["drug_interactions"][0])[:_MAX_TEXT]
    return {
        "drug": name,
        "url": f"{OPENFDA}?{query}",
        "fetched_at": utc_now(),
        "sha256": digest_bytes(raw),
        "text": text,
    }


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as reply:  # noqa: S310  https only: the addresses are ours
        body: bytes = reply.read(_MAX_BYTES)
    return body


def web(limit: int, seed: int) -> Found:
    """Pages that POLYGUARD_WEB_PAGES names (https, allowed domains), as weak text."""
    pages = [page for page in os.environ.get("POLYGUARD_WEB_PAGES", "").split() if page]
    if not pages:
        return [], "no page is named: set POLYGUARD_WEB_PAGES"
    rows: list[Row] = []
    for page in pages[:limit]:
        parts = urllib.parse.urlsplit(page)
        if parts.scheme != "https" or parts.hostname not in ALLOWED:
            return rows, f"{page[:80]} is not https on one of {', '.join(ALLOWED)}"
        try:
            text = _get(page).decode("utf-8", "replace")
        except OSError as error:
            return rows, f"offline: {type(error).__name__}: {str(error)[:160]}"
        rows.append(
            {
                **_row(f"page {page}", {"text": _plain(text)}, page),
                "id": f"web-{len(rows)}",
                "source": "web",
                "weak": True,
            }
        )
    return rows, None


def _plain(html: str) -> str:
    from html.parser import HTMLParser

    class Text(HTMLParser):
        parts: list[str]

        def handle_data(self, data: str) -> None:
            self.parts.append(data)

    reader = Text()
    reader.parts = []
    reader.feed(html)
    return " ".join(" ".join(reader.parts).split())[:_MAX_TEXT]
