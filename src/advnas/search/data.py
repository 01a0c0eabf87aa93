"""Minibatches of a run: what is due at a search's position, from whatever a user iterates over."""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.utils.data import DataLoader

from advnas.arguments import check_count
from advnas.modes import batch_statistics
from advnas.randomness import seed_of, seeded
from advnas.records.restoring import check_form
from advnas.search.step import Accumulated, LossOf
from advnas.task import Task, length_of, mean_over

if TYPE_CHECKING:
    from advnas.search.search import Search

Position = tuple[int, int]
_TRAINING, _VALIDATION = range(2)  # purposes of the seeds of the data


class Minibatches(Protocol):
    """Data that know what is due at a search's position. What they carry along beyond it is saved with it."""

    def losses(self, search: "Search") -> tuple[LossOf, Callable[[], LossOf]]:
        """Return what `Search.turn` takes: the losses on the minibatches that are due."""

    def state(self) -> dict[str, Any]:
        """Return what is carried from one step to the next, such as a hidden state."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on with what was carried; raise ValueError if it cannot be of such data."""

    def validation_pass(self, most: int) -> tuple[int, Iterator[LossOf]]:
        """Return how many validation minibatches one pass has, but at most `most`, and the losses on them in order.

        They are the same whatever the search's position, which is left as it is.
        """

    def measure(self, search: "Search") -> float | None:
        """Tell how good the most likely architecture is by now, where that is cheap to know; more is better."""


@runtime_checkable
class Remembers(Protocol):
    """A loss that carries something from one minibatch to the next, such as a hidden state."""

    def state(self) -> dict[str, Any]:
        """Return what is carried, as tensors and plain values."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on with what was carried; raise ValueError if it cannot be of this loss."""


@dataclass(frozen=True)
class TwoStreams:
    """Minibatches that depend on the seed and the number of steps taken, so all strategies see the same.

    training, validation: give the loss on minibatch number n, for the weights and for theta.
    """

    training: Callable[[int], LossOf]
    validation: Callable[[int], LossOf]

    def losses(self, search: "Search") -> tuple[LossOf, Callable[[], LossOf]]:
        """Of the weights on one part of the data, and of theta on the other."""
        return self.training(search.weight_steps), lambda: self.validation(search.architecture_steps)

    def state(self) -> dict[str, Any]:
        """Nothing beyond the position."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing beyond the position."""

    def validation_pass(self, most: int) -> tuple[int, Iterator[LossOf]]:
        """The first `most` minibatches for theta; the streams have no end."""
        return most, map(self.validation, range(most))

    def measure(self, search: "Search") -> None:
        """Not known before the end."""


