"""`bashgym eval power`: how large an evaluation has to be, before it is paid for."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bashgym.cli.output import Reply, table


def power(
    *,
    items: Annotated[int, typer.Option(help="Items that both models answer once.", min=1)] = 300,
    effect: Annotated[float | None, typer.Option(help="True gain to be shown, as a share such as 0.05.")] = None,
    discordance: Annotated[float, typer.Option(help="Share of items on which the models differ.", min=0, max=1)] = 0.2,
    candidate: Annotated[int, typer.Option(help="Which candidate against this baseline on these items.", min=1)] = 1,
    looks: Annotated[int, typer.Option(help="Planned looks at growing data, evenly spaced.", min=1, max=20)] = 1,
    spending: Annotated[str, typer.Option(help="obrien_fleming or pocock.")] = "obrien_fleming",
) -> Reply:
    """What a paired comparison can show with 80 % power, and how many items a gain needs.

    Items are taken as independent; where families differ in how far training moves them, more are needed.
    """
    from bashgym.evals import multiplicity, stats

    alpha = multiplicity.candidate_alpha(candidate)
    planned = multiplicity.boundaries([(i + 1) / looks for i in range(looks)], spending, alpha)
    doc: dict[str, Any] = {
        "items": items,
        "discordance": discordance,
        "alpha": alpha,
        "power": stats.POWER,
        "least_clusters": multiplicity.least_clusters(alpha),
        "minimum_detectable_effect": stats.minimum_detectable_effect(items, discordance, alpha=alpha),
        "effect": effect,
        "items_needed": None if effect is None else stats.items_needed(effect, discordance, alpha=alpha),
        "looks": [look._asdict() for look in planned],
    }
    return Reply(doc, lambda: _show(doc))


def _show(doc: dict[str, Any]) -> None:
    print(f"{doc['items']} items show a gain of {doc['minimum_detectable_effect']:.1%} four times in five")
    print(f"at least {doc['least_clusters']} families; alpha {doc['alpha']:.3g}")
    if doc["items_needed"]:
        print(f"a gain of {doc['effect']:.1%} needs {doc['items_needed']} items")
    if len(doc["looks"]) > 1:
        table(doc["looks"], ["share", "z", "alpha", "spent"])
