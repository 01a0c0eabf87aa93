"""Callbacks: what happens besides the search, at its start, steps, epochs, checkpoints and end."""

import copy
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from advnas.arguments import check_count
from advnas.records.restoring import rolled_back_on_failure
from advnas.search.step import Step
from advnas.search.verdict import is_decided
from advnas.structure import Nesting

if TYPE_CHECKING:
    from advnas.search.loop import SearchRun
    from advnas.search.search import Search


_LENGTH = ("total_steps", "_schedule_phases")  # what OneCycleLR has of its length


class StopSearch(Exception):
    """Raised by a callback: end the search in order, after the turn that is under way, with a checkpoint."""


class RunView:
    """What a callback sees of a run.

    Attributes:
        search: the search itself.
        folder: of the run; None without one.
        record: the latest record (entropy, loss, answers), as `records.jsonl` has it; None before the first.
        gradient_norms: of the latest steps before clipping: "weights" and "theta", as far as there were any.
    """

    def __init__(self, run: "SearchRun", folder: Path | None) -> None:
        self.search: Search = run.search
        self.folder, self.length, self._run = folder, run.length, run
        self.record: Mapping[str, Any] | None = None
        self.gradient_norms: dict[str, float] = {}

    @property
    def epoch(self) -> float:
        """Passes over the training data so far, the warm-up included."""
        return self._run.position / self.length.per_epoch

    @property
    def in_warmup(self) -> bool:
        """Whether theta is still fixed."""
        return self._run.position < self.length.warmup_turns

    @property
    def learning_rates(self) -> dict[str, tuple[float, ...]]:
        """Of the latest steps, one per parameter group: of the "weights" and of "theta"."""
        optimizers = {"weights": self.search.weights.optimizer, "theta": self.search.policy.optimizer}
        return {
            name: tuple(float(group["lr"]) for group in optimizer.param_groups)
            for name, optimizer in optimizers.items()
        }

    def trains_weights(self, step: Step) -> bool:
        """Whether a step has trained the weights: a joint step, which is told as one of theta, has too."""
        return step.phase != "architecture" or self.search.schedule == "joint"

    def see(self, step: Step) -> None:
        """Take over what a step says about gradients."""
        if step.phase == "architecture" and step.gradient_norm is not None:
            self.gradient_norms["theta"] = step.gradient_norm
        if self.trains_weights(step):
            self.gradient_norms["weights"] = self.search.weights.gradient_norm


class Callback:
    """Subclass it and write the methods that you need. In a group of processes each calls its own callbacks.

    A method may raise `StopSearch`. What `state` returns is saved with every checkpoint, and `restore` gets it back
    where the search is resumed. If the checkpoint turns out not to fit, `restore` then gets what `state` returned
    just before, so that a refused resume changes no callback.
    """

    def start(self, run: RunView) -> None:
        """Before the first step of this call of `run`; a resumed search is already where it was."""

    def step(self, run: RunView, step: Step) -> None:
        """After every step, before the next."""

    def epoch(self, run: RunView) -> None:
        """After every pass over the training data, before its checkpoint."""

    def checkpoint(self, run: RunView) -> None:
        """After a checkpoint was written into `run.folder`."""

    def end(self, run: RunView) -> None:
        """At the end, however it came: the last step, StopSearch, a signal or an error.

        An error in here is raised once all callbacks have been called and the run is finished.
        """

    def state(self) -> dict[str, Any]:
        """Return what the callback carries from one step to the next: plain values and tensors."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""


class OnStep(Callback):
    """Call a function with every step."""

    def __init__(self, function: Callable[[Step], object]) -> None:
        self._function = function

    def step(self, run: RunView, step: Step) -> None:
        """Call it."""
        self._function(step)


class TimeLimit(Callback):
    """Stop after the turn in which this call of `run` has taken so many seconds."""

    def __init__(self, seconds: float) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0:
            raise ValueError(f"time_limit must be a positive number of seconds, got {seconds!r}.")
        self._seconds, self._started = seconds, 0.0

    def start(self, run: RunView) -> None:
        """Start the clock."""
        self._started = time.monotonic()

    def step(self, run: RunView, step: Step) -> None:
        """Look at the clock."""
        if time.monotonic() - self._started >= self._seconds:
            raise StopSearch(f"the time limit of {self._seconds:g} s is over")


class Patience(Callback):
    """Stop when the answer has been decided for so many epochs in a row.

    An epoch counts if at its end the search is decided (`Verdict.decided`: the entropy is at most half of its
    start, and at no decision the two most likely operations are close) and the most likely network is the one of
    the epoch before. Any other epoch starts the count again.
    """

    def __init__(self, epochs: int) -> None:
        self._epochs = check_count("patience", epochs)
        self._count, self._answer = 0, dict[str, str]()

    def epoch(self, run: RunView) -> None:
        """Count the epoch."""
        answer = dict(Nesting.of(run.search.space).canonical(run.search.argmax()))
        same = is_decided(run.search) and answer == self._answer
        self._count, self._answer = (self._count + 1 if same else 0), answer
        if self._count >= self._epochs:
            raise StopSearch(f"the answer has been decided and the same for {self._count} epochs (patience)")

    def state(self) -> dict[str, Any]:
        """The count and the answer it is of."""
        return {"count": self._count, "answer": self._answer}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Count on."""
        self._count, self._answer = int(state["count"]), dict(state["answer"])