@dataclass(frozen=True)
class Replayed:
    """Minibatches from whatever the user iterates over, the same for all strategies of a seed.

    metric: of the task, if it has one; for the records.
    accumulate: how many of them, one after the other, make up a step.
    """

    training: "Replay"
    validation: "Replay"
    loss: Callable[[nn.Module, Any], Tensor]
    metric: Callable[[nn.Module, Any], float] | None = None
    accumulate: int = 1

    @classmethod
    def of(cls, task: Task, seed: int, share: tuple[int, int] = (0, 1)) -> "Replayed":
        """Read a task's data in orders of the seed's own.

        Args:
            task: the data, the loss and the metric.
            seed: of the orders.
            share: (rank, size) of a process that shares the data with others.
        """
        return cls(
            Replay(task.training, seed=seed_of(seed, _TRAINING), name="training", share=share),
            Replay(task.validation, seed=seed_of(seed, _VALIDATION), name="validation", share=share),
            task.loss,
            task.metric,
        )

    def losses(self, search: "Search") -> tuple[LossOf, Callable[[], LossOf]]:
        """Of the weights on the next training minibatches, and of theta on the next validation minibatches."""
        return self._next(self.training), lambda: self._next(self.validation)

    def state(self) -> dict[str, Any]:
        """How far both have been read, and what the loss carries along."""
        position = {"training": list(self.training.position), "validation": list(self.validation.position)}
        return position if self._memory is None else position | {"loss": self._memory.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Read on from there."""
        now = self.state()
        check_form(state, [now | {"loss": {}} if "loss" in now else now], "the position in the data")
        for data, (passes, number) in ((self.training, state["training"]), (self.validation, state["validation"])):
            data.enter((check_count("a pass", passes, least=0), check_count("a position", number, least=0)))
        if self._memory is not None:
            self._memory.restore(state["loss"])

    @property
    def _memory(self) -> Remembers | None:
        """The loss, or what a wrapper of it wraps, where it carries something along."""
        own = inspect.unwrap(self.loss)
        return own if isinstance(own, Remembers) else None

    def validation_pass(self, most: int) -> tuple[int, Iterator[LossOf]]:
        """The first pass over all validation data, also where processes share them."""
        return min(most, self.validation.per_pass()), map(self._on, self.validation.anew())

    def measure(self, search: "Search") -> float | None:
        """Judge the most likely architecture, with the shared weights, on the first validation minibatch."""
        if self.metric is None:
            return None
        model = search.derive()
        with search.parent.randomness(), batch_statistics(model):
            return mean_over(model, [self.validation.first()], self.metric)

    def _next(self, data: "Replay") -> LossOf:
        parts = [self._on(next(data)) for _ in range(self.accumulate)]
        return Accumulated(*parts) if len(parts) > 1 else parts[0]

    def _on(self, batch: Any) -> LossOf:
        def loss_of(model: nn.Module) -> Tensor:
            try:
                return self.loss(model, batch)
            except (TypeError, AttributeError) as error:
                kinds = f"{type(model).__name__} and a {type(batch).__name__}"
                error.add_note(f"The loss is called as loss(model, batch), here with a {kinds}.")
                raise

        return loss_of


class Replay(Iterator[Any]):
    """An iterable of minibatches, read again and again; minibatch n of pass p is the same in every process.

    torch's global generator starts from the seed, the pass and the minibatch's number while each one is fetched,
    and is put back afterwards. That decides the order of a shuffling DataLoader and the augmentation of its
    dataset. A dataset that draws from numpy or the `random` module, or a loader with a generator of its own, is
    beyond its reach: what such data give after a stop differs from what they would have given.

    name: how messages speak of the data.
    share: (rank, size) of a process that shares the data with others: of every `size` minibatches it gets one, and
        those at the end of a pass that do not go round are left out, fetched by all processes alike.
    """

    def __init__(self, batches: Iterable[Any], *, seed: int, name: str, share: tuple[int, int] = (0, 1)) -> None:
        self._batches, self._seed, self._name, self._share = _restarted(batches), seed, name, share
        self._pass, self._number = 0, 0
        self._iterator: Iterator[Any] | None = None
        self._first: Any = None

    @property
    def position(self) -> Position:
        """The pass and the number in it of the minibatch that comes next; the same in all processes that share."""
        return self._pass, self._number // self._share[1]

    def enter(self, position: Position) -> None:
        """Go to a position; the minibatches of its pass that lie before it are fetched and dropped."""
        self._pass, self._number, self._iterator = position[0], 0, None
        while self._number < position[1] * self._share[1]:
            try:
                self._fetch()
            except StopIteration:
                raise ValueError(
                    f"{position[1]} minibatches of a pass over the {self._name} data were read, and there are only "
                    f"{self._number} now"
                ) from None

    def first(self) -> Any:
        """Minibatch 0 of pass 0, whatever the position; kept, as fetching it may start workers."""
        if self._first is None:
            self._first = next(self.anew())
        return self._first

    def anew(self) -> "Replay":
        """The same data from minibatch 0 of pass 0 on, shared with nobody."""
        return Replay(self._batches, seed=self._seed, name=self._name)

    def per_pass(self) -> int:
        """How many minibatches a pass over the data has; data without a length are read to count them."""
        length = length_of(self._batches)
        if length is not None:
            return length
        with seeded(seed_of(self._seed, 0, 0)):
            return sum(1 for _ in self._batches)

    def __next__(self) -> Any:
        rank, size = self._share
        try:
            return [self._fetch() for _ in range(size)][rank]
        except StopIteration:
            if self._number < size:
                few = f", or have fewer minibatches than the {size} processes that share them" if size > 1 else ""
                raise ValueError(
                    f"The {self._name} data are empty, or an iterator that can be read only once{few}."
                ) from None
        self._pass, self._number, self._iterator = self._pass + 1, 0, None
        return next(self)

    def _fetch(self) -> Any:
        with seeded(seed_of(self._seed, self._pass, self._number)):
            if self._iterator is None:
                self._iterator = iter(self._batches)
            batch = next(self._iterator)
        self._number += 1
        return batch


def _restarted(batches: Iterable[Any]) -> Iterable[Any]:
    """The same data, with workers that are started anew for every pass.

    Persistent workers go on with the random numbers of the pass before, and serve one reader at a time: a search
    that is resumed would see other minibatches than one that was never stopped.
    """
    if not (isinstance(batches, DataLoader) and batches.persistent_workers):
        return batches
    own = copy.copy(batches)
    own.__dict__.update(persistent_workers=False, _iterator=None)  # a loader refuses to be changed by name
    return own
