"""The one loop: it takes turns, and a `Recorder` keeps what they leave in a run folder."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advnas import strategies
from advnas.records.restoring import check_form, check_settings
from advnas.records.unsaved import UnsavedBuffers
from advnas.search.callbacks import Callback, by_name, restoring
from advnas.search.data import Minibatches
from advnas.search.schedule import Length, turn
from advnas.search.step import LossOf, Step
from advnas.search.swaps import CreditCheck, check_credit, plan_squares
from advnas.search.work import Keeper, Work
from advnas.structure import Nesting

if TYPE_CHECKING:
    from advnas.search.search import Search


class SearchRun:
    """One search on its way through its data.

    Args:
        search: at its beginning; it is told how long it will be.
        data: what its minibatches are.
        length: how long the run is.
        on_credit: called when the strategy's credit has been compared with measured swaps; by rank 0 alone.

    Attributes:
        records: what was measured, where no folder keeps it.
        callbacks: whose states are saved with the search.
        extends: the length of the shorter search that this one goes on from, if it does.
        folder: where the run is kept; None without one.
    """

    def __init__(
        self,
        search: "Search",
        data: Minibatches,
        length: Length,
        on_credit: Callable[[CreditCheck], object] | None = None,
    ) -> None:
        self.search, self.data, self.length = search, data, length
        self.credit: CreditCheck | None = None
        self.records: list[dict[str, Any]] = []
        self.callbacks: Sequence[Callback] = ()
        self.extends: int | None = None
        self.folder: Path | None = None
        self._losses: list[float] = []
        search.progress.set_length(length.turns, length.warmup_turns)
        search.progress.every = search.strategy.architecture_every
        search.policy.fit_rate(search.progress.theta_steps)
        self._on_credit, self._squares = on_credit, plan_squares(search, length)
        self._unsaved = UnsavedBuffers(search.model)

    @property
    def position(self) -> int:
        """Weight steps taken; every turn has one."""
        return self.search.weight_steps

    def turn(self) -> Iterator[Step]:
        """Take the steps of one turn of Algorithm 1's loop."""
        latest, next_of_theta = self.data.losses(self.search)

        def of_theta() -> LossOf:
            nonlocal latest
            latest = next_of_theta()
            return latest

        for step in turn(self.search, latest, of_theta):
            if step.phase == "architecture":
                self._losses.append(step.loss)
            yield step
            if step.phase == "architecture":
                self._check_credit(latest)

    def _check_credit(self, loss_of: LossOf) -> None:
        """Measure swaps once, half-way between the end of the warm-up and the end of the search.

        By then theta has moved, and where slopes mislead it they contradict the swaps most clearly. This comes
        after a step of theta, on its minibatch: data that carry a state along, such as a text, take it from the
        first pass over a minibatch, which must be the search's own.
        """
        due = (self.length.warmup_turns + self.length.turns) // 2
        if self.credit is not None or not self._squares or self.position <= due:
            return
        self.credit = check_credit(self.search, loss_of, self._squares)
        if self._on_credit is not None and self.search.group.rank == 0:
            self._on_credit(self.credit)

    def record(self) -> dict[str, Any]:
        """Entropy, answers, and the mean loss of theta's steps since the last record."""
        losses, self._losses = self._losses, []
        return {
            "epoch": self.position / self.length.per_epoch,
            "step": self.position,
            "entropy": self.search.distribution.entropy().mean().item(),
            "loss": sum(losses) / len(losses) if losses else None,
            "metric": self.data.measure(self.search),
            **self.search.answers(),
        }

    def asked(self) -> dict[str, Any]:
        """What was asked for, as plain values; for `run.json`."""
        strategy = self.search.strategy
        return {
            "strategy": strategies.name_of(strategy),
            "seed": self.search.seed,
            "answer": strategy.answer,
            "learns": strategy.learns,
            "settings": self._settings(),
            "optimizers": self._optimizers(),
            "length": asdict(self.length),
        }

    def _settings(self) -> dict[str, Any]:
        """What must be the same where the run goes on: the search's own, and `accumulate` unless it is 1."""
        together = getattr(self.data, "accumulate", 1)
        return self.search.settings() | ({} if together == 1 else {"accumulate": together})

    def _optimizers(self) -> dict[str, Any]:
        """How the weights and theta learn, as it was asked for."""
        weights, theta = self.search.weights, self.search.policy
        return {
            "weight_optimizer": weights.settings,
            "weight_clip": weights.clip,
            "architecture_optimizer": theta.settings,
            "architecture_clip": theta.clip,
        }

    def result(self) -> dict[str, Any]:
        """What is known at the end, as plain values, equal for equal runs; for `result.json`."""
        return {
            "strategy": strategies.name_of(self.search.strategy),
            "seed": self.search.seed,
            **self.search.answers(),
            "operation_sizes": self.search.space.operation_sizes(),
            "nested": Nesting.of(self.search.space).nested,
            "credit": self.credit.to_json() if self.credit is not None and self.credit.swaps else None,
        }

    def state(self, folder: Path) -> dict[str, Any]:
        """The search, its data, and what the next record is made of."""
        self._unsaved.tell()
        carried = {name: callback.state() for name, callback in by_name(self.callbacks).items()}
        return {
            "settings": self._settings(),
            "optimizers": self._optimizers(),
            "search": self.search.state(folder),
            "data": self.data.state(),
            "losses": list(self._losses),
            "credit": None if self.credit is None else self.credit.to_json(),
            "callbacks": {name: state for name, state in carried.items() if state},
        }

    def restore(self, state: dict[str, Any], folder: Path) -> None:
        """Load a state of the same search on the same data, or raise ValueError and leave the search as it was.

        A search that was over may have been shorter: from its last step on, all schedules are those of the longer.
        """
        form: dict[str, Any] = {"settings": {}, "search": {}, "data": {}, "losses": []}
        check_form(state, [form, {**form, "losses": [0.0]}], "it")
        now, before = ({"accumulate": 1, **settings} for settings in (self._settings(), state["settings"]))
        extends = _length_of_finished(state["search"], before)
        longer = extends is not None and self.length.turns > extends
        check_settings(now, {**before, "steps": now.get("steps")} if longer else before)
        optimizers = self._optimizers()
        check_settings(optimizers, state.get("optimizers", optimizers))  # not known to early checkpoints of 0.2
        credit = state.get("credit")  # not yet measured, or not known to version 0.1
        checked = None if credit is None else CreditCheck.from_json(credit)
        self.data.restore(state["data"])
        with restoring(self.callbacks, state.get("callbacks", {})):
            self.search.restore(state["search"], folder)  # last: what it takes over it keeps
        self.extends = extends if longer else None
        self._losses, self.credit = list(state["losses"]), checked


