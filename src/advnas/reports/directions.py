"""Whether theta's direction is known: at every decision, its preferred operation against each rival.

The journal of a search allows one of three comparisons, by what the strategy learns from:

- contrasts: at a step, how much higher the reward would be with a rival in the place of the drawn operation. A
  slope flatters whatever is not drawn. So the mean over the steps that drew the one and the mean over the steps
  that drew the other count alike, where there are both.
- shares: dr/dw_i of the drawn operation. Steps that drew the one are compared with steps that drew the other.
- losses: of the drawn architecture, the same way, where a strategy learns from nothing else.

Shares and losses change while the weights learn, so steps are compared within the same tenth of the search only.
"""

import csv
import io
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from advnas import strategies
from advnas.costs import Cost, Limit
from advnas.records.files import parse_json
from advnas.records.journal import read_journal
from advnas.reports.study import RunRecords, StudyRecords

BEYOND = 2  # standard errors: what a lead must exceed
_ENOUGH = 4  # fewer values do not tell how far they scatter
_PERIODS = 10
_FIELDS = ("strategy", "seed", "decision", "operation", "rival", "lead", "standard_error", "comparisons", "known")
HEADER = ("decision", "theta prefers", "closest rival", "lead", "comparisons", "direction")

Line = Mapping[str, Any]
Drawn = Mapping[str, Mapping[int, Sequence[float]]]
"""What was recorded when an operation was drawn: [operation][tenth of the search]."""


class Lead(NamedTuple):
    """How much more reward the preferred operation brings than a rival, on the mean of some comparisons.

    error: the standard error of that mean; infinite where there are too few comparisons to tell.
    outside: whether the answer with the rival in its place would exceed a limit of the search.
    """

    rival: str
    mean: float
    error: float
    comparisons: int
    outside: bool = False

    @property
    def known(self) -> bool:
        """Whether the lead is beyond noise."""
        return self.mean > BEYOND * self.error

    @property
    def against(self) -> bool:
        """Whether the rival is ahead beyond noise."""
        return self.mean < -BEYOND * self.error

    @property
    def compared(self) -> bool:
        """Whether there are enough comparisons to tell anything."""
        return math.isfinite(self.error)

    def __str__(self) -> str:
        if not self.compared:
            return f"too seldom compared: {self.comparisons} times"
        return f"{self.mean:+.2g} ± {self.error:.1g} over {self.comparisons}"


class Direction(NamedTuple):
    """The operation that theta prefers at a decision, and its lead over each rival that it can be compared with."""

    decision: str
    operation: str
    leads: tuple[Lead, ...]

    @property
    def known(self) -> bool:
        """Whether it leads all rivals beyond noise."""
        return bool(self.leads) and all(lead.known for lead in self.leads)

    @property
    def closest(self) -> Lead | None:
        """The rival with which it is open, if there is one, or else the one that comes closest."""
        compared = [lead for lead in self.leads if lead.compared]
        seldom = [lead for lead in self.leads if not lead.compared]
        nearest = min(compared, key=_certainty, default=None)
        return seldom[0] if seldom and (nearest is None or nearest.known) else nearest


class Directions(NamedTuple):
    """What a run knows about its decisions. source: what was compared; where nothing could be, why not."""

    source: str
    found: tuple[Direction, ...] = ()


class DirectionTable(NamedTuple):
    """What a page says about the directions of one run. rows: cells, and what is told of all rivals on demand."""

    title: str
    source: str
    rows: tuple[tuple[tuple[str, ...], str], ...]


def all_directions(study: StudyRecords) -> dict[str, Directions]:
    """Those of every run whose strategy learns, by the name of the run."""
    return {run.name: directions(run) for run in study.runs if run.learns}


def directions(run: RunRecords) -> Directions:
    """Compare the operation that theta prefers with each rival, from the journal of the run."""
    source, found = _compared(run)
    limits = _limits_of(run)

    def judged(one: Direction) -> Direction:
        swapped = ({**run.latest.argmax, one.decision: lead.rival} for lead in one.leads)
        outside = [not all(limit.allows(other) for limit in limits) for other in swapped]
        return one._replace(
            leads=tuple(lead._replace(outside=out) for lead, out in zip(one.leads, outside, strict=True))
        )

    return Directions(source, tuple(map(judged, found)) if limits else found)


