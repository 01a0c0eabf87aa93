"""What can be said about a search when it ends: is its answer decided, and what to change if it is not."""

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from advnas import strategies
from advnas.notebook import table
from advnas.structure import Nesting, part_of

if TYPE_CHECKING:
    from advnas.search.search import Search

CLOSE = 0.1  # an operation that is less than this more likely than the next has not won
DECIDED_ENTROPY = 0.5  # of the entropy at the start
MANY_FREE = 0.75  # of the decisions between operations with and without weights
_SHOWN = 8  # decisions that are named

MARKS = {True: "+", False: "!", None: "-"}

_NO_EVIDENCE = (
    "A search settles in its time also where no operation is better than the others. Whether the answer beats "
    "chance takes several seeds and 'ranked_random' at equal cost: `advnas search` compares them."
)


class UndecidedWarning(UserWarning):
    """A search has ended, and its answer is little better than a guess."""


class Remark(NamedTuple):
    """One thing worth knowing. good: True, False, or None where it is neither."""

    good: bool | None
    text: str


@dataclass(frozen=True)
class Verdict:
    """What is known about a search as it stands. decided: whether its answer can be told from the others."""

    remarks: tuple[Remark, ...]
    decided: bool

    def __str__(self) -> str:
        return "\n".join(f"{MARKS[remark.good]} {remark.text}" for remark in self.remarks)

    def _repr_html_(self) -> str:
        return table("Verdict", ((MARKS[remark.good], remark.text) for remark in self.remarks))


Rows = Mapping[str, Mapping[str, float]]
"""By decision: the probability of every operation."""


def undecided(probabilities: Rows) -> list[str]:
    """Decisions whose two most likely operations are close."""
    ranked = {name: sorted(row.values(), reverse=True) for name, row in probabilities.items()}
    return [name for name, row in ranked.items() if len(row) > 1 and row[0] - row[1] < CLOSE]


def free_share(sizes: Mapping[str, Mapping[str, int]], answer: Mapping[str, str]) -> float | None:
    """Of the decisions where operations with and without weights compete, how many went to one without."""
    contested = [name for name, own in sizes.items() if min(own.values()) == 0 < max(own.values())]
    if not contested:
        return None
    return sum(sizes[name][answer[name]] == 0 for name in contested) / len(contested)


def initial_entropy(search: "Search") -> float:
    """Mean over the decisions, of a theta that has learnt nothing; in nats."""
    return statistics.fmean(math.log(size) for size in search.space.sizes)


def mean_entropy(probabilities: Rows) -> float:
    """Mean over the decisions, in nats."""
    return statistics.fmean(-sum(p * math.log(p) for p in row.values() if p > 0) for row in probabilities.values())


def is_decided(search: "Search") -> bool:
    """Whether the entropy is at most half of its start, and nowhere the two most likely operations are close.

    Only decisions that the most likely network contains count.
    """
    rows = _rows_of_answer(search)
    return _entropy_share(rows) <= DECIDED_ENTROPY and not undecided(rows)


def verdict_of(search: "Search") -> Verdict:
    """Say what is known: entropy, decisions that are open, operations without weights, measured swaps."""
    name = strategies.name_of(search.strategy)
    if not search.strategy.learns:
        return Verdict((Remark(None, f"{name} learns nothing; its answer is not that of theta."),), decided=True)
    if not search.architecture_steps:
        return Verdict((Remark(False, "Theta has not taken a step yet: nothing is known."),), decided=False)
    decided = is_decided(search)
    evidence = [Remark(None, _NO_EVIDENCE)] if decided else []
    return Verdict((*_certainty(search), *_collapse(search), *_credit(search), *evidence), decided)


def undecided_warning(search: "Search") -> str:
    """Say why the answer is undecided and what to change."""
    facts = " ".join(remark.text for remark in _certainty(search) if remark.good is not True)
    rates = ", ".join(f"{rate:g}" for rate in search.policy.rates.initial)
    return (
        f"The search is undecided: {facts} Search longer (a larger epochs=; a search with a folder can be extended "
        "with resume=True), or let theta learn faster: Search(..., architecture_optimizer=partial("
        f"torch.optim.Adam, lr=...)) with more than {rates}. search.verdict() says it again."
    )


def _rows_of_answer(search: "Search") -> Rows:
    """The probabilities at the decisions that the most likely network contains."""
    rows = search.probabilities()
    return {name: rows[name] for name in _part_of_answer(search)}


def _part_of_answer(search: "Search") -> list[str]:
    return part_of(Nesting.of(search.space).nested, search.argmax())


def _entropy_share(probabilities: Rows) -> float:
    start = statistics.fmean(math.log(len(row)) for row in probabilities.values())
    return mean_entropy(probabilities) / start if start else 0.0


def _certainty(search: "Search") -> Iterator[Remark]:
    rows, steps = _rows_of_answer(search), search.architecture_steps
    share = _entropy_share(rows)
    which = "decisions" if len(rows) == len(search.space) else "decisions that the answer contains"
    told = f"The entropy of the {which} is {100 * share:.0f} % of its start after {steps:,} steps of theta"
    settled = share <= DECIDED_ENTROPY
    yield Remark(settled, f"{told}: the search has {'' if settled else 'not '}settled.")
    names = undecided(rows)
    if names:
        more = f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else ""
        listed = ", ".join(names[:_SHOWN]) + more
        yield Remark(None, f"Two operations are as good as equal (less than {CLOSE:g} apart) at {listed}.")


def _collapse(search: "Search") -> Iterator[Remark]:
    sizes, answer = search.space.operation_sizes(), search.argmax()
    share = free_share({name: sizes[name] for name in _part_of_answer(search)}, answer)
    if share is not None:
        told = f"{100 * share:.0f} % of the chosen operations have no weights, where others have some"
        bad = share > MANY_FREE
        yield Remark(
            not bad, f"{told}: {'it may have collapsed onto what trains fastest' if bad else 'no collapse'}."
        )


def _credit(search: "Search") -> Iterator[Remark]:
    credit = None if search.latest_run is None else search.latest_run.credit
    if credit is not None and credit.enough:
        yield Remark(credit.good, str(credit))
