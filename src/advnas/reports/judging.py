"""What the answers of a study's runs are worth."""

import math
from collections.abc import Mapping

from advnas.reports.contents import Measure
from advnas.reports.study import Accuracies, RunRecords, StudyRecords

Judged = Mapping[str, Mapping[int, tuple[Measure, ...]]]
"""What answers are worth: [strategy][seed]."""


def judge(study: StudyRecords, table: Accuracies | None) -> Judged:
    """What the answers of the finished runs are worth, as retrained or as the table knows them.

    Runs without a judged answer are left out, and so are strategies that have no other.
    """
    judged = {
        name: {run.seed: worth for run in study.of(name) if run.finished and (worth := _worth(run, table))}
        for name in study.strategies
    }
    return {name: known for name, known in judged.items() if known}


def _worth(run: RunRecords, table: Accuracies | None) -> tuple[Measure, ...]:
    if run.evaluation:
        return run.evaluation.measures
    cell = run.answer(run.latest)
    return () if table is None or cell is None else (Measure("test accuracy", table.accuracy(cell), True),)


def best_run(study: StudyRecords) -> RunRecords:
    """Choose the answer of a search: of all strategies that learn, the finished run that validates best.

    Where none learns, the baselines are chosen among.

    Raises:
        ValueError: no answer was retrained, or the scores of all are not numbers.
    """
    found = best_run_or_none(study)
    if found is None:
        retrained = any(run.evaluation for name in _candidates(study) for run in study.of(name))
        why = "whose validation score is a number" if retrained else "that was retrained"
        raise ValueError(f"No run of {' or '.join(_candidates(study))} has an answer {why}.")
    return found


def best_run_or_none(study: StudyRecords) -> RunRecords | None:
    """The same, or None."""
    runs = (run for name in _candidates(study) for run in study.of(name))
    scored = [(run.evaluation.validation_score, run) for run in runs if run.evaluation]
    known = [(score, run) for score, run in scored if not math.isnan(score)]
    return min(known, key=lambda one: one[0])[1] if known else None


def named(study: StudyRecords, run: RunRecords) -> str:
    """What follows the folder in a command: the name of the run, where several strategies learn."""
    return f" --run {run.name}" if len(study.learning) > 1 else ""


def _candidates(study: StudyRecords) -> tuple[str, ...]:
    return study.learning or study.baselines