def _limits_of(run: RunRecords) -> list[Limit]:
    """The limits of an `advnas search`, whose folder holds what operations cost; elsewhere none are known."""
    path = run.folder.parent.parent / "costs.json"
    if run.evaluation is None or not run.evaluation.spent or not path.exists():
        return []
    known = map(Cost.from_json, parse_json(path.read_bytes(), str(path)).get("costs", []))
    costs = {cost.name: cost for cost in known}
    return [Limit(costs[one.name], one.limit) for one in run.evaluation.spent if one.name in costs]


def _compared(run: RunRecords) -> Directions:
    path = run.folder / "metrics.jsonl"
    lines = [line for line in read_journal(path) if line.get("phase") == "architecture"] if path.exists() else []
    if not lines:
        return Directions("its steps were not kept")
    if not any(line.get("architecture") for line in lines):
        return Directions("its steps mix operations, and the journal keeps one number for the mixture")
    if any(line.get("contrasts") for line in lines):
        return Directions("contrasts of the two operations", tuple(_from_contrasts(run, lines)))
    if any(line.get("advantages") for line in lines):
        return Directions("shares of the reward, dr/dw", tuple(_from_values(run, lines, "advantages")))
    if _learns_from_more(run):
        return Directions("it learns from further passes, which the journal does not keep")
    return Directions("losses of whole architectures", tuple(_from_values(run, lines, "loss")))


def direction_tables(study: StudyRecords, known: Mapping[str, Directions]) -> list[DirectionTable]:
    """One per strategy that learns, of its first run; see HEADER."""
    tables = []
    for strategy in study.learning:
        run = study.of(strategy)[0]
        source, found = known[run.name]
        rows = tuple((_row(one), "\n".join(f"against {lead.rival}: {lead}" for lead in one.leads)) for one in found)
        count = f"{sum(one.known for one in found)} of {len(found)} directions known" if found else "not known"
        tables.append(DirectionTable(f"{strategy}, seed {run.seed}: {count}", source, rows))
    return tables


