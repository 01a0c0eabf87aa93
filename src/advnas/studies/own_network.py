"""A study of a user-supplied network: searched, retrained and judged."""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from advnas import strategies
from advnas.answers.agreement import Agreement, agreement, check_rankable
from advnas.answers.batch_norm import reestimate_batch_norm
from advnas.answers.shared_loss import SharedLoss
from advnas.architecture import Architecture
from advnas.arguments import check_count
from advnas.costs import Arguments, Cost
from advnas.costs.observation import call
from advnas.modes import evaluating
from advnas.parallel.launch import current
from advnas.randomness import seed_of, seeded
from advnas.records.checkpoints import Checkpoints, load_state, save_state
from advnas.records.restoring import check_form
from advnas.retrain import Recipe, retrain
from advnas.search import Draws, Length, Replayed, Search, batches_in
from advnas.search.budget import Budget
from advnas.search.device import Device
from advnas.search.precision import set_precision
from advnas.strategies import Answer
from advnas.studies.entry import make, reporting_task_errors
from advnas.studies.inputs import called_with, one_example, why_no_file
from advnas.studies.limits import find_cost, spend
from advnas.studies.study import Taken, answer_of
from advnas.task import Task, mean_over

_FRESH, _RETRAINING, _JUDGING = range(2, 5)  # purposes of the seeds of a run; 0 and 1 are those of `Replayed`


@dataclass(frozen=True)
class OwnNetworkSettings:
    """Everything that decides the outcome.

    entry: "module:function"; the function is called with a strategy's name, a seed and the options, and returns
        the search at its beginning and its task.
    warmup: epochs with theta fixed; each epoch after it alternates weight and theta steps.
    retrain_epochs: how long the answer is trained from scratch.
    precision: of the search and the retraining; what the function's search has where None.
    processes: how many do a search together, each on its share of the minibatches. draws: see `Search.join`.
    limits: the most that answers may cost, by the name of a cost, in its unit; besides those that the function's
        search has of other costs.
    answer: which architecture is the result of a strategy that learns; as it says where None.
    """

    entry: str
    options: Mapping[str, Any] = field(default_factory=dict)
    epochs: int = 60
    warmup: int = 20
    retrain_epochs: int = 40
    device: str = "cpu"
    precision: str | None = None
    processes: int = 1
    draws: Draws = "shared"
    limits: Mapping[str, float] = field(default_factory=dict)
    answer: Answer | None = None

    def __post_init__(self) -> None:
        check_count("processes", self.processes)
        check_count("epochs", self.epochs)
        check_count("warmup", self.warmup, least=0)
        check_count("retrain_epochs", self.retrain_epochs)
        if self.warmup >= self.epochs:
            raise ValueError(f"warmup must leave epochs for theta: it is {self.warmup} of {self.epochs}.")


