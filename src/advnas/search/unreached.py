"""Decisions that the loss never runs: what a search says of them is a guess, however long it lasts."""

import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advnas.search.search import Search

_SHOWN = 8  # decisions that are named


class UnreachedWarning(UserWarning):
    """A search has ended, and the loss never came to some of its decisions."""


def unreached(search: "Search") -> list[str]:
    """Name the decisions that no step of this object has come to; none before the first step.

    Decisions inside a candidate are left out: that it was never drawn is no mistake.
    """
    reached, decisions = search.parent.reached, search.space.decisions
    if reached is None:
        return []
    choices = {choice for decision in decisions for choice in decision.choices}
    nested = {inner for outer in choices for inner in outer.modules() if inner is not outer}
    return [
        decision.name
        for place, decision in enumerate(decisions)
        if place not in reached and not nested.issuperset(decision.choices)
    ]


def warn_unreached(search: "Search") -> None:
    """Warn of decisions that the loss never runs, by name; see `unreached`."""
    names = unreached(search)
    if names:
        more = f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else ""
        warnings.warn(
            f"Never reached: {', '.join(names[:_SHOWN])}{more}. The loss does not run these decisions, so theta "
            "learns nothing there, and the answer there is a guess, however long the search is. Call every Choice "
            "in the forward of its module, or remove it.",
            UnreachedWarning,
            stacklevel=4,
        )
