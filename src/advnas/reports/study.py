"""A study folder in memory: what was asked, and what every run measured and found."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import cattrs
from cattrs.gen import make_dict_structure_fn

from advnas import strategies
from advnas.paper.ptb import BY_PROCESS_BEST, Ptb
from advnas.records.files import parse_json
from advnas.records.journal import read_journal
from advnas.studies.own_network import EntryExperiment

Cell = Mapping[str, str]
TakenBy = Literal["argmax", "process best"]

ZERO_OPERATIONS = frozenset({"none", "zero"})  # the names that the spaces have for them


class Entry(Protocol):
    """What a table of accuracies knows about one cell, besides its accuracies."""

    @property
    def params(self) -> float:
        """Weights of the network built from the cell, in millions."""


class Accuracies(Protocol):
    """A table that knows how good every cell is when it is trained alone."""

    def accuracy(self, cell: Cell, dataset: str = "cifar10", split: str = "test") -> float:
        """In percent."""

    def percentile(self, cell: Cell, dataset: str = "cifar10", split: str = "test") -> float:
        """Percent of all cells that are strictly worse."""

    def regret(self, cell: Cell, dataset: str = "cifar10", split: str = "test") -> float:
        """How many points of accuracy the best of all cells is ahead."""

    def entry(self, cell: Cell) -> Entry:
        """The row of the cell."""


@dataclass(frozen=True)
class ProcessBest:
    """The architecture with the lowest loss of all that a search has drawn so far."""

    architecture: Cell
    loss: float


@dataclass(frozen=True)
class Record:
    """One measurement during the search.

    epoch: counted from the beginning of the warm-up. loss: mean over the steps of theta since the record before.
    metric: of the argmax with the weights it inherits, where the task has one.
    """

    epoch: float
    step: int
    entropy: float
    probabilities: Mapping[str, Mapping[str, float]]
    argmax: Cell
    process_best: ProcessBest | None
    loss: float | None = None
    metric: float | None = None


@dataclass(frozen=True)
class Moment:
    """How long a search had taken, warm-up not included, when it measured at that epoch."""

    epoch: float
    seconds: float


@dataclass(frozen=True)
class Measure:
    """A number that answers are judged by."""

    name: str
    value: float
    more_is_better: bool

    @property
    def key(self) -> str:
        """Its name in spreadsheets."""
        return self.name.replace(" ", "_")


@dataclass(frozen=True)
class Evaluation:
    """What the answer of a search is worth after it was retrained from scratch.

    by: which answer that was. measures: answers are compared by the first; the others are told. validation_score:
    what the epoch was chosen by, the lower the better.
    """

    by: TakenBy
    architecture: Cell
    measures: tuple[Measure, ...]
    validation_score: float
    parameters: int
    best_epoch: int


@dataclass(frozen=True)
class Result:
    """What a finished run leaves.

    saved_bytes: activations kept for the backward pass of one step. evaluation: None where answers are looked up in
    a table. operation_sizes: weights of every operation; empty where the run did not tell.
    """

    strategy: str
    seed: int
    argmax: Cell
    process_best: ProcessBest | None
    seconds: float
    warmup_seconds: float
    saved_bytes: float | None
    provenance: Mapping[str, str]
    evaluation: Evaluation | None = None
    operation_sizes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One strategy with one seed.

    answers_by: which of its two cells the study takes from the strategy. seconds[epoch]: search time when the
    record of that epoch was taken.
    """

    strategy: str
    seed: int
    answers_by: TakenBy
    records: tuple[Record, ...]
    seconds: Mapping[float, float]
    result: Result | None

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return f"{self.strategy}-{self.seed}"

    @property
    def finished(self) -> bool:
        """Whether the search went to its end."""
        return self.result is not None

    @property
    def latest(self) -> Record | Result:
        """The result, or as long as there is none the last measurement."""
        return self.result or self.records[-1]

    @property
    def evaluation(self) -> Evaluation | None:
        """What retraining has shown, if that was done."""
        return self.result.evaluation if self.result else None

    def answer(self, found: Record | Result) -> Cell | None:
        """What was retrained, or else what would be: the argmax or the process best (None before it has one)."""
        if isinstance(found, Result) and found.evaluation:
            return found.evaluation.architecture
        return process_best(found) if self.answers_by == "process best" else found.argmax


@dataclass(frozen=True)
class Study:
    """runs: by strategy, then by seed. skipped: run folders that have not measured anything yet."""

    experiment: str
    settings: Mapping[str, Any]
    runs: tuple[Run, ...]
    skipped: tuple[str, ...]

    @property
    def strategies(self) -> tuple[str, ...]:
        """Every strategy that has a run, in the order of the strategies everywhere else."""
        return tuple(dict.fromkeys(run.strategy for run in self.runs))

    def of(self, strategy: str) -> tuple[Run, ...]:
        """The runs of one strategy."""
        return tuple(run for run in self.runs if run.strategy == strategy)

    @property
    def title(self) -> str:
        """What was searched: the study, or the function that made the search."""
        return str(self.settings.get("entry", self.experiment)).rpartition(":")[2]

    @property
    def unfinished(self) -> tuple[Run, ...]:
        """Runs that have measured something but left no result."""
        return tuple(run for run in self.runs if not run.finished)

    @property
    def with_zero(self) -> bool:
        """Whether a decision could choose the zero operation."""
        decisions = self.runs[0].records[0].probabilities.values()
        return any(not ZERO_OPERATIONS.isdisjoint(candidates) for candidates in decisions)

    @property
    def retrains(self) -> bool:
        """Whether answers are judged by retraining them, for want of a table that knows every cell."""
        return self.experiment in (Ptb.name, EntryExperiment.name)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """What the retrained answers are judged by, as the first of them tells; nothing before there is one."""
        return next((run.evaluation.measures for run in self.runs if run.evaluation), ())


