"""What a search was worth, in words: did it beat chance, did it settle, can its answer be trusted."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from advnas import strategies
from advnas.reports.credit import checks_of
from advnas.reports.directions import BEYOND, Direction, Directions, all_directions
from advnas.reports.judging import judge
from advnas.reports.pairs import ENOUGH, Difference, Pairing, compare
from advnas.reports.study import Accuracies, RunRecords, StudyRecords
from advnas.search.swaps import CreditCheck
from advnas.search.verdict import DECIDED_ENTROPY, MANY_FREE, Remark, free_share, mean_entropy, undecided

_SHOWN = 4  # decisions that are named


def verdict(study: StudyRecords, table: Accuracies | None = None) -> list[Remark]:
    """All remarks on the searches of a study that learn; the baselines are what they are compared with.

    table: knows what an answer is worth that was not retrained.
    """
    return [*against_baselines(study, table), *conduct(study, all_directions(study))]


def against_baselines(study: StudyRecords, table: Accuracies | None) -> list[Remark]:
    """Whether the answers are worth more than those of each baseline with the same seeds, by the first measure."""
    judged = judge(study, table)
    learning = [name for name in study.learning if name in judged]
    if not learning:
        return []
    pairings = (
        compare(judged, name, baseline) for name in learning for baseline in study.baselines if baseline in judged
    )
    missing = [name for name in strategies.baselines() if name not in judged]
    compared = [_compared(pairing) for pairing in pairings if pairing is not None]
    return compared + [_not_run(name, learning) for name in missing]


def conduct(study: StudyRecords, known: Mapping[str, Directions]) -> list[Remark]:
    """How the searches that learn went, whatever their answers are worth. known: see `all_directions`."""
    remarks = [] if study.diagnosis is None else [Remark(study.diagnosis.good, study.diagnosis.text)]
    for strategy in study.learning:
        runs = [run for run in study.of(strategy) if run.finished]
        if runs:
            remarks += _collapse(strategy, runs)
            remarks += _certainty(strategy, runs)
            remarks += _directions(strategy, runs, known)
            remarks += _credit(runs)
            remarks += _within_limits(strategy, runs)
    return remarks


def _not_run(baseline: str, learning: Sequence[str]) -> Remark:
    return Remark(None, f"{baseline} was not run: whether {' or '.join(learning)} beats it is not known.")


def _compared(pairing: Pairing) -> Remark:
    found, digits = pairing.difference, pairing.digits
    who = f"{pairing.strategy} beats {pairing.other} by {pairing.measure}"
    means = f"{pairing.ours:.{digits}f} against {pairing.theirs:.{digits}f}"
    told = f"{means}, a difference of {_interval(found, digits)} over {_seeds(found.pairs)}"
    if math.isnan(found.mean):
        return Remark(False, f"Whether {who} cannot be told: {told}. A result is not a number.")
    if not found.enough:
        return Remark(
            None, f"Too few seeds to tell whether {who}: {told}. Run at least {ENOUGH}: --seeds {ENOUGH}."
        )
    if not found.significant:
        return Remark(None, f"Whether {who} is open: {told}. Not significant at 95 %.")
    told = f"{told}, significant at 95 %."
    if found.mean > 0:
        return Remark(True, f"{who}: {told}")
    return Remark(False, f"{who.replace(' beats ', ' does worse than ', 1)}: {told} Do not use this answer.")


def _interval(found: Difference, digits: int) -> str:
    mean = f"{found.mean:+.{digits}f}"
    if not math.isfinite(found.low):
        return mean
    return f"{mean} (95 % interval {found.low:+.{digits}f} to {found.high:+.{digits}f}, p = {found.p:.2g})"


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def _collapse(strategy: str, runs: Sequence[RunRecords]) -> Iterator[Remark]:
    """Skips and poolings train fast and win early in many searches; an answer made of them is rarely good."""
    shares = [share for run in runs if (share := _free_share(run)) is not None]
    if not shares:
        return
    collapsed = sum(share > MANY_FREE for share in shares)
    mean = f"{100 * statistics.fmean(shares):.0f} % of the operations that {strategy} chose have no weights"
    if collapsed:
        seeds = f"in {collapsed} of {len(shares)} seeds nearly all"
        yield Remark(False, f"{mean}, {seeds}: the search may have collapsed onto what trains fastest.")
    else:
        yield Remark(True, f"{mean}: no collapse onto operations without weights.")


def _free_share(run: RunRecords) -> float | None:
    """Of the decisions where operations with and without weights compete, how many went to one without."""
    sizes = run.result.operation_sizes if run.result else {}
    cell = run.answer(run.latest)
    return None if cell is None else free_share({name: sizes[name] for name in run.part_of(cell) if sizes}, cell)


def _certainty(strategy: str, runs: Sequence[RunRecords]) -> Iterator[Remark]:
    entropies = [
        tuple(mean_entropy(run.rows(record)) for record in (run.records[0], run.records[-1])) for run in runs
    ]
    shares = [last / first for first, last in entropies if first > 0]
    share = statistics.fmean(shares) if shares else 0.0
    told = f"The entropy of {strategy}'s decisions fell to {100 * share:.0f} % of its start"
    if share <= DECIDED_ENTROPY:
        yield Remark(True, f"{told}: the search has settled.")
    else:
        yield Remark(False, f"{told}: it has not settled. Search longer, or with a larger learning rate of theta.")
    open_ones = {run.seed: undecided(run.rows(run.records[-1])) for run in runs}
    named = [f"seed {seed}: {', '.join(names)}" for seed, names in open_ones.items() if names]
    if named:
        yield Remark(None, f"Undecided in {strategy}, two operations being as good as equal: {'; '.join(named)}.")


def _directions(strategy: str, runs: Sequence[RunRecords], known: Mapping[str, Directions]) -> Iterator[Remark]:
    """Whether the operations that theta prefers lead their rivals beyond noise, in how many decisions."""
    own = [known[run.name] for run in runs]
    source = next((one.source for one in own if one.found), own[0].source)
    found = [(run.seed, one) for run in runs for one in known[run.name].found]
    if not found:
        yield Remark(None, f"Whether {strategy}'s directions are known cannot be told: {source}.")
        return
    open_ones = [(seed, one) for seed, one in found if not one.known]
    told = (
        f"The direction of {strategy} is known at {len(found) - len(open_ones)} of {len(found)} decisions: there "
        f"the preferred operation leads every rival by more than {BEYOND} standard errors. Compared: {source}"
    )
    yield Remark(None if open_ones else True, f"{told}. {_named(open_ones)}".strip())


def _named(open_ones: Sequence[tuple[int, Direction]]) -> str:
    if not open_ones:
        return ""
    named = "; ".join(_open(seed, one) for seed, one in open_ones[:_SHOWN])
    more = f"; and {len(open_ones) - _SHOWN} more" if open_ones[_SHOWN:] else ""
    return f"Open: {named}{more}."


def _open(seed: int, one: Direction) -> str:
    where, rival = f"{one.decision} of seed {seed}", one.closest
    if rival is None:
        return f"{where}, {one.operation} (nothing recorded to compare it by)"
    ahead = ", so the rival is ahead" if rival.against else ""
    outside = ", but not within the limit" if rival.against and rival.outside else ""
    return f"{where}, {one.operation} against {rival.rival} ({rival}{ahead}{outside})"


def _credit(runs: Sequence[RunRecords]) -> Iterator[Remark]:
    """Whether the slopes agree with swaps that were measured, those of all seeds together."""
    checks = checks_of(runs)
    pooled = CreditCheck.pooled(checks) if checks else None
    if pooled is not None and pooled.enough:
        yield Remark(pooled.good, str(pooled))


def _within_limits(strategy: str, runs: Sequence[RunRecords]) -> Iterator[Remark]:
    """Whether the answers hold the limits that were asked for."""
    spent = [(run.seed, one) for run in runs if run.evaluation for one in run.evaluation.spent]
    for name in dict.fromkeys(one.name for _, one in spent):
        own = [(seed, one) for seed, one in spent if one.name == name]
        outside = [str(seed) for seed, one in own if not one.within]
        limit, unit = own[0][1].limit, f"{own[0][1].unit} of {name}" if own[0][1].unit else name
        most = max(one.amount for _, one in own)
        told = f"The largest answer of {strategy} has {most:,.6g} {unit}, and the limit is {limit:,.6g}"
        if outside:
            yield Remark(False, f"{told}: seed {', '.join(outside)} is NOT within the limit.")
        else:
            yield Remark(True, f"{told}: all {len(own)} answers are within it.")