@dataclass(frozen=True)
class OwnNetworkStudy:
    """The search as something that can be run, run by run, for any strategy and seed.

    costs: those that the limits name; see `studies.limits`.
    """

    settings: OwnNetworkSettings
    costs: tuple[Cost, ...] = ()

    name: ClassVar[str] = "search"
    table: ClassVar[None] = None

    @cached_property
    def length(self) -> Length:
        """How long a search is; one record per epoch. Known without a call of the function after `begin`."""
        return self._length_of(self._make(strategies.baselines()[0], 0)[1])

    @property
    def title(self) -> str:
        """What was searched: the built-in task, or the user's function."""
        return str(self.settings.options.get("task", self.settings.entry.rpartition(":")[2]))

    def procedure(self) -> dict[str, str]:
        """What the settings do not say, in words."""
        return {
            "turns": str(self.length),
            "answer": self._answers(),
            "retraining": "from scratch; the epoch with the lowest loss on the validation data is judged",
        }

    def check(self, strategy: str, seed: int) -> None:
        """The function must make a search and a task, with any seed, and loss and metric must be numbers."""
        self._judging_device()
        search, data = self.begin(strategy, seed)
        self._make(strategy, _fresh_seed(seed))
        with reporting_task_errors(self.settings.entry):
            SharedLoss(search, [data.validation.first()], data.loss, seed=seed).judge(search.argmax({}))
            data.measure(search)

    def begin(self, strategy: str, seed: int) -> tuple[Search, Replayed]:
        """The search as the function makes it, and the data of its task."""
        search, task = self._make(strategy, seed)
        self.__dict__.setdefault("length", self._length_of(task))  # where cached_property looks for it
        search.model.to(self.settings.device)
        if self.settings.precision is not None:
            set_precision(search, self.settings.precision)
        if self.settings.limits:
            search.policy.budget = self._limited(search)
        search.join(current(), self.settings.draws)
        return search, self._data(task, seed)

    def _limited(self, search: Search) -> Budget:
        """The budget that the function gave its search, with the limits of the settings."""
        own, asked = search.policy.budget, Budget.of(search.space, self.settings.limits, None, self.costs)
        others = [limit for limit in own.limits if limit.cost.name not in self.settings.limits]
        return Budget(asked.decisions, [*asked.limits, *others], own.penalties)

    def measured(self, strategy: str, seed: int, names: Iterable[str]) -> tuple[Cost, ...]:
        """Find what operations cost, for the limits of these names; see `advnas.costs`."""
        search, task = self._make(strategy, seed)
        search.model.to(self.settings.device)
        return tuple(find_cost(name, search.space, partial(one_example, search, task)) for name in names)

    def answer_of(self, strategy: str) -> Answer:
        """As the settings ask for, or as the strategy says."""
        return answer_of(strategy, self.settings.answer)

    def _length_of(self, task: Task) -> Length:
        per_epoch = batches_in(task.training, processes=self.settings.processes)
        return Length(per_epoch, self.settings.epochs, self.settings.warmup, 1)

    def _data(self, task: Task, seed: int) -> Replayed:
        """The task's data, in orders of the seed's own."""
        group, metric = current(), None if task.metric is None else self._placed(_number_of(task.metric))
        placed = replace(task, loss=self._placed(task.loss), metric=metric)
        return Replayed.of(placed, seed, (group.rank, group.size))

    def evaluate(self, answer: Taken, seed: int, search: Search, folder: Path) -> dict[str, Any]:
        """Retrain the answer from scratch and judge it; the weights of both stay in the folder, to be exported."""
        by, architecture = answer
        save_state(folder / "searched.pt", search.model.state_dict())
        architecture, spent = spend(search, by, architecture, partial(self._example, seed))
        return {"by": by, **self.retrain(seed, architecture, folder), "spent": spent}

    def _example(self, seed: int) -> Arguments:
        """What the network is called with, a batch of 1."""
        return one_example(*self._make(strategies.baselines()[0], seed))

    def retrain(self, seed: int, architecture: Mapping[str, str], folder: Path) -> dict[str, Any]:
        """Train an architecture from scratch; what it is worth. Its weights end in `retrained.pt`."""
        search, task = self._make(strategies.baselines()[0], seed)
        search.model.to(self.settings.device)
        outcome = retrain(
            search.derive(Architecture(architecture), fresh=partial(self._fresh_model, seed)),
            Task(task.training, task.validation, self._placed(task.loss)),
            epochs=self.settings.retrain_epochs,
            recipe=self._recipe(search),
            seed=seed_of(seed, _RETRAINING),
            folder=folder,
        )
        save_state(folder / "retrained.pt", outcome.model.state_dict())
        measures = self._judge(outcome.model.eval(), task, seed_of(seed, _JUDGING))
        refused = why_no_file(outcome.model, replace(task, loss=self._placed(task.loss)))
        return {
            "architecture": dict(architecture),
            "measures": measures,
            "validation_score": outcome.best.score,
            "parameters": sum(parameter.numel() for parameter in outcome.model.parameters()),
            "best_epoch": outcome.best.number,
            **({"no_file": refused} if refused else {}),
        }

    def _recipe(self, search: Search) -> Recipe:
        """Train answers as the search trains its weights."""
        precision = self.settings.precision or search.parent.precision.name
        return Recipe(search.make_weight_optimizer, search.annealing, search.weight_clip, precision=precision)

    def _fresh_model(self, seed: int) -> nn.Module:
        """A model that the user's function makes with a seed of its own, so that all initialisations are theirs."""
        own = _fresh_seed(seed)
        with seeded(own):  # in case that the function leaves it to torch
            return self._make(strategies.baselines()[0], own)[0].model

    def retrained(self, seed: int, architecture: Mapping[str, str], weights: Path) -> tuple[nn.Module, Task, None]:
        """The answer with the weights that its retraining left in a file."""
        search, task = self._make(strategies.baselines()[0], seed)
        network = search.derive(Architecture(architecture))
        network.load_state_dict(load_state(weights))
        return network, task, None

    def inherited(
        self, seed: int, architecture: Mapping[str, str], load: Callable[[Search], object]
    ) -> tuple[nn.Module, Task, float]:
        """The answer with the weights it has in the searched network, and how far their outputs are apart.

        load: gives a search at its beginning the weights of the one that is over.
        """
        search, task = self._make(strategies.baselines()[0], seed)
        load(search)
        with search.space.running(architecture):
            with seeded(seed_of(seed, _JUDGING)):
                reestimate_batch_norm(search.model, task.training, task.loss)
            network = search.derive(Architecture(architecture))
            example = called_with(search.model, task)
            with torch.no_grad(), evaluating(search.model), evaluating(network):
                outputs = [tree_leaves(call(module, example)) for module in (search.model, network)]
        pairs = [pair for pair in zip(*outputs, strict=True) if isinstance(pair[0], Tensor)]
        return network, task, max((one - other).abs().max().item() for one, other in pairs)

    def check_diagnosable(self, seed: int) -> None:
        """Raise now what would stop `diagnose` after the search."""
        search, _ = self._make(strategies.baselines()[0], seed)
        check_rankable(search)
        search.derive(fresh=partial(self._fresh_model, seed))

    def diagnose(self, seed: int, load: Callable[[Search], object]) -> Agreement:
        """Compare the ranking by the shared weights with that by training alone, as answers are retrained.

        load: gives a search at its beginning the weights of one that is over.
        """
        search, task = self._make(strategies.baselines()[0], seed)
        load(search)
        search.model.to(self.settings.device)
        return agreement(
            search,
            Task(task.training, task.validation, self._placed(task.loss)),
            epochs=self.settings.retrain_epochs,
            recipe=self._recipe(search),
            fresh=self._drawn_model,
            seed=seed,
        )

    def _drawn_model(self) -> nn.Module:
        """A model of the user's function, with a seed drawn from torch's global generator."""
        return self._fresh_model(int(torch.randint(2**31, ())))

    def _judge(self, model: nn.Module, task: Task, seed: int) -> list[dict[str, Any]]:
        """The metric, if the task has one, and the loss; on the test data, if the task has some."""
        part, batches = ("validation", task.validation) if task.test is None else ("test", task.test)
        judges: list[tuple[str, Callable[[nn.Module, Any], Any], bool]] = [("loss", task.loss, False)]
        if task.metric is not None:
            judges.insert(0, (_name_of(task.metric), _number_of(task.metric), True))
        measures = []
        for name, of, more_is_better in judges:
            with seeded(seed):  # the data may be shuffled
                value = mean_over(model, batches, self._placed(of))
            measures.append({"name": f"{part} {name}", "value": value, "more_is_better": more_is_better})
        return measures

    def _placed(self, function: Callable[[nn.Module, Any], Any]) -> Callable[[nn.Module, Any], Any]:
        """The same function of a batch that is taken to the device first."""
        device = self._judging_device()

        @functools.wraps(function)  # a loss may carry something along, which is saved
        def placed(model: nn.Module, batch: Any) -> Any:
            with device.computing():
                return function(model, device.place(batch))

        return placed

    def _judging_device(self) -> Device:
        """Where the loss is computed; a search computes it in its own precision besides."""
        return Device(self.settings.device, self.settings.precision or "float32")

    def _answers(self) -> str:
        """Which architecture is whose result, in words."""
        learning = (self.settings.answer or "argmax").replace("_", " ")
        kinds = {name: self.answer_of(name).replace("_", " ") for name in strategies.names()}
        others = [f"for {name} the {kind} one" for name, kind in kinds.items() if kind != learning]
        return "; ".join([f"the {learning}{'' if learning == 'argmax' else ' one'}", *others])

    def _make(self, strategy: str, seed: int) -> tuple[Search, Task]:
        search, task = make(self.settings.entry, strategy, seed, self.settings.options)
        if search.weight_steps or search.architecture_steps:
            raise ValueError(
                f"{self.settings.entry} returns a Search that has taken {search.weight_steps} weight steps and "
                f"{search.architecture_steps} of theta already. Return it as advnas.Search(...) makes it: `advnas "
                "search` runs it."
            )
        return search, task


