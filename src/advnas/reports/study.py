"""A study folder in memory: what was asked, and what every run measured and found."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import cattrs
from cattrs.gen import make_dict_structure_fn

from advnas import strategies
from advnas.records.files import parse_json
from advnas.records.journal import read_journal
from advnas.reports.contents import (
    Asked,
    Diagnosis,
    Evaluation,
    Measure,
    Moment,
    Operations,
    Record,
    RunResult,
    TakenBy,
    process_best,
)
from advnas.strategies import Answer
from advnas.structure import part_of

_TAKEN: Mapping[Answer, TakenBy] = {"process_best": "process best", "ranked": "ranked", "refined": "refined"}

PLAIN_RUN = "run"  # in place of a study's name
ZERO_OPERATIONS = frozenset({"none", "zero"})  # the names that the spaces have for them


class TableEntry(Protocol):
    """What a table of accuracies knows about one cell, besides its accuracies."""

    @property
    def params(self) -> float:
        """Weights of the network built from the cell, in millions."""


class Accuracies(Protocol):
    """A table that knows how good every cell is when it is trained alone."""

    def accuracy(self, cell: Operations) -> float:
        """In percent."""

    def percentile(self, cell: Operations) -> float:
        """Percent of all cells that are strictly worse."""

    def regret(self, cell: Operations) -> float:
        """How many points of accuracy the best of all cells is ahead."""

    def entry(self, cell: Operations) -> TableEntry:
        """The row of the cell."""


@dataclass(frozen=True)
class RunRecords:
    """One strategy with one seed.

    folder: where its files lie. answers_by: which of its architectures the study takes from the strategy.
    learns: whether the strategy is more than a baseline. seconds[epoch]: search time when the record of that epoch
    was taken.
    """

    folder: Path
    strategy: str
    seed: int
    answers_by: TakenBy
    learns: bool
    records: tuple[Record, ...]
    seconds: Mapping[float, float]
    result: RunResult | None

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return f"{self.strategy}-{self.seed}"

    @property
    def finished(self) -> bool:
        """Whether the search went to its end."""
        return self.result is not None

    @property
    def latest(self) -> Record | RunResult:
        """The result, or as long as there is none the last measurement."""
        return self.result or self.records[-1]

    @property
    def evaluation(self) -> Evaluation | None:
        """What retraining has shown, if that was done."""
        return self.result.evaluation if self.result else None

    def part_of(self, answer: Operations) -> list[str]:
        """The decisions that the network of an answer contains; all of them as long as there is no result."""
        return part_of(self.result.nested if self.result else {}, answer)

    def rows(self, record: Record) -> Mapping[str, Mapping[str, float]]:
        """The probabilities of a record, at the decisions that the most likely network contains."""
        return {name: record.probabilities[name] for name in self.part_of(self.latest.argmax)}

    def answer(self, found: Record | RunResult) -> Operations | None:
        """What was retrained, or else what would be; None before there is one: answer stages come at the end."""
        if isinstance(found, RunResult) and found.evaluation:
            return found.evaluation.architecture
        if self.answers_by in ("ranked", "refined"):
            staged = getattr(found, self.answers_by, None)  # a Record has none
            return None if staged is None else staged.architecture
        return process_best(found) if self.answers_by == "process best" else found.argmax


@dataclass(frozen=True)
class StudyRecords:
    """What is in the folder of a study.

    title: what was searched. table: which of `advnas.tables.TABLES` knows what answers are worth; None where they
    are judged by retraining them. runs: by strategy, then by seed. skipped: run folders without a measurement yet.
    diagnosis: what training a few architectures alone has shown, if that was asked for.
    """

    name: str
    title: str
    table: str | None
    settings: Mapping[str, Any]
    runs: tuple[RunRecords, ...]
    skipped: tuple[str, ...]
    diagnosis: Diagnosis | None = None

    @property
    def retrains(self) -> bool:
        """Whether answers are judged by retraining them, for want of a table that knows every cell."""
        return self.table is None

    @property
    def strategies(self) -> tuple[str, ...]:
        """Every strategy that has a run, in the order of the strategies everywhere else."""
        return tuple(dict.fromkeys(run.strategy for run in self.runs))

    @property
    def baselines(self) -> tuple[str, ...]:
        """Those of the strategies that learn nothing."""
        return tuple(dict.fromkeys(run.strategy for run in self.runs if not run.learns))

    @property
    def learning(self) -> tuple[str, ...]:
        """Those of the strategies that learn."""
        return tuple(name for name in self.strategies if name not in self.baselines)

    def of(self, strategy: str) -> tuple[RunRecords, ...]:
        """The runs of one strategy."""
        return tuple(run for run in self.runs if run.strategy == strategy)

    @property
    def unfinished(self) -> tuple[RunRecords, ...]:
        """Runs that have measured something but left no result."""
        return tuple(run for run in self.runs if not run.finished)

    @property
    def with_zero(self) -> bool:
        """Whether a decision could choose the zero operation."""
        decisions = self.runs[0].records[0].probabilities.values()
        return any(not ZERO_OPERATIONS.isdisjoint(candidates) for candidates in decisions)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """What the retrained answers are judged by, as the first of them tells; nothing before there is one."""
        return next((run.evaluation.measures for run in self.runs if run.evaluation), ())


def read_study(folder: Path) -> StudyRecords:
    """Everything a report needs, of a study or of one search. What is broken is an error.

    Runs without a measurement are left out and named.
    """
    if (folder / "run.json").exists():
        return _read_one_run(folder)
    asked = _read_settings(folder / "study.json")
    folders = [path for path in folder.glob("runs/*") if path.is_dir()]
    runs = {path.name: _read_run(path) for path in folders}
    measured = [run for run in runs.values() if run.records]
    if not measured:
        raise ValueError(
            f"{folder} has {len(runs)} runs and no measurement in any of them, so there is nothing to report yet. "
            "Wait until a search has left its warm-up, or give the folder of another study."
        )
    settings = dict(_flat(asked["settings"]))
    searched = str(settings.get("entry", asked["experiment"])).rpartition(":")[2]
    return StudyRecords(
        name=asked["experiment"],
        title=str(asked.get("title", searched)),
        table=_table_of(asked, measured),
        settings=settings,
        runs=tuple(sorted(measured, key=_place)),
        skipped=tuple(sorted(name for name, run in runs.items() if not run.records)),
        diagnosis=_read_diagnosis(folder / "agreement.json"),
    )


def _read_diagnosis(path: Path) -> Diagnosis | None:
    return _structure(_read_json(path), Diagnosis, str(path)) if path.exists() else None


def _read_one_run(folder: Path) -> StudyRecords:
    """The folder of a plain `Search.run` as a study with one run."""
    asked = _structure(_read_json(folder / "run.json"), Asked, str(folder / "run.json"))
    if asked.strategy is None or asked.seed is None:
        raise ValueError(f"{folder / 'run.json'} is not that of a search. Give the folder of a search or a study.")
    run = _records_of(folder, asked.strategy, asked.seed)
    if not run.records:
        raise ValueError(
            f"{folder} has no measurement yet, so there is nothing to report. Wait for the first epoch."
        )
    settings = {key: value for key, value in asked.settings.items() if not isinstance(value, dict)}
    title = folder.resolve().name
    told = dict(_flat({**settings, **asked.optimizers, "length": asked.length}))
    return StudyRecords(PLAIN_RUN, title, None, told, (run,), ())


def _table_of(asked: Mapping[str, Any], runs: Sequence[RunRecords]) -> str | None:
    """Which table judges a study; up to version 0.2 there was one, and it was not named."""
    if "table" in asked:
        return None if asked["table"] is None else str(asked["table"])
    retrains = asked.get("retrains", any(run.evaluation for run in runs))
    return None if retrains else "nasbench201"


def _read_settings(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise FileNotFoundError(
            f"{path.parent} is not a study: it has no {path.name}. Give the folder of a search or a study."
        )
    content = _read_json(path)
    if not isinstance(content.get("experiment"), str) or not isinstance(content.get("settings"), dict):
        raise ValueError(
            f'{path} must hold {{"experiment": NAME, "settings": {{...}}}}, it holds {sorted(content)}. '
            "Give the folder that a study was run in."
        )
    return content


def _read_run(folder: Path) -> RunRecords:
    strategy, dash, seed = folder.name.rpartition("-")
    if not (dash and strategy and seed.isdecimal()):
        raise ValueError(f"{folder} is not a run: its name must be STRATEGY-SEED, like advantage-0. Move it away.")
    result = _read_result(folder / "result.json")
    if result and (result.strategy, result.seed) != (strategy, int(seed)):
        raise ValueError(
            f"{folder / 'result.json'} is of {result.strategy}-{result.seed}, but lies in {folder.name}. "
            "Put it back where it belongs."
        )
    return _records_of(folder, strategy, int(seed))


def _records_of(folder: Path, strategy: str, seed: int) -> RunRecords:
    answer, learns = _read_conduct(folder / "run.json", strategy)
    return RunRecords(
        folder=folder,
        strategy=strategy,
        seed=seed,
        answers_by=_TAKEN.get(answer, "argmax"),
        learns=learns,
        records=tuple(_read_lines(folder / "records.jsonl", Record)),
        seconds={moment.epoch: moment.seconds for moment in _read_lines(folder / "timing.jsonl", Moment)},
        result=_read_result(folder / "result.json"),
    )


def _read_conduct(path: Path, strategy: str) -> tuple[Answer, bool]:
    """Which answer was taken from the strategy, and whether it learns; version 0.1 did not write that down."""
    kind = strategies.strategy_type(strategy) if strategy in strategies.names() else strategies.Strategy
    if not path.exists():
        return kind.answer, kind.learns
    asked = _structure(_read_json(path), Asked, str(path))
    return asked.answer, kind.learns if asked.learns is None else asked.learns


def _read_result(path: Path) -> RunResult | None:
    if not path.exists():
        return None
    content = _read_json(path)
    evaluation = content.get("evaluation") or None  # empty or missing where answers are looked up in a table
    if isinstance(evaluation, dict) and "valid_perplexity" in evaluation:
        evaluation = _with_perplexities(evaluation, path)
    return _structure(content | {"evaluation": evaluation}, RunResult, str(path))


def _with_perplexities(evaluation: dict[str, Any], path: Path) -> dict[str, Any]:
    if "test_perplexity" not in evaluation:
        raise ValueError(f"{path} cannot be read: its evaluation has no test_perplexity.")
    numbers = {
        "validation perplexity": evaluation["valid_perplexity"],
        "test perplexity": evaluation["test_perplexity"],
    }
    measures = [{"name": name, "value": value, "more_is_better": False} for name, value in numbers.items()]
    rest = {key: value for key, value in evaluation.items() if not key.endswith("_perplexity")}
    return rest | {"measures": measures, "validation_score": evaluation["valid_perplexity"]}


_Content = TypeVar("_Content")


def _read_lines(path: Path, kind: type[_Content]) -> Iterator[_Content]:
    if path.exists():
        for number, line in enumerate(read_journal(path), start=1):
            yield _structure(line, kind, f"{path}, line {number}")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return parse_json(path.read_bytes(), str(path))
    except ValueError as error:
        raise ValueError(f"{error} Remove it, and run the study again to replace it.") from error


def _structure(content: Any, kind: type[_Content], where: str) -> _Content:
    try:
        return _converter.structure(content, kind)
    except (cattrs.BaseValidationError, ValueError, TypeError) as error:
        raise ValueError(f"{where} cannot be read: {'; '.join(cattrs.transform_error(error))}.") from error


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _place(run: RunRecords) -> tuple[int, str, int]:
    known = strategies.names()
    return (known.index(run.strategy) if run.strategy in known else len(known), run.strategy, run.seed)


_converter = cattrs.Converter()
_converter.register_structure_hook(
    Evaluation, make_dict_structure_fn(Evaluation, _converter, _cattrs_forbid_extra_keys=True)
)
