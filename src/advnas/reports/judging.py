"""What the answers of a study's runs are worth."""

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


def best_run(study: StudyRecords, strategy: str) -> RunRecords:
    """Of the finished runs of a strategy, the one whose retrained answer is best on the validation data."""
    runs = [(run.evaluation.validation_score, run) for run in study.of(strategy) if run.evaluation]
    if not runs:
        raise ValueError(f"No run of {strategy} has an answer that was retrained.")
    return min(runs, key=lambda scored: scored[0])[1]