def directions_csv(study: StudyRecords, known: Mapping[str, Directions]) -> str:
    """One line per run, decision and rival. known: 1 or 0. An error is empty where it cannot be told."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_FIELDS)
    for run in study.runs:
        for decision, operation, leads in known[run.name].found if run.name in known else ():
            for lead in leads:
                numbers = (lead.mean, lead.error) if lead.compared else ("", "")
                line = (run.strategy, run.seed, decision, operation, lead.rival, *numbers, lead.comparisons)
                writer.writerow([*line, int(lead.known)])
    return text.getvalue()


def _row(direction: Direction) -> tuple[str, ...]:
    lead = direction.closest
    if lead is None:
        return (direction.decision, direction.operation, "-", "-", "0", "not compared")
    told = f"{lead.mean:+.2g} ± {lead.error:.1g}" if lead.compared else "-"
    ahead = "rival ahead, over the limit" if lead.outside else "rival ahead"
    word = "known" if direction.known else ahead if lead.against else "open"
    return (direction.decision, direction.operation, lead.rival, told, str(lead.comparisons), word)


def _certainty(lead: Lead) -> float:
    return lead.mean / lead.error if lead.error else math.copysign(math.inf, lead.mean)


def _learns_from_more(run: RunRecords) -> bool:
    """Whether a step of the strategy runs more than the one architecture whose loss is in the journal."""
    if run.strategy not in strategies.names():
        return False
    sizes = [len(row) for row in run.records[-1].probabilities.values()]
    return strategies.get(run.strategy).architecture_passes(sizes) > 1


def _preferred(run: RunRecords) -> Iterator[tuple[str, str, list[str]]]:
    """Every decision of the answer that has a choice, with the operation that theta prefers and its rivals."""
    for decision, row in run.rows(run.records[-1]).items():
        best = run.latest.argmax[decision]
        if len(row) > 1:
            yield decision, best, [name for name in row if name != best]


def _from_contrasts(run: RunRecords, lines: Sequence[Line]) -> Iterator[Direction]:
    gains: dict[tuple[str, str, str], list[float]] = {}
    for line in lines:
        for decision, own in line.get("contrasts", {}).items():
            for rival, gain in own.items():
                gains.setdefault((decision, line["architecture"][decision], rival), []).append(gain)
    for decision, best, rivals in _preferred(run):
        drawn = {name: [-gain for gain in gains.get((decision, best, name), ())] for name in rivals}
        other_drawn = {name: gains.get((decision, name, best), []) for name in rivals}
        leads = (_lead(name, (drawn, other_drawn)) for name in rivals)
        yield Direction(decision, best, tuple(leads))


def _lead(rival: str, roles: Sequence[Mapping[str, Sequence[float]]]) -> Lead:
    """Average the two roles, or take the only one that was seen. roles: what was gained over each rival."""
    seen = [role for role in roles if role[rival]]
    comparisons = sum(len(role[rival]) for role in seen)
    variances = [_variance(rival, role) for role in seen]
    if comparisons < _ENOUGH or None in variances:
        return Lead(rival, 0.0, math.inf, comparisons)
    mean = statistics.fmean(statistics.fmean(role[rival]) for role in seen)
    squares = sum(known / len(role[rival]) for role, known in zip(seen, variances, strict=True) if known)
    return Lead(rival, mean, math.sqrt(squares) / len(seen), comparisons)


def _variance(rival: str, role: Mapping[str, Sequence[float]]) -> float | None:
    """That of the rival's own values; where they are few, that of all rivals together. None: still too few."""
    groups = [role[rival]] if len(role[rival]) >= _ENOUGH else [values for values in role.values() if values]
    free = sum(len(values) - 1 for values in groups)
    return sum(map(_squares, groups)) / free if free >= _ENOUGH - 1 else None


def _from_values(run: RunRecords, lines: Sequence[Line], key: str) -> Iterator[Direction]:
    for decision, best, rivals in _preferred(run):
        drawn = _by_operation(lines, key, decision)
        # The share of a zero operation is 0 at every step: there is nothing to compare it by.
        idle = {name for name, own in drawn.items() if not any(value for part in own.values() for value in part)}
        others = [] if best in idle else [name for name in rivals if name not in idle]
        yield Direction(
            decision,
            best,
            tuple(_lead_by_period(name, drawn.get(best, {}), drawn.get(name, {})) for name in others),
        )


def _by_operation(lines: Sequence[Line], key: str, decision: str) -> Drawn:
    found: dict[str, dict[int, list[float]]] = {}
    for number, line in enumerate(lines):
        operation = (line.get("architecture") or {}).get(decision)
        value = -line["loss"] if key == "loss" else line[key].get(decision)
        if operation is not None and value is not None:
            period = _PERIODS * number // len(lines)
            found.setdefault(operation, {}).setdefault(period, []).append(value)
    return found


def _lead_by_period(rival: str, ours: Mapping[int, Sequence[float]], theirs: Mapping[int, Sequence[float]]) -> Lead:
    """Compare steps of the same period; periods count by how well their difference is known."""
    both = [(ours[period], theirs[period]) for period in ours if period in theirs]
    steps, free = sum(len(a) + len(b) for a, b in both), sum(len(a) + len(b) - 2 for a, b in both)
    if free < _ENOUGH:
        return Lead(rival, 0.0, math.inf, steps)
    weights = [len(a) * len(b) / (len(a) + len(b)) for a, b in both]
    gaps = [statistics.fmean(a) - statistics.fmean(b) for a, b in both]
    mean = sum(weight * gap for weight, gap in zip(weights, gaps, strict=True)) / sum(weights)
    scatter = sum(_squares(a) + _squares(b) for a, b in both) / free
    return Lead(rival, mean, math.sqrt(scatter / sum(weights)), steps)


def _squares(values: Iterable[float]) -> float:
    known = list(values)
    mean = statistics.fmean(known)
    return sum((value - mean) ** 2 for value in known)
