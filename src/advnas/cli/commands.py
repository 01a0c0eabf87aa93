"""The commands and their options, as the user writes them."""

from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Union

from tyro.conf import (
    FlagCreatePairsOff,
    OmitArgPrefixes,
    OmitSubcommandPrefixes,
    Positional,
    UseAppendAction,
    arg,
    subcommand,
)
from tyro.constructors import PrimitiveConstructorSpec

from advnas.paper import STUDIES, StudyBuilder


def _whole_number(texts: list[str]) -> int:
    try:
        return int(texts[0])
    except ValueError:
        raise ValueError(f"{texts[0]!r} is not a whole number.") from None


_WholeNumber: PrimitiveConstructorSpec[int | None] = PrimitiveConstructorSpec(
    nargs=1,
    metavar="N",
    instance_from_str=_whole_number,
    is_instance=lambda value: value is None or isinstance(value, int),
    str_from_instance=lambda value: [str(value)],
)
_Count = Annotated[int | None, _WholeNumber, arg(metavar="N", help_behavior_hint="")]


@dataclass(frozen=True)
class Toy:
    """The paper's toy regression: find a teacher's filters, weights fixed, all strategies side by side."""

    preset: Literal["quick", "paper"] = "paper"
    """quick: 300 iterations, 3 trials, a few minutes. paper: 2,000 iterations, 100 trials, longer."""
    strategies: Annotated[tuple[str, ...], arg(metavar="A B ...", help_behavior_hint="")] = ()
    """Which ones to run; all of them if not given (see `advnas list strategies`)."""
    seeds: _Count = None
    """Number of trials, each with its own teacher and inputs; the preset's if not given."""
    iterations: _Count = None
    """Architecture steps per trial; the preset's if not given."""
    seed: _Count = None
    """What all randomness starts from; the preset's if not given."""
    folder: Annotated[Path | None, arg(metavar="F", help_behavior_hint="")] = None
    """Keep results.json, toy.csv and the figure here; finished strategies are not run again."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print one JSON object (losses x 100) on standard output."""


@dataclass(frozen=True)
class Theory:
    """Check the paper's theorems and variance formulas by exact enumeration of small spaces."""


_Answer = Annotated[Literal["argmax", "process_best", "ranked", "refined"] | None, arg(help_behavior_hint="")]
_DataFolder = Annotated[Path | None, arg(metavar="F", help_behavior_hint="")]


@dataclass(frozen=True)
class RunStudy:
    """What all studies of strategies x seeds can be told. name, flags: as in the registry."""

    name: ClassVar[str]
    flags: ClassVar[tuple[str, ...]]

    preset: str = "laptop"
    """One of those of the registry."""
    strategies: Annotated[tuple[str, ...], arg(metavar="A B ...", help_behavior_hint="")] = ()
    """Which ones to run; all that the study compares if not given."""
    seeds: _Count = None
    """How many seeds; the preset's if not given."""
    first_seed: int = 0
    """The seeds are this one and those that follow it."""
    jobs: _Count = None
    """Runs at the same time; 2, or with ray as many as the cluster has cores, if not given."""
    engine: Literal["processes", "ray"] = "processes"
    """processes: on this machine, each run in its own. ray: on a Ray cluster that sees folder and data."""
    address: Annotated[str | None, arg(metavar="A", help_behavior_hint="")] = None
    """Of the Ray cluster, such as auto; a new one on this machine if not given."""
    answer: _Answer = None
    """Which architecture is the result of strategies that learn; as each says itself if not given."""
    folder: Annotated[Path | None, arg(metavar="F", help_behavior_hint="")] = None
    """Where everything is kept; finished runs are not run again. runs/STUDY-PRESET if not given."""
    data_folder: _DataFolder = None
    """Where the data lie; the environment variable ADVNAS_DATA, or ~/.cache/advnas, if not given."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print one JSON object per run on standard output."""
    show: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print every setting and run nothing."""


def _command(name: str, entry: StudyBuilder) -> type:
    """The command of a study in the registry."""
    flags = [
        (flag, Annotated[bool, arg(help=text, help_behavior_hint="")], field(default=False))
        for flag, text in entry.flags.items()
    ]
    names: object = Literal[tuple(entry.presets)]
    about = " ".join(f"{preset}: {text}." for preset, text in entry.presets.items())
    preset = ("preset", Annotated[names, arg(help=about)], field(default="laptop"))
    own = {"__doc__": entry.summary, "name": name, "flags": tuple(entry.flags)}
    return make_dataclass(name, [preset, *flags], bases=(RunStudy,), namespace=own, frozen=True)


if TYPE_CHECKING:
    _AnyStudy = Toy | RunStudy | Theory
else:
    _registered = (Annotated[_command(name, entry), subcommand(name)] for name, entry in STUDIES.items())
    _AnyStudy = Union[(Annotated[Toy, subcommand("toy")], *_registered, Annotated[Theory, subcommand("theory")])]


@dataclass(frozen=True)
class Experiment:
    """Run one of the paper's studies."""

    study: _AnyStudy
    """Which one."""


