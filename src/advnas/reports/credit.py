"""What measured swaps say about the slopes that strategies learn from."""

from collections.abc import Iterator, Sequence

from advnas.reports.study import RunRecords, StudyRecords
from advnas.reports.tables import spread
from advnas.search.swaps import CreditCheck

HEADER = ("strategy", "runs", "swaps", "cosine", "decisions against", "slopes")


def credit_rows(study: StudyRecords) -> list[tuple[str, ...]]:
    """One row per strategy whose slopes were compared with measured swaps; see HEADER."""
    judged = {name: checks for name in study.strategies if (checks := checks_of(study.of(name)))}
    return [(name, *_cells(checks)) for name, checks in judged.items()]


def checks_of(runs: Sequence[RunRecords]) -> list[CreditCheck]:
    """The comparisons that the runs have made; short searches, and many strategies, make none."""
    return [run.result.credit for run in runs if run.result is not None and run.result.credit is not None]


def _cells(checks: Sequence[CreditCheck]) -> Iterator[str]:
    pooled, cosine = CreditCheck.pooled(checks), spread(check.cosine for check in checks)
    assert cosine is not None
    yield str(len(checks))
    yield str(len(pooled.swaps))
    yield cosine.written(2)
    yield f"{len(pooled.wrong_at)} of {len(pooled.decisions)}"
    yield {True: "agree", False: "contradict", None: "open"}[pooled.good]
