"""What the registry says about itself is complete, small where it should be, and equal to the committed page."""

import json
from pathlib import Path

import pytest

from bashgym.core.errors import BashGymError
from bashgym.methods import catalog, registry
from bashgym.methods.__main__ import main

PAGE = Path(__file__).parents[3] / "docs/methods.md"


def test_the_committed_page_is_the_generated_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == catalog.methods_markdown(), "run python -m bashgym.methods"


def test_check_mode_finds_a_difference_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "methods.md"
    assert main(["--check", str(path)]) == 1 and not path.exists()
    assert main([str(path)]) == 0 and main(["--check", str(path)]) == 0
    path.write_text(path.read_text() + "x")
    assert main(["--check", str(path)]) == 1


def test_the_page_names_every_field_metric_and_method() -> None:
    text = catalog.methods_markdown()
    names = [*registry.FIELDS, *registry.METHODS, *(m.key for m in catalog.all_metrics())]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_table_rows_have_as_many_cells_as_their_head() -> None:
    width = 0
    for line in catalog.methods_markdown().splitlines():
        cells = line.replace("\\|", "").count("|") if line.startswith("|") else 0
        width = width or cells
        assert cells in (0, width), line
        width = cells


def test_capabilities_describe_every_field_of_every_strategy() -> None:
    document = json.loads(json.dumps(catalog.capabilities(), allow_nan=False))
    common = {field["name"] for field in document["common_fields"]}
    for name, entry in document["strategies"].items():
        described = {field["name"] for field in entry["own_fields"]} | (common if entry["direct"] else set())
        assert described == set(entry["fields"]) == set(registry.fields_of(registry.get(name)))
    assert document["built_strategies"] == registry.direct_names()
    assert document["compute_targets"]["built"] == ["local"]
    assert set(document["artifact_retention"]) == {"adapter_only", "adapter_checkpoint", "deployable", "full_run"}
    assert set(document["planning_only"]) == set(registry.METHODS) - set(document["direct_strategies"])


def test_the_manifest_is_small_and_versioned() -> None:
    text = json.dumps(catalog.manifest())
    assert len(text) < 6000
    assert catalog.manifest()["capabilities"]["digest"] == catalog.manifest()["capabilities"]["digest"]


@pytest.mark.parametrize(
    "topic",
    [
        "strategy",
        "world-models",
        "metrics",
        "glossary",
        "terminal-rl-recipe",
        "session-distillation",
        "autoresearch-campaign",
    ],
)
def test_every_topic_has_a_text_of_its_own(topic: str) -> None:
    bare, full = catalog.docs(topic), catalog.docs(topic, include_content=True)
    assert [set(e) for e in bare["topics"]] == [{"topic", "summary", "path"}]
    assert len(full["topics"][0]["content"]) > 300
    assert f"## {topic}\n" in PAGE.read_text(encoding="utf-8")


def test_without_a_topic_all_are_listed() -> None:
    assert len(catalog.docs()["topics"]) == 7


def test_an_unknown_topic_is_refused() -> None:
    with pytest.raises(BashGymError) as caught:
        catalog.docs("cooking")
    assert caught.value.code == "invalid_field" and caught.value.fields == ["topic"]