@dataclass(frozen=True)
class Report:
    """Make tables, figures and one HTML page from the records of a search or a study."""

    folder: Positional[Path]
    """The folder that it was run in."""
    data_folder: _DataFolder = None
    """Where the table of accuracies lies; ADVNAS_DATA, or ~/.cache/advnas, if not given."""
    tensorboard: Annotated[bool, arg(help_behavior_hint="")] = False
    """Write the curves for TensorBoard instead, one folder per run."""


@dataclass(frozen=True)
class Query:
    """Look up an architecture in a table of known results."""

    benchmark: Positional[Literal["nasbench201", "nasbench_macro"]]
    cell: Positional[str]
    """Such as '|nor_conv_3x3~0|+|none~0|skip_connect~1|+|avg_pool_3x3~0|none~1|nor_conv_1x1~2|', or 22212220."""
    dataset: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """cifar10, cifar100 or imagenet16; all that the table has if not given."""
    data_folder: _DataFolder = None
    """Where nasbench201.csv.gz or nasbench_macro.csv.gz lies; ADVNAS_DATA, or ~/.cache/advnas, if not given."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print one JSON object."""


@dataclass(frozen=True)
class DataStatus:
    """Tell which data are there."""

    data_folder: _DataFolder = None
    """ADVNAS_DATA, or ~/.cache/advnas, if not given."""


@dataclass(frozen=True)
class DataGet:
    """Download a dataset; an interrupted download goes on where it was."""

    name: Positional[str]
    """cifar10"""
    data_folder: _DataFolder = None
    """ADVNAS_DATA, or ~/.cache/advnas, if not given."""


@dataclass(frozen=True)
class Data:
    """See and fetch datasets."""

    action: Annotated[DataStatus, subcommand("status")] | Annotated[DataGet, subcommand("get")]


@dataclass(frozen=True)
class List:
    """Show what there is to choose from."""

    what: Positional[Literal["strategies", "spaces", "tasks"]]


_Text = Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")]
_Entry = Annotated[str | None, arg(metavar="MODULE:FUNCTION", help_behavior_hint="")]
_Folder = Annotated[Path | None, arg(metavar="F", help_behavior_hint="")]