def _fresh_seed(seed: int) -> int:
    """The seed that the user's function is called with for the fresh weights of a retraining."""
    return seed_of(seed, _FRESH) % 2**31  # some generators take no more


def _name_of(metric: Callable[..., Any]) -> str:
    name: str = getattr(metric, "__name__", type(metric).__name__)
    return name.strip("_").replace("_", " ")


def _number_of(metric: Callable[[nn.Module, Any], Any]) -> Callable[[nn.Module, Any], float]:
    """The same metric, which refuses what is no number by its name."""

    def number(model: nn.Module, batch: Any) -> float:
        value = metric(model, batch)
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            told = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{value!r:.60}"
            raise ValueError(
                f"The metric {_name_of(metric)!r} must return one number for a minibatch, such as an accuracy, got "
                f"{told}."
            ) from error

    return number


def load_searched(run: Path, search: Search) -> None:
    """Give a search at its beginning the weights of a run that is over: of a study, or of a plain `Search.run`."""
    searched = run / "evaluation" / "searched.pt"
    if searched.exists():
        search.model.load_state_dict(load_state(searched))
        return

    def load(saved: dict[str, Any]) -> None:
        check_form(saved, [{"work": {"search": {"weights": {}}}}], "it")
        search.load_weights(saved["work"]["search"]["weights"], run)

    if not Checkpoints(run).resume(load):
        raise ValueError(f"{run} has no weights of the searched network. Give the folder of a search that is over.")
