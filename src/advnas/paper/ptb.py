"""The recurrent cell on Penn Treebank: search, then retrain what was found."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from advnas import strategies
from advnas.arguments import check_count, did_you_mean
from advnas.randomness import seed_of, seeded
from advnas.retrain import Recipe, retrain
from advnas.search import Length, LossOf, Search
from advnas.space import SearchSpace
from advnas.spaces.recurrent_cell import RecurrentCellNetwork
from advnas.strategies import Answer
from advnas.studies.study import Comparison, Taken
from advnas.task import Task
from advnas.tasks import penn_treebank
from advnas.tasks.penn_treebank import CarriedLoss, Corpus, Pass, Segments, perplexity

_FRESH, _RETRAINING = range(2)  # purposes of the seeds of this study

_BY_PROCESS_BEST = ("reinforce", "enas", "gdas", "random")  # the paper: "according to previous studies"


@dataclass(frozen=True)
class PtbSettings:
    """Everything that decides the outcome. The defaults are the paper's (appendix).

    hidden: size of embedding and nodes. nodes: intermediate ones of the cell. tokens: how much of the training
    text the weights read, all of it where None. theta_tokens: how much of the text after it theta reads; where
    None, as in the paper, theta reads what the weights read. length: of the segments that are backpropagated
    through. warmup: epochs with theta fixed, none in the paper. normalise: whether the nodes of the cell are
    normalised during the search, as in DARTS; they never are in what is retrained. records: how many per epoch,
    each with a checkpoint.
    """

    hidden: int = 300
    nodes: int = 3
    tokens: int | None = None
    theta_tokens: int | None = None
    batch: int = 256
    length: int = 35
    dropout: float = 0.5
    epochs: int = 30
    warmup: int = 0
    normalise: bool = False
    retrain_epochs: int = 100
    weight_rate: float = 20.0
    weight_clip: float = 0.25
    theta_rate: float = 3e-3
    theta_betas: tuple[float, float] = (0.9, 0.999)
    theta_clip: float = 1.0
    controller_rate: float = 3.5e-4
    records: int = 1

    def __post_init__(self) -> None:
        for name in ("hidden", "nodes", "batch", "length", "epochs", "retrain_epochs", "records"):
            check_count(name, getattr(self, name))
        check_count("warmup", self.warmup, least=0)
        for name in ("tokens", "theta_tokens"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), least=self.batch * (self.length + 1))
        if self.warmup >= self.epochs:
            raise ValueError(f"warmup must leave epochs for theta: it is {self.warmup} of {self.epochs}.")
        if self.theta_tokens is not None and self.tokens is None:
            raise ValueError(
                "Where the weights read the whole training text, none is left for theta. Give tokens too, for "
                f"example tokens=600_000, theta_tokens={self.theta_tokens}."
            )


_LAPTOP = PtbSettings(
    hidden=64,
    tokens=300_000,
    batch=64,
    epochs=4,
    retrain_epochs=6,
    theta_rate=0.05,
    controller_rate=3.5e-3,
    records=4,
)
_QUICK = replace(_LAPTOP, hidden=16, tokens=12_000, batch=16, length=20, epochs=2, retrain_epochs=2, records=2)
PRESETS = {"quick": _QUICK, "laptop": _LAPTOP, "paper": PtbSettings()}
SEEDS = {"quick": 1, "laptop": 6, "paper": 5}
STRATEGIES = ("reinforce", "parsec", "proxyless", "gdas", "advantage", "contrast", "random", "ranked_random")


@dataclass(frozen=True)
class Ptb:
    """The study as something that can be run, run by run. data_folder: where the texts lie."""

    settings: PtbSettings
    data_folder: Path

    name: ClassVar[str] = "ptb"
    title: ClassVar[str] = "ptb"
    table: ClassVar[None] = None

    @property
    def length(self) -> Length:
        """How long a search is; in the paper the weights and theta learn in turn from the start."""
        return Length(len(self._segments()), self.settings.epochs, self.settings.warmup, self.settings.records)

    def procedure(self) -> dict[str, str]:
        """What the settings do not say, in words."""
        return {
            "turns": "one per segment of the training text: tokens / batch / length per epoch",
            "in turn": f"a step of the weights (SGD) and one of theta (Adam), {self._reading()}",
            "learning rates": "annealed to 0 along a cosine",
            "answer": f"the process best for {', '.join(_BY_PROCESS_BEST)}; the argmax for the others that learn",
            "retraining": "from scratch, with the optimiser of the search; the best epoch on the validation text",
        }

    def check(self, strategy: str, seed: int) -> None:
        """The texts must be there and long enough."""
        self._segments()
        self._theta_segments()

    def begin(self, strategy: str, seed: int) -> tuple[Search, "PtbText"]:
        """A search at its beginning, and the text."""
        return self.make_search(strategy, seed), self.make_data(seed)

    def answer_of(self, strategy: str) -> Answer:
        """As the paper takes it, and as the strategy says where the paper has none."""
        return "process_best" if strategy in _BY_PROCESS_BEST else strategies.strategy_type(strategy).answer

    def make_network(self, seed: int, *, normalised: bool = False) -> RecurrentCellNetwork:
        """Build the network, with weights that depend on the seed alone."""
        settings = self.settings
        with seeded(seed_of(seed)):
            return RecurrentCellNetwork(
                len(self._corpus.vocabulary),
                hidden=settings.hidden,
                nodes=settings.nodes,
                dropout=settings.dropout,
                normalised=normalised,
            )

    def make_search(self, strategy: str, seed: int) -> Search:
        """A search of the language model, with weights that depend on the seed alone."""
        settings = self.settings
        facts = {"examples": settings.batch * settings.length, "controller_rate": settings.controller_rate}
        return Search(
            self.make_network(seed, normalised=settings.normalise),
            strategies.for_task(strategy, **facts),
            steps=self.length.turns,
            warmup=self.length.warmup_turns,
            weight_optimizer=self._weight_optimizer,
            architecture_optimizer=partial(
                torch.optim.Adam, lr=settings.theta_rate, betas=settings.theta_betas, fused=True
            ),
            weight_clip=settings.weight_clip,
            architecture_clip=settings.theta_clip,
            seed=seed,
        )

    def make_data(self, seed: int) -> "PtbText":
        """The text of the weights and that of theta; the same for all seeds."""
        return PtbText(self._segments(), self._theta_segments())

    def evaluate(self, answer: Taken, seed: int, search: Search, folder: Path) -> dict[str, Any]:
        """Retrain the answer from scratch; its perplexities with the weights that were best on validation text."""
        by, architecture = answer
        settings = self.settings
        network = SearchSpace(self.make_network(seed)).derive(architecture, fresh=seed_of(seed, _FRESH))
        corpus = self._corpus
        outcome = retrain(
            network,
            Task(Pass(self._segments(), "retraining"), (), CarriedLoss()),
            epochs=settings.retrain_epochs,
            recipe=Recipe(
                optimizer=self._weight_optimizer,
                clip=settings.weight_clip,
                score=lambda model: perplexity(model, corpus.valid),
            ),
            seed=seed_of(seed, _RETRAINING),
            folder=folder,
        )
        return {
            "by": by,
            "architecture": dict(architecture),
            "valid_perplexity": outcome.best.score,
            "test_perplexity": perplexity(outcome.model, corpus.test),
            "parameters": sum(parameter.numel() for parameter in network.parameters()),
            "best_epoch": outcome.best.number,
        }

    @property
    def _corpus(self) -> Corpus:
        return penn_treebank.read_once(self.data_folder)

    def _segments(self) -> Segments:
        settings = self.settings
        return penn_treebank.segments(self.data_folder, settings.tokens, settings.batch, settings.length)

    def _theta_segments(self) -> Segments:
        """The text that theta reads: that of the weights, or what follows it."""
        settings = self.settings
        if settings.theta_tokens is None:
            return self._segments()
        text = self._corpus.train[settings.tokens :][: settings.theta_tokens]
        if len(text) < settings.theta_tokens:
            raise ValueError(
                f"After the {settings.tokens:,} tokens of the weights the training text has {len(text):,} more, "
                f"and theta is to read {settings.theta_tokens:,}. Give fewer tokens or theta_tokens."
            )
        return Segments(text, batch=settings.batch, length=settings.length)

    def _reading(self) -> str:
        """What theta reads, in words."""
        own = self.settings.theta_tokens
        return "both on the training text" if own is None else f"which reads {own:,} tokens that the weights do not"

    def _weight_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.settings.weight_rate)


@dataclass
class PtbText:
    """The weights and theta read a text each, or the same, with hidden states of their own to carry along."""

    segments: Segments
    theta_segments: Segments
    carried: dict[str, Tensor] = field(default_factory=dict)

    def losses(self, search: Search) -> tuple[LossOf, Callable[[], LossOf]]:
        """The next segment of each text."""
        return (
            self._loss("weights", self.segments, search.weight_steps),
            lambda: self._loss("theta", self.theta_segments, search.architecture_steps),
        )

    def state(self) -> dict[str, Any]:
        """The hidden states."""
        return dict(self.carried)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on with these hidden states."""
        if not all(isinstance(hidden, Tensor) for hidden in state.values()):
            raise ValueError(f"the hidden states of the text should be tensors, not {state}")
        self.carried = dict(state)

    def validation_pass(self, most: int) -> tuple[int, Iterator[LossOf]]:
        """The text that theta learns from, each segment with a hidden state of zeros."""
        segments = self.theta_segments
        return min(most, len(segments)), map(self._loss_alone, range(len(segments)))

    def _loss_alone(self, number: int) -> LossOf:
        tokens, targets = self.theta_segments.at(number)
        return lambda model: model.loss(tokens, targets, None)[0]  # type: ignore[operator]

    def measure(self, search: Search) -> None:
        """Not known before the end."""

    def _loss(self, reader: str, segments: Segments, step: int) -> LossOf:
        tokens, targets = segments.at(step)
        hidden = None if segments.starts_epoch(step) else self.carried[reader]
        first = True

        def loss_of(model: nn.Module) -> Tensor:
            nonlocal first
            loss, last = model.loss(tokens, targets, hidden)  # type: ignore[operator]
            if first:  # further passes of a step ask what would have been
                self.carried[reader], first = last.detach(), False
            return loss  # type: ignore[no-any-return]

        return loss_of


def comparison(preset: str, data_folder: Path, *, normalise: bool = False, half_warmup: bool = False) -> Comparison:
    """The study of a preset; see `PtbSettings`."""
    settings = replace(PRESETS[preset], normalise=normalise)
    if half_warmup:
        settings = replace(settings, warmup=settings.epochs // 2)
    return Comparison(Ptb(settings, data_folder), STRATEGIES, SEEDS[preset])


def search_study(options: Mapping[str, Any], data_folder: Path) -> Ptb:
    """Make the study of `advnas search --task penn_treebank`: the laptop's settings, changed by the options."""
    settings, known = PRESETS["laptop"], [field.name for field in fields(PtbSettings)]
    for name in options:
        if name not in known:
            takes = ", ".join(known)
            raise ValueError(f"penn_treebank has no option {name!r}{did_you_mean(name, known)}; it takes {takes}.")
    return Ptb(replace(settings, **options), data_folder)