def _length_of_finished(search: Mapping[str, Any], settings: Mapping[str, Any]) -> int | None:
    """How many weight steps a search had, if its state is that of its end."""
    steps, weights = settings.get("steps"), search.get("weights")
    over = isinstance(steps, int) and isinstance(weights, Mapping) and weights.get("steps") == steps
    return steps if over else None


def advance(
    work: Work,
    *,
    until: int,
    every: int | Fraction,
    after: int = 0,
    recorder: Keeper | None = None,
    on_step: Callable[[Any], object] | None = None,
) -> None:
    """Take turns until the work is at a position.

    Args:
        work: what is advanced.
        until: the position to stop at.
        every: turns between two checkpoints, each with a record; rounded up where it is no whole number.
        after: the position of the first record; before it is the warm-up.
        recorder: keeps everything in a folder.
        on_step: called with every step, before the next is taken.
    """
    if recorder is not None:
        _end_warmup(work, recorder, after)
    while work.position < until:
        for step in work.turn():
            if recorder is not None:
                recorder.note(step)
            if on_step is not None:
                on_step(step)
        if recorder is not None:
            due = work.position // every > (work.position - 1) // every
            _end_turn(work, recorder, due=due or work.position == until, after=after)


def _end_turn(work: Work, recorder: Keeper, *, due: bool, after: int) -> None:
    _end_warmup(work, recorder, after)
    if due and work.position > after:
        recorder.record()
    recorder.end_turn(save=due)


def _end_warmup(work: Work, recorder: Keeper, after: int) -> None:
    """Make the first record, if it is due now."""
    if work.position == after and not recorder.has_records:
        recorder.end_warmup()
        recorder.record()


def run_search(
    run: SearchRun, *, recorder: Keeper | None = None, on_step: Callable[[Step], object] | None = None
) -> None:
    """Take all turns of a search that are left."""
    length = run.length
    advance(
        run,
        until=length.turns,
        every=length.record_every,
        after=length.warmup_turns,
        recorder=recorder,
        on_step=on_step,
    )