@dataclass(frozen=True)
class Search:
    """Search a network, retrain what was found, and tell whether that beats equal-cost random search.

    Without arguments: the layers of a small language model of Python's own source code, in about six minutes. With
    module:function: your own network, as your function makes it.
    """

    entry: Annotated[Positional[str | None], arg(metavar="MODULE:FUNCTION", help_behavior_hint="")] = None
    """Your function; it takes a strategy's name and a seed and returns (advnas.Search, advnas.Task)."""
    strategy: _Text = None
    """What learns the architecture: contrast if not given (see `advnas list strategies`)."""
    task: _Text = None
    """python_source, digits, cifar10 or penn_treebank; python_source if not given."""
    space: _Text = None
    """The network to be searched; that of the task if not given (see `advnas list spaces`)."""
    epochs: _Count = None
    """Passes over the training data; if not given, 60 for a network of your own, or the task's."""
    warmup: _Count = None
    """How many of them at the start train weights only; a third if not given, or the task's."""
    retrain_epochs: _Count = None
    """How long the answer is trained from scratch; if not given, as long as theta learns, or the task's."""
    answer: _Text = None
    """What the result is: argmax, process_best, ranked or refined; as the strategy says if not given."""
    seed: _Count = None
    """The first seed; 0 if not given."""
    seeds: _Count = None
    """How many searches, and how many of each baseline; 3 if not given, or the task's."""
    jobs: _Count = None
    """Runs at the same time, each in a process of its own; 2 if not given."""
    processes: _Count = None
    """Processes that do each search together, each on its share of the data; 1, or torchrun's, if not given."""
    draws: _Text = None
    """shared: all processes learn theta from one drawn architecture. independent: each from its own."""
    folder: _Folder = None
    """Where everything is kept; a new one below runs/ if not given."""
    resume: Annotated[bool, arg(help_behavior_hint="")] = False
    """Go on with the search in the folder, or with the newest one below runs/ that was stopped."""
    config: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """A TOML file with these same names, and a table [options] for the function that makes the search."""
    device: _Text = None
    """cpu, cuda, cuda:1, mps; cpu if not given."""
    precision: _Text = None
    """float32, bfloat16 (bf16) or float16 (fp16, with a loss scale); float32 if not given."""
    limit: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="NAME=AMOUNT", help_behavior_hint="")] = ()
    """The most that the answer may cost: parameters=100k, multiply_adds=5M, latency=5ms, memory=2MB; repeatable."""
    plan: Annotated[bool, arg(help_behavior_hint="")] = False
    """Tell memory, time and whether it fits, measured on a few minibatches, and run nothing."""
    diagnose: Annotated[bool, arg(help_behavior_hint="")] = False
    """At the end, train 8 architectures alone, 4 of them twice: do the shared weights rank them alike?"""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print one JSON object on standard output."""


@dataclass(frozen=True)
class Export:
    """Write what a search has found as a file that others can read, and check it against the network."""

    folder: Positional[Path]
    """The search's folder."""
    to: Literal["plain", "pt2", "onnx"] = "pt2"
    """plain: the weights. pt2: a program that torch alone loads. onnx: for any runtime."""
    run: Annotated[str | None, arg(metavar="STRATEGY-SEED", help_behavior_hint="")] = None
    """Which run's answer; of those that learn the one that validates best if not given."""
    weights: Literal["retrained", "inherited"] = "retrained"
    """Those of the retraining, or those that the answer has in the searched network."""
    entry: _Entry = None
    """Your function, for the folder of a Search.run in Python, which does not say where its network comes from."""


@dataclass(frozen=True)
class Retrain:
    """Train what a search has found from scratch once more, for longer or with another seed."""

    folder: Positional[Path]
    """The search's folder."""
    run: Annotated[str | None, arg(metavar="STRATEGY-SEED", help_behavior_hint="")] = None
    """Which run's answer; of those that learn the one that validates best if not given."""
    epochs: _Count = None
    """Passes over the training data; as many as in the search's own retraining if not given."""
    seed: _Count = None
    """Of the fresh weights; the run's own if not given."""
    entry: _Entry = None
    """Your function, for the folder of a Search.run in Python, which does not say where its network comes from."""


Command = Annotated[
    Annotated[Search, subcommand("search")]
    | Annotated[Export, subcommand("export")]
    | Annotated[Retrain, subcommand("retrain")]
    | Annotated[Experiment, subcommand("experiment")]
    | Annotated[Report, subcommand("report")]
    | Annotated[Query, subcommand("query")]
    | Annotated[Data, subcommand("data")]
    | Annotated[List, subcommand("list")],
    OmitArgPrefixes,
    OmitSubcommandPrefixes,
    FlagCreatePairsOff,
]