def judge(study: Study, table: Accuracies | None) -> dict[str, list[tuple[Measure, ...]]]:
    """What the answers of the finished runs are worth, as retrained or as the table knows them: [strategy][run].

    Strategies without a judged answer are left out.
    """
    judged = {name: [_worth(run, table) for run in study.of(name) if run.finished] for name in study.strategies}
    return {name: known for name, found in judged.items() if (known := [worth for worth in found if worth])}


def _worth(run: Run, table: Accuracies | None) -> tuple[Measure, ...]:
    if run.evaluation:
        return run.evaluation.measures
    cell = run.answer(run.latest)
    return () if table is None or cell is None else (Measure("test accuracy", table.accuracy(cell), True),)


def process_best(found: Record | Result) -> Cell | None:
    """Its architecture, if there is one yet."""
    return found.process_best.architecture if found.process_best else None


def read_study(folder: Path) -> Study:
    """Everything a report needs. Runs without a measurement are left out and named; what is broken is an error."""
    asked = _read_settings(folder / "study.json")
    folders = [path for path in folder.glob("runs/*") if path.is_dir()]
    runs = {path.name: _read_run(path, asked["experiment"]) for path in folders}
    measured = [run for run in runs.values() if run.records]
    if not measured:
        raise ValueError(
            f"{folder} has {len(runs)} runs and no measurement in any of them, so there is nothing to report yet. "
            "Wait until a search has left its warm-up, or give the folder of another study."
        )
    return Study(
        experiment=asked["experiment"],
        settings=dict(_flat(asked["settings"])),
        runs=tuple(sorted(measured, key=_place)),
        skipped=tuple(sorted(name for name, run in runs.items() if not run.records)),
    )


def _read_settings(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise FileNotFoundError(
            f"{path.parent} is not a study: it has no {path.name}. Give the folder that a study was run in."
        )
    content = _read_json(path)
    if not isinstance(content.get("experiment"), str) or not isinstance(content.get("settings"), dict):
        raise ValueError(
            f'{path} must hold {{"experiment": NAME, "settings": {{...}}}}, it holds {sorted(content)}. '
            "Give the folder that a study was run in."
        )
    return content


def _read_run(folder: Path, experiment: str) -> Run:
    strategy, dash, seed = folder.name.rpartition("-")
    if not (dash and strategy and seed.isdecimal()):
        raise ValueError(f"{folder} is not a run: its name must be STRATEGY-SEED, like advantage-0. Move it away.")
    result = _read_result(folder / "result.json", experiment)
    if result and (result.strategy, result.seed) != (strategy, int(seed)):
        raise ValueError(
            f"{folder / 'result.json'} is of {result.strategy}-{result.seed}, but lies in {folder.name}. "
            "Put it back where it belongs."
        )
    return Run(
        strategy=strategy,
        seed=int(seed),
        answers_by=_taken_by(experiment, strategy),
        records=tuple(_read_lines(folder / "records.jsonl", Record)),
        seconds={moment.epoch: moment.seconds for moment in _read_lines(folder / "timing.jsonl", Moment)},
        result=result,
    )


def _taken_by(experiment: str, strategy: str) -> TakenBy:
    # Theta of random search never moves, so its argmax is whatever operation comes first.
    by_process_best = BY_PROCESS_BEST if experiment == Ptb.name else ("random",)
    return "process best" if strategy in by_process_best else "argmax"


def _read_result(path: Path, experiment: str) -> Result | None:
    if not path.exists():
        return None
    content = _read_json(path)
    evaluation = content.get("evaluation") or None  # empty or missing where answers are looked up in a table
    if evaluation is not None and experiment == Ptb.name:
        evaluation = _with_perplexities(evaluation, path)
    return _structure(content | {"evaluation": evaluation}, Result, str(path))


def _with_perplexities(evaluation: Any, path: Path) -> dict[str, Any]:
    if not isinstance(evaluation, dict) or not {"valid_perplexity", "test_perplexity"} <= evaluation.keys():
        raise ValueError(f"{path} cannot be read: its evaluation has no valid_perplexity and test_perplexity.")
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


def _place(run: Run) -> tuple[int, str, int]:
    known = strategies.names()
    return (known.index(run.strategy) if run.strategy in known else len(known), run.strategy, run.seed)


_converter = cattrs.Converter()
_converter.register_structure_hook(
    Evaluation, make_dict_structure_fn(Evaluation, _converter, _cattrs_forbid_extra_keys=True)
)