class StepScheduler(Callback):
    """Step a learning rate scheduler of torch after every weight step, and save its state with every checkpoint.

    A scheduler of a fixed length, such as OneCycleLR, keeps the length it was saved with where that is enough for
    the steps that are left. A search that is extended has more: from its next step on, the length of the new
    scheduler counts.

    Args:
        scheduler: of `search.weight_optimizer`, such as OneCycleLR.

    Raises:
        TypeError: the scheduler is a ReduceLROnPlateau, which is told a loss per epoch.
    """

    def __init__(self, scheduler: LRScheduler) -> None:
        if isinstance(scheduler, ReduceLROnPlateau):
            raise TypeError(
                "ReduceLROnPlateau.step must be told a loss, which StepScheduler does not do. Write a Callback "
                "whose `epoch` calls scheduler.step(run.record['loss']), as docs/howto/common_practice.md shows it "
                "under Schedulers."
            )
        self._scheduler = scheduler
        self._length = {name: vars(scheduler)[name] for name in _LENGTH if name in vars(scheduler)}

    def start(self, run: RunView) -> None:
        """See whether the scheduler is of this search, and can take the steps that are left."""
        _check_owner(self._scheduler, run.search)
        scheduler, left = self._scheduler, run.length.turns - run.search.weight_steps
        needed = scheduler.last_epoch + left
        if not self._length or scheduler.total_steps >= needed:  # type: ignore[attr-defined]
            return
        if self._length["total_steps"] < needed:
            name, given = type(scheduler).__name__, self._length["total_steps"]
            raise ValueError(
                f"{name} is given total_steps={given}, but has taken {scheduler.last_epoch} steps and the search "
                f"has {left} weight steps left. Write {name}(..., total_steps={needed})."
            )
        vars(scheduler).update(self._length)
        scheduler.last_epoch -= 1
        scheduler.step()  # the rate of the same step, by the new length

    def step(self, run: RunView, step: Step) -> None:
        """Take the scheduler's step with those of the weights."""
        if run.trains_weights(step):
            self._scheduler.step()

    def state(self) -> dict[str, Any]:
        """The scheduler's own."""
        return self._scheduler.state_dict()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Give it back to the scheduler."""
        self._scheduler.load_state_dict(dict(state))


def _check_owner(scheduler: LRScheduler, search: "Search") -> None:
    """Refuse a scheduler that does not change the rates of the weights; a wrapped optimiser has the same groups."""
    given = getattr(scheduler, "optimizer", None)
    if given is not None and given.param_groups is not search.weights.optimizer.param_groups:
        kind = type(scheduler).__name__
        raise ValueError(
            f"The {kind} is of another optimiser than that of this search's weights, so that their rates would not "
            f"follow it. Write StepScheduler({kind}(search.weight_optimizer, ...))."
        )


@contextmanager
def restoring(callbacks: Sequence[Callback], saved: Mapping[str, Any]) -> Iterator[None]:
    """Give callbacks the states that were saved; if one of them or the block fails, all are as they were.

    Warns of states that no callback takes: a schedule that ends halfway changes what the search finds.

    Raises:
        ValueError: a callback or the block refuses what was saved.
    """
    given = by_name(callbacks)
    found = [(callback, saved[name]) for name, callback in given.items() if name in saved]
    left = [name for name, state in saved.items() if state and name not in given]
    if left:
        warnings.warn(
            f"This run was saved with callbacks that are not given now: {', '.join(left)}. What they did ends "
            "here. Pass them again, with the same settings, to go on as before.",
            stacklevel=2,
        )
    before = [(callback, copy.deepcopy(callback.state())) for callback, _ in found]
    with rolled_back_on_failure(lambda: _restore(before)):
        _restore(found)
        yield


def _restore(states: Sequence[tuple[Callback, Mapping[str, Any]]]) -> None:
    for callback, state in states:
        callback.restore(state)


def by_name(callbacks: Sequence[Callback]) -> dict[str, Callback]:
    """Callbacks by the names that their states are saved under: their types, numbered where that is not enough."""
    found: dict[str, Callback] = {}
    for callback in callbacks:
        kind = type(callback).__name__
        count = sum(type(other).__name__ == kind for other in found.values())
        found[f"{kind} {count + 1}" if count else kind] = callback
    return found
