"""Algorithm 1: train one parent network while learning which of its operations to keep."""

import copy
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from advnas import strategies
from advnas.architecture import Architecture, Draw
from advnas.arguments import check_count
from advnas.distribution import Distribution, Theta
from advnas.parallel.group import Group, RankGone
from advnas.parallel.reductions import Estimates, average_estimates, average_feedback, average_weights
from advnas.randomness import generator, seed_of
from advnas.records.checkpoints import Checkpoints
from advnas.records.files import write_atomically
from advnas.records.journal import Journal
from advnas.records.restoring import blank_step, check_form, put_optimizer, take_over
from advnas.records.signals import StopSignals
from advnas.search.device import keep_kernels
from advnas.search.plan import Plan, measure
from advnas.search.replay import Replay
from advnas.space import SearchSpace, Trace
from advnas.stores import Store, load_shared_weights, make_store
from advnas.strategies import Feedback, Phase, State, Strategy
from advnas.task import Task

LossOf = Callable[[nn.Module], Tensor]
OptimizerOf = Callable[[list[nn.Parameter]], Optimizer]
Draws = Literal["shared", "independent"]

# The paper's settings for convolutional cells (appendix).
PAPER_WEIGHTS: OptimizerOf = partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
PAPER_THETA: OptimizerOf = partial(torch.optim.Adam, lr=3e-4, betas=(0.5, 0.999), weight_decay=3e-3, fused=True)


def cosine(progress: float) -> float:
    """Anneal a learning rate from its initial value to 0."""
    return (1 + math.cos(math.pi * min(progress, 1.0))) / 2


def constant(progress: float) -> float:
    """Leave a learning rate as it is."""
    return 1.0


class NonFiniteLoss(ArithmeticError):
    """The loss or its gradient is infinite or not a number; theta and the weights are as before the step."""


class SearchStopped(KeyboardInterrupt):
    """A signal asked the search to stop; it is saved in its folder."""


class _NonFiniteTheta(NonFiniteLoss):
    """Raised where it is not known yet which step it was."""


@dataclass(frozen=True)
class Step:
    """What one step did; a line of the journal.

    number: counts the steps of its phase from 1. entropy: mean over the decisions, in nats.
    advantages: dr/dw_i at every reached decision, summed over its weighted operations; empty without gates.
    In a group of processes the loss is the mean over them; where each has a draw of its own, architecture and
    advantages are those of this process.
    """

    phase: str
    number: int
    loss: float
    entropy: float
    architecture: dict[str, str] | None
    advantages: dict[str, float]
    gradient_norm: float | None


@dataclass(frozen=True)
class ProcessBest:
    """The drawn architecture with the lowest minibatch loss so far; it may owe that to an easy minibatch."""

    architecture: Architecture
    loss: float


class Search:
    """One search of one parent network.

    model: any module with at least one Choice.
    strategy: a name (see `advnas.strategies.names()`) or a strategy object.
    steps, warmup: how many weight steps there will be, and in how many of the first ones theta stays fixed.
        Needed by learning rate schedules and temperatures; `run` fills them in.
    schedule: "alternate" takes a weight step on training data and an architecture step on validation data in
        turn (Algorithm 1); "joint" gets both gradients from one pass over one training minibatch.
    weight_optimizer, architecture_optimizer: called with the parameters; the defaults are the paper's.
    annealing: maps progress in [0, 1] to a factor on both learning rates.
    weight_clip, architecture_clip: largest gradient norm, or None.
    weights: where the candidates that are not drawn live: "resident", "host", "disk" or a store of
        `advnas.stores`. It makes no difference to the results.
    memory_budget: with "disk", how much of the candidates may be in memory at a time, such as "2GB".
    seed: of everything random here. Each step also seeds torch's global generator for the time of its own
        forward pass (dropout and the like) and restores it, so a step's randomness depends on nothing else.
    group, draws: for a search by several processes; see `join`.
    """

    def __init__(
        self,
        model: nn.Module,
        strategy: str | Strategy = "advantage",
        *,
        steps: int | None = None,
        warmup: int = 0,
        schedule: Literal["alternate", "joint"] = "alternate",
        weight_optimizer: OptimizerOf = PAPER_WEIGHTS,
        architecture_optimizer: OptimizerOf = PAPER_THETA,
        annealing: Callable[[float], float] = cosine,
        weight_clip: float | None = 1.0,
        architecture_clip: float | None = 1.0,
        weights: str | Store = "resident",
        memory_budget: int | str | None = None,
        seed: int = 0,
        group: Group | None = None,
        draws: Draws = "shared",
    ) -> None:
        if schedule not in ("alternate", "joint"):
            raise ValueError(f"schedule must be 'alternate' or 'joint', got {schedule!r}.")
        keep_kernels()
        self.model = model
        self.space = SearchSpace(model)
        if isinstance(strategy, type):
            raise TypeError(f"A strategy must be an object, got a class. Write {strategy.__name__}().")
        self.strategy = strategies.get(strategy) if isinstance(strategy, str) else strategy
        self.schedule = schedule
        self.seed = check_count("seed", seed, least=0)
        self.theta = Theta(self.space.sizes)
        self.process_best: ProcessBest | None = None
        self.weight_steps = 0
        self.architecture_steps = 0
        self.set_length(steps, warmup)
        self.weight_optimizer, self.weight_clip, self.annealing = weight_optimizer, weight_clip, annealing
        self._architecture_clip = architecture_clip
        parameters = list(model.parameters())
        if not parameters:
            raise ValueError(
                f"{type(model).__name__} has no weights, so there is nothing to train while searching. Put the "
                "Choice into a module with some."
            )
        self._weight_optimizer = weight_optimizer(parameters)
        self._architecture_optimizer = architecture_optimizer(self.theta.parameters)
        self._store = make_store(weights, memory_budget)
        self._store.attach(self.space, self._weight_optimizer)
        self._initial_rates = [
            [group["lr"] for group in optimizer.param_groups]
            for optimizer in (self._weight_optimizer, self._architecture_optimizer)
        ]
        self._generator = generator(self.seed)
        self._state = self.strategy.init(self.theta.logits().detach(), self.space.zeros, self._generator)
        self.join(Group() if group is None else group, draws)

    def join(self, group: Group, draws: Draws = "shared") -> None:
        """Search in step with other processes: the same model, strategy and settings, other minibatches.

        All go on from the weights of rank 0. A weight step trains one architecture on the minibatches of all. For
        an architecture step, draws="shared" does the same, and "independent" lets each process draw its own
        architecture: as many samples an update as there are processes.
        """
        if draws not in ("shared", "independent"):
            raise ValueError(f"draws must be 'shared' or 'independent', got {draws!r}.")
        if draws == "independent" and not strategies.draws_independently(self.strategy):
            known = ", ".join(filter(strategies.draws_independently, strategies.names()))
            raise ValueError(
                f"{type(self.strategy).__name__} cannot learn from several draws at once; draws='independent' "
                f"works with {known}. Write draws='shared'."
            )
        if draws == "independent" and self.schedule == "joint":
            raise ValueError(
                "A joint step trains the weights too, for which all processes need one architecture. "
                "Write draws='shared', or schedule='alternate'."
            )
        self.group, self.draws = group, draws
        if group.size > 1:
            weights = self.model.state_dict()
            shapes = {name: list(value.shape) for name, value in weights.items()}
            group.agree("search", repr((self.settings(), shapes)))
            group.copy_from_first_(weights.values())

    @property
    def distribution(self) -> Distribution:
        """p_theta as it stands; one row a decision, in the order of `space.decisions`."""
        return Distribution(self.theta.logits().detach())

    def probabilities(self) -> dict[str, dict[str, float]]:
        """mu(theta) by name: of every operation at every decision."""
        rows = self.distribution.probabilities.tolist()
        return {
            decision.name: dict(zip(decision.operations, row, strict=False))
            for decision, row in zip(self.space.decisions, rows, strict=True)
        }

    def answers(self) -> dict[str, Any]:
        """Argmax, process best and probabilities as they stand; plain values, ready for JSON."""
        best = self.process_best
        return {
            "argmax": dict(self.argmax()),
            "process_best": None if best is None else {"architecture": dict(best.architecture), "loss": best.loss},
            "probabilities": self.probabilities(),
        }

    def argmax(self) -> Architecture:
        """The most likely architecture."""
        return self.space.architecture(self.distribution.mode())

    def derive(self, architecture: Architecture | None = None, *, fresh: int | None = None) -> nn.Module:
        """A plain module of the given architecture, the most likely one by default; see `SearchSpace.derive`."""
        plain = self.space.derive(self.argmax() if architecture is None else architecture, fresh=fresh)
        return plain.to(self.space.device)  # candidates may have been elsewhere

    def weight_step(self, loss_of: LossOf) -> Step:
        """Algorithm 1, lines 2-5: draw an architecture and take one step of its weights."""
        phase = Phase.WARMUP if self.weight_steps < self._warmup else Phase.WEIGHTS
        draw = self._draw(self.theta.logits(), phase).detached()
        parameters = self.space.parameters(draw)
        with self._store.loaded(draw, training=True), self._collecting(parameters):
            with self._running(draw), _restored_on_failure(self.space.norms(draw)):
                loss = self._loss(loss_of, draw, "weight step")
                _accumulate(loss, parameters)
                loss = self._average_weights(loss, parameters, draw, "weight step")
                self._clip_weight_gradients(parameters, draw, "weight step")
            self._step_weights()
        self.weight_steps += 1
        return self._report("warmup" if phase is Phase.WARMUP else "weights", self.weight_steps, loss, draw)

    def architecture_step(self, loss_of: LossOf, *, training_loss_of: LossOf | None = None) -> Step:
        """Algorithm 1, lines 6-10: draw an architecture and take one step of theta.

        training_loss_of: only for second-order strategies, which look one weight step ahead.
        """
        logits = self.theta.logits()
        draw = self._draw(logits, Phase.ARCHITECTURE, self._generator_of_draws())
        with self._store.loaded(draw, training=False):
            with (
                self._running(draw) as run,
                _frozen(self.space.parameters(draw)),
                _still(self.space.norms(draw)),
                torch.set_grad_enabled(draw.weights.requires_grad),
            ):
                loss = self._loss(loss_of, draw, "architecture step")
                # Gates only: the gradients of the weights are never formed.
                slope = _slope(_gradients(loss, [draw.weights])[0], draw)
            step, reached = "architecture step", run.reached
            return self._learn(step, logits, draw, loss, slope, reached, loss_of, training_loss_of)

    def joint_step(self, loss_of: LossOf) -> Step:
        """One forward and one backward pass for both: the weight gradients and the slopes of the gates."""
        logits = self.theta.logits()
        draw = self._draw(logits, Phase.ARCHITECTURE)
        parameters = self.space.parameters(draw)
        leaf = draw.weights.detach().requires_grad_(draw.weights.requires_grad)  # theta's own graph comes later
        with self._store.loaded(draw, training=True), self._collecting(parameters):
            with self._running(replace(draw, weights=leaf)) as run, _restored_on_failure(self.space.norms(draw)):
                loss = self._loss(loss_of, draw, "joint step")
                _accumulate(loss, [leaf, *parameters] if leaf.requires_grad else parameters)
                loss = self._average_weights(loss, parameters, draw, "joint step")
                self._clip_weight_gradients(parameters, draw, "joint step")
            slope = _slope(leaf.grad, draw)
            step = self._learn("joint step", logits, draw, loss, slope, run.reached, loss_of, loss_of)
            self._step_weights()
        self.weight_steps += 1
        return step

    def run(
        self,
        task: Task,
        *,
        epochs: int,
        warmup: int = 0,
        folder: Path | str | None = None,
        resume: bool = False,
        on_step: Callable[[Step], object] | None = None,
    ) -> Architecture:
        """Search for `epochs` passes over the training data, in the first `warmup` of them with theta fixed.

        folder: every step is a line of `metrics.jsonl` there, every epoch a checkpoint (the last two are kept), and
            the result is in `result.json`. Ctrl-C and SIGTERM let the step finish, save, and raise `SearchStopped`.
        resume: go on from the last checkpoint in the folder, bit for bit, or start if there is none; see `Replay`
            for what the data must be like. Where all are damaged, or of another search, ValueError says so, and
            search and folder are as they were.
        In a group of N processes each takes every N-th minibatch, so that a pass has an N-th of the steps; rank 0
        writes the folder, which all must be able to read.
        Returns the most likely architecture.
        """
        if self.weight_steps:
            raise ValueError(
                f"This search has already taken {self.weight_steps} weight steps, and its schedules are over or "
                "under way. Make a new Search, or take further steps with weight_step and architecture_step."
            )
        share = (self.group.rank, self.group.size)
        per_epoch = batches_in(task.training, processes=self.group.size)
        check_count("epochs", epochs)
        self.set_length(epochs * per_epoch, check_count("warmup", warmup, least=0) * per_epoch)
        training = Replay(task.training, seed=seed_of(self.seed, 0), name="training", share=share)
        validation = Replay(task.validation, seed=seed_of(self.seed, 1), name="validation", share=share)
        keeper = None if folder is None else _Keeper(Path(folder), self, (training, validation), resume=resume)

        def loss_on(batch: Any) -> LossOf:
            return lambda model: task.loss(model, batch)

        with nullcontext() if keeper is None else keeper:
            while self.weight_steps < epochs * per_epoch:
                for step in self._turn(loss_on(next(training)), lambda: loss_on(next(validation))):
                    if keeper is not None:
                        keeper.note(step)
                    if on_step is not None:
                        on_step(step)
                if keeper is not None:
                    keeper.end_turn(epoch_is_over=self.weight_steps % per_epoch == 0)
        if keeper is not None and self.group.rank == 0:
            write_atomically(keeper.folder / "result.json", json.dumps(self.answers(), indent=2) + "\n")
        return self.argmax()

    def turn(self, training_loss_of: LossOf, validation_loss_of: Callable[[], LossOf]) -> list[Step]:
        """One turn of Algorithm 1's loop: which steps it takes depends on the warm-up and the schedule.

        validation_loss_of: makes the loss on the next validation minibatch; called only when theta takes a step.
        """
        return list(self._turn(training_loss_of, validation_loss_of))

    def _turn(self, training_loss_of: LossOf, validation_loss_of: Callable[[], LossOf]) -> Iterator[Step]:
        """Each step is told before the next is taken."""
        if self.schedule == "joint" and self.weight_steps >= self._warmup:
            yield self.joint_step(training_loss_of)
            return
        learns = self.weight_steps >= self._warmup
        yield self.weight_step(training_loss_of)
        if learns:
            yield self.architecture_step(validation_loss_of(), training_loss_of=training_loss_of)

    def set_length(self, steps: int | None, warmup: int = 0) -> None:
        """How many weight steps there will be, and in how many of the first ones theta stays fixed."""
        check_count("warmup", warmup, least=0)
        if steps is not None and check_count("steps", steps) <= warmup:
            raise ValueError(f"warmup must leave steps for theta: it is {warmup} of {steps}.")
        self._steps, self._warmup = steps, warmup

    def plan(self, loss_of: LossOf) -> Plan:
        """What the search will need: memory of a step and seconds of a pass, measured; nothing is changed."""
        with self._step_randomness():
            return measure(self.space, loss_of, self.weight_optimizer)

    def settings(self) -> dict[str, Any]:
        """What must be the same where a search goes on."""
        return {
            "strategy": repr(self.strategy),
            "schedule": self.schedule,
            "seed": self.seed,
            "processes": self.group.size,
            "draws": self.draws,
            "steps": self._steps,
            "warmup": self._warmup,
            "decisions": {decision.name: list(decision.operations) for decision in self.space.decisions},
        }

    def state(self, folder: Path | None = None) -> dict[str, Any]:
        """Everything that decides how the search goes on, in two parts; see `save_state`.

        folder: where the state will be kept. A disk store then writes what has changed since the last time into a
        file of its own there, and the state refers to it.
        """
        weights = {
            "model": self.model.state_dict(),
            "optimizer": self._weight_optimizer.state_dict(),
            "steps": self.weight_steps,
        }
        return {
            "weights": weights if folder is None else self._store.pack(weights, folder, self.weight_steps),
            "architecture": self._architecture_state(),
        }

    def _architecture_state(self) -> dict[str, Any]:
        best = self.process_best
        return {
            "theta": [parameter.detach() for parameter in self.theta.parameters],
            "optimizer": self._architecture_optimizer.state_dict(),
            "strategy": self._state,
            "generator": self._generator.get_state(),
            "process_best": None if best is None else [dict(best.architecture), best.loss],
            "steps": self.architecture_steps,
        }

    def restore(self, state: Mapping[str, Any], folder: Path | None = None) -> None:
        """Go on where another search of the same model, strategy and settings was when it gave its `state`.

        folder: the one that `state` was given, if any. The two searches may keep their weights in different stores.
        A state that cannot be of such a search is refused with ValueError, and the search is as it was; where
        candidates lie in files, which are read one after the other, some may have been taken over by then.
        """
        check_form(state, [{"weights": {}, "architecture": {}}], "state")
        if "units" in state["weights"]:
            self._restore_units(state, folder)
        else:
            take_over(state, now=self.state(), put=self._put, moved=self._moved)

    def load_weights(self, weights: Mapping[str, Any], folder: Path | None = None) -> None:
        """Take over the weights, their optimiser and their step number: the first part of a search's `state`.

        Searches that share one warm-up start from it.
        """
        if "units" in weights:
            self._adopt_units(weights, folder)
        else:
            self.restore({"weights": weights, "architecture": copy.deepcopy(self._architecture_state())})

    def _restore_units(self, state: Mapping[str, Any], folder: Path | None) -> None:
        self._adopt_units(state["weights"], folder)  # first: a damaged file of units must leave theta as it was
        take_over(
            state["architecture"],
            now=self._architecture_state(),
            put=self._put_architecture,
            moved=self._moved_architecture,
        )

    def _adopt_units(self, weights: Mapping[str, Any], folder: Path | None) -> None:
        if folder is None:
            raise ValueError("This state refers to files in its folder. Write restore(state, folder).")
        check_form(weights, [{"model": {}, "optimizer": {}, "steps": 0, "units": {}}], "weights")
        load_shared_weights(self.space, weights["model"])
        put_optimizer(self._weight_optimizer, weights["optimizer"])
        self._store.sync()
        self._store.unpack(weights["units"], folder)
        self.weight_steps = check_count("weights.steps", weights["steps"], least=0)

    def _put(self, state: Mapping[str, Any]) -> None:
        weights = state["weights"]
        self.model.load_state_dict(weights["model"])
        put_optimizer(self._weight_optimizer, weights["optimizer"])
        self._store.sync()
        self.weight_steps = check_count("weights.steps", weights["steps"], least=0)
        self._put_architecture(state["architecture"])

    def _put_architecture(self, architecture: Mapping[str, Any]) -> None:
        for parameter, saved in zip(self.theta.parameters, architecture["theta"], strict=True):
            parameter.data.copy_(saved)
        put_optimizer(self._architecture_optimizer, architecture["optimizer"])
        self._state = copy.deepcopy(architecture["strategy"])
        self._generator.set_state(architecture["generator"])
        self.process_best = self._process_best(architecture["process_best"])
        self.architecture_steps = check_count("architecture.steps", architecture["steps"], least=0)

    def _process_best(self, saved: list[Any] | None) -> ProcessBest | None:
        if saved is None:
            return None
        self.space.one_hot(saved[0])  # raises if the space has no such architecture
        return ProcessBest(Architecture(saved[0]), saved[1])

    def _moved(self) -> dict[str, Any]:
        """A state in which all parts have taken a step, wherever it leads: what any state is built like."""
        architecture = self._moved_architecture()
        blank_step(self._weight_optimizer)
        return self.state() | {"architecture": architecture}

    def _moved_architecture(self) -> dict[str, Any]:
        logits = self.theta.logits()
        draw = self.strategy.draw(logits, self._state, Phase.ARCHITECTURE, 0.0, generator(0))
        with torch.no_grad():
            _, strategy = self.strategy.gradient(_blank(draw), draw, logits, self._state)
        blank_step(self._architecture_optimizer)
        other = [dict(self.argmax()), 0.0] if self.process_best is None else None
        return self._architecture_state() | {"strategy": strategy, "process_best": other}

    def _draw(self, logits: Tensor, phase: Phase, randomness: torch.Generator | None = None) -> Draw:
        progress = self._progress(self.architecture_steps, warmup=self._warmup)
        return self.strategy.draw(logits, self._state, phase, progress, randomness or self._generator)

    @contextmanager
    def _running(self, draw: Draw) -> Iterator[Trace]:
        """For one step, forward and backward: the model computes the draw, with the step's own randomness."""
        with self.space.running(draw) as run, self._step_randomness():
            yield run

    def _loss(self, loss_of: LossOf, draw: Draw, step: str) -> Tensor:
        """The minibatch loss of the draw that is running."""
        try:
            loss = loss_of(self.model)
        except (RuntimeError, ValueError, IndexError) as error:
            mismatch = self.space.mismatch(partial(loss_of, self.model))
            if mismatch is not None:
                raise ValueError(mismatch) from error
            error.add_note(f"This happened in {self._where(step, draw)}.")
            raise
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            raise ValueError(
                f"The loss must be a tensor with one number, got {getattr(loss, 'shape', type(loss).__name__)}. "
                "Return for example F.cross_entropy(model(x), y), or take .mean()."
            )
        return loss

    def _finite(self, loss: Tensor, draw: Draw, step: str) -> Tensor:
        """The loss, if it is a number; asked only after all processes know it, so that all stop or none."""
        if not math.isfinite(loss.item()):
            raise NonFiniteLoss(f"The loss is {loss.item()} in {self._where(step, draw)}. {_UNTOUCHED}")
        return loss

    def _average_weights(self, loss: Tensor, parameters: list[nn.Parameter], draw: Draw, step: str) -> Tensor:
        """The mean loss of all processes; the gradients that exist become means too."""
        return self._finite(average_weights(self.group, loss, parameters, self.space.norms(draw)), draw, step)

    def _probe(self, loss_of: LossOf, draws: Draw) -> Tensor:
        """The losses of several draws on the same minibatch with the same randomness: [draws]."""
        losses = []
        for draw in draws:
            held = self._store.loaded(draw, training=False)
            with held, torch.no_grad(), self._running(draw), _still(self.space.norms(draw)):
                losses.append(self._loss(loss_of, draw, "architecture step"))
        together = torch.stack(losses).to(self.theta.parameters[0].device)
        if not self._has_own_draws:
            self.group.average_([together], "architecture step: other draws")
            for draw, loss in zip(draws, together, strict=True):
                self._finite(loss, draw, "architecture step")
        return together

    def _learn(
        self,
        step: str,
        logits: Tensor,
        draw: Draw,
        loss: Tensor,
        slope: Tensor | None,
        reached: Tensor,
        loss_of: LossOf,
        training_loss_of: LossOf | None,
    ) -> Step:
        """Turn what came back into a step of theta, and remember the best architecture seen."""
        loss = loss.detach().to(draw.weights.device)
        if not self._has_own_draws:
            loss, slope, reached = average_feedback(self.group, loss, slope, reached)
            self._finite(loss, draw, step)
        feedback = Feedback(
            loss=loss,
            slope=slope,
            reached=reached,
            probe=partial(self._probe, loss_of),
            unrolled=partial(self._unrolled_slope, draw, loss_of, training_loss_of),
        )
        rate = self._progress(self.architecture_steps, warmup=self._warmup)
        self._anneal(self._architecture_optimizer, self._initial_rates[1], rate)
        with torch.no_grad():
            gradient, state = self.strategy.gradient(feedback, draw, logits, self._state)
        found = self._together(step, feedback, draw, gradient, state)
        optimizer, clip = self._architecture_optimizer, self._architecture_clip
        try:
            norm = move_theta(
                self.theta, optimizer, self.strategy, found.state, found.gradient, found.reached, draw, logits, clip
            )
        except _NonFiniteTheta as error:
            raise NonFiniteLoss(f"{error} in {self._where(step, draw)}. {_UNTOUCHED}") from None
        self._state = found.state
        self._remember(found)
        self.architecture_steps += 1
        return self._report("architecture", self.architecture_steps, found.losses.mean(), draw, feedback, norm)

    @property
    def _has_own_draws(self) -> bool:
        """Whether every process learns theta from an architecture of its own."""
        return self.draws == "independent" and self.group.size > 1

    def _generator_of_draws(self) -> torch.Generator:
        """For theta's draws: the search's own, or one for this process and step, of which nothing need be saved."""
        if not self._has_own_draws:
            return self._generator
        return generator(self.seed, self.weight_steps, self.architecture_steps, self.group.rank, _OWN_DRAW)

    def _together(
        self, step: str, feedback: Feedback, draw: Draw, gradient: Tensor | None, state: State
    ) -> Estimates:
        """What all processes have learnt, where each has a draw of its own; else what this one has."""
        if not self._has_own_draws:
            chosen, single = draw.weights.detach().unsqueeze(0), torch.tensor([draw.one_hot])
            return Estimates(gradient, feedback.reached, state, feedback.loss.unsqueeze(0), chosen, single)
        found = average_estimates(self.group, gradient, feedback.reached, self._state, state, feedback.loss, draw)
        self._finite(found.losses.mean(), draw, step)
        return found

    def _remember(self, found: Estimates) -> None:
        """Keep the best architecture that was run."""
        for loss, chosen, single in zip(found.losses.tolist(), found.chosen, found.single.tolist(), strict=True):
            if single and (self.process_best is None or loss < self.process_best.loss):
                self.process_best = ProcessBest(self.space.architecture(chosen), loss)

    def _unrolled_slope(self, draw: Draw, loss_of: LossOf, training_loss_of: LossOf | None) -> Tensor:
        """d/da of the validation loss after a virtual weight step (DARTS, eq. 7), by a central difference.

        w' = w - xi grad_w train(w, a),    v = grad_w' valid(w', a),    e = 0.01 / |v|
        d valid(w', a)/da - xi (d train(w + e v, a)/da - d train(w - e v, a)/da) / (2 e)
        """
        if training_loss_of is None:
            raise ValueError(
                "A second-order strategy looks one weight step ahead and needs the training loss too. "
                "Write search.architecture_step(loss_of, training_loss_of=...)."
            )
        weights = self.space.parameters(draw)
        origin = [weight.detach().clone() for weight in weights]
        xi = self._weight_optimizer.param_groups[0]["lr"]

        def slopes(objective: LossOf, shift: list[Tensor | None], scale: float) -> list[Tensor | None]:
            _place(weights, origin, shift, scale)
            with torch.enable_grad(), self._running(draw), _still(self.space.norms(draw)):
                found = _gradients(self._loss(objective, draw, "architecture step"), [draw.weights, *weights])
            if not self._has_own_draws:
                self.group.average_([slope for slope in found if slope is not None], "architecture step: unrolled")
            return found

        try:
            virtual = slopes(training_loss_of, [None] * len(weights), 0.0)[1:]
            ahead, *v = slopes(loss_of, virtual, -xi)
            norm = torch.stack([part.norm() for part in v if part is not None] or [torch.zeros(())]).norm()
            e = 0.01 / max(norm.item(), 1e-12)
            plus, minus = (slopes(training_loss_of, v, sign * e)[0] for sign in (1, -1))
        finally:
            _place(weights, origin, [None] * len(weights), 0.0)
        assert ahead is not None
        assert plus is not None
        assert minus is not None
        slope: Tensor = ahead - xi * (plus - minus) / (2 * e)
        return slope

    @contextmanager
    def _collecting(self, parameters: list[nn.Parameter]) -> Iterator[None]:
        """Start and end without gradients: operations that were not drawn have none, so nothing moves them."""
        self._weight_optimizer.zero_grad(set_to_none=True)
        try:
            yield
        finally:
            for parameter in parameters:
                parameter.grad = None

    def _clip_weight_gradients(self, parameters: list[nn.Parameter], draw: Draw, step: str) -> None:
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.weight_clip or math.inf)
        if not math.isfinite(norm.item()):
            where = self._where(step, draw)
            raise NonFiniteLoss(f"The gradient of the weights has norm {norm.item()} in {where}. {_UNTOUCHED}")

    def _step_weights(self) -> None:
        progress = self._progress(self.weight_steps, warmup=0)
        self._anneal(self._weight_optimizer, self._initial_rates[0], progress)
        self._weight_optimizer.step()

    def _anneal(self, optimizer: Optimizer, initial: list[float], progress: float | None) -> None:
        factor = 1.0 if progress is None else self.annealing(progress)
        for group, rate in zip(optimizer.param_groups, initial, strict=True):
            group["lr"] = rate * factor

    def _progress(self, taken: int, *, warmup: int) -> float | None:
        return None if self._steps is None else min(1.0, taken / (self._steps - warmup))

    @contextmanager
    def _step_randomness(self) -> Iterator[None]:
        """Seed torch's global generators from the step's number for a while, then put them back."""
        device = self.space.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            own = [self.group.rank] if self.group.rank else []  # rank 0 draws what a single process would
            seed = seed_of(self.seed, self.weight_steps, self.architecture_steps, *own)
            torch.default_generator.manual_seed(seed)
            if device.type == "cuda":
                torch.cuda.manual_seed(seed)
            yield

    def _where(self, step: str, draw: Draw) -> str:
        taken = self.weight_steps if step == "weight step" else self.architecture_steps
        what = self.space.architecture(draw.weights).to_json() if draw.one_hot else "a mixture of all operations"
        return f"{step} {taken + 1}, running {what}"

    def _report(
        self,
        phase: str,
        number: int,
        loss: Tensor,
        draw: Draw,
        feedback: Feedback | None = None,
        norm: float | None = None,
    ) -> Step:
        advantages = {}
        if feedback is not None and feedback.slope is not None:
            values = -(feedback.slope * draw.weights.detach()).sum(-1)
            rows = zip(self.space.decisions, values.tolist(), feedback.reached.tolist(), strict=True)
            advantages = {decision.name: value for decision, value, hit in rows if hit}
        return Step(
            phase=phase,
            number=number,
            loss=loss.item(),
            entropy=self.distribution.entropy().mean().item(),
            architecture=dict(self.space.architecture(draw.weights)) if draw.one_hot else None,
            advantages=advantages,
            gradient_norm=norm,
        )


def update_theta(
    theta: Theta,
    optimizer: Optimizer,
    strategy: Strategy,
    state: State,
    feedback: Feedback,
    draw: Draw,
    logits: Tensor,
    clip: float | None = None,
) -> tuple[State, float | None]:
    """Algorithm 1, lines 8-10: from what came back to the next theta.

    logits: the leaf that the draw was made from. Returns the strategy's next state and the norm of the gradient
    before clipping, None where the strategy is still gathering. Raises before anything is changed if the
    gradient is not finite.
    """
    with torch.no_grad():
        gradient, state = strategy.gradient(feedback, draw, logits, state)
    return state, move_theta(theta, optimizer, strategy, state, gradient, feedback.reached, draw, logits, clip)


def move_theta(
    theta: Theta,
    optimizer: Optimizer,
    strategy: Strategy,
    state: State,
    gradient: Tensor | None,
    reached: Tensor,
    draw: Draw,
    logits: Tensor,
    clip: float | None = None,
) -> float | None:
    """Algorithm 1, lines 9-10: one step along the gradient [..., decisions, candidates], where it was reached.

    state: the strategy's next one. Returns the norm of the gradient before clipping.
    """
    norm = None
    if gradient is not None:
        ascent = gradient * reached.unsqueeze(-1)
        norms = torch.linalg.vector_norm(ascent, dim=(-2, -1), keepdim=True)
        norm = norms.norm().item()
        if not math.isfinite(norm):
            raise _NonFiniteTheta(f"The gradient of theta has norm {norm}")
        if clip is not None:  # every search by its own norm
            ascent = ascent * (clip / (norms + 1e-6)).clamp(max=1.0)
        theta.set_gradient(-ascent, reached)
        optimizer.step()
    moved = theta.logits().detach()
    projected = strategy.project(logits.detach(), moved, draw, state)
    if projected is not moved:
        theta.assign(projected)
    return norm


def batches_in(batches: Iterable[Any], *, processes: int = 1) -> int:
    """How many minibatches one pass over the data has for each of the processes that share them."""
    if not isinstance(batches, Sized) or len(batches) == 0:
        raise ValueError(
            "Search.run must know the number of training minibatches, got "
            f"{type(batches).__name__} without a length or with none. Pass a list or a DataLoader, or drive "
            "weight_step and architecture_step yourself."
        )
    if len(batches) < processes:
        raise ValueError(
            f"A pass over the training data has {len(batches)} minibatches, which is not one for each of "
            f"{processes} processes. Make the minibatches smaller."
        )
    return len(batches) // processes


_OWN_DRAW = 1  # sets a process's own draws apart from its other randomness
_UNTOUCHED = "Theta and the weights are as they were before this step; a lower learning rate often helps."


def _gradients(loss: Tensor, inputs: Sequence[Tensor]) -> list[Tensor | None]:
    """d loss / d inputs; None for what the drawn path does not touch. A path of zeros may touch nothing."""
    if not loss.requires_grad:
        return [None] * len(inputs)
    return list(torch.autograd.grad(loss, inputs, allow_unused=True))


def _accumulate(loss: Tensor, inputs: Sequence[Tensor]) -> None:
    """Put d loss / d inputs into their .grad; None for what the drawn path does not touch."""
    if loss.requires_grad and inputs:
        torch.autograd.backward(loss, inputs=inputs)


def _blank(draw: Draw) -> Feedback:
    """What comes back where the loss is 0 whatever is drawn."""
    zeros = torch.zeros_like(draw.weights, requires_grad=False)
    return Feedback(
        loss=zeros.sum((-2, -1)),
        slope=zeros if draw.weights.requires_grad else None,
        reached=torch.ones(zeros.shape[-2], dtype=torch.bool),
        probe=lambda draws: torch.zeros(draws.weights.shape[:-2]),
        unrolled=lambda: zeros,
    )


def _slope(gradient: Tensor | None, draw: Draw) -> Tensor | None:
    """d loss / d weights; 0 where the pass came to no gate, None where there is none."""
    if gradient is None and draw.weights.requires_grad:
        return torch.zeros_like(draw.weights, requires_grad=False)
    return gradient


@contextmanager
def _frozen(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Tell the operations that nobody will ask for weight gradients, so that they may keep less."""
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


@contextmanager
def _still(norms: list[_NormBase]) -> Iterator[None]:
    """Keep running statistics as the weight steps left them."""
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


@contextmanager
def _restored_on_failure(norms: list[_NormBase]) -> Iterator[None]:
    """Give running statistics back their values if the step fails: one bad minibatch would spoil them for good."""
    before = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers(recurse=False)]
    try:
        yield
    except BaseException:
        for buffer, value in before:
            buffer.copy_(value)
        raise


def _place(weights: list[nn.Parameter], origin: list[Tensor], shift: Sequence[Tensor | None], scale: float) -> None:
    """weights = origin + scale * shift, in place."""
    with torch.no_grad():
        for weight, start, direction in zip(weights, origin, shift, strict=True):
            weight.copy_(start if direction is None else start + scale * direction)


class _Keeper:
    """What a search leaves in its folder while it runs, and how it goes on from there."""

    def __init__(self, folder: Path, search: Search, data: tuple[Replay, Replay], *, resume: bool) -> None:
        self.folder = folder
        self._search, self._data = search, data
        self._checkpoints, self._signals = Checkpoints(folder), StopSignals()
        path = folder / "metrics.jsonl"
        if path.exists() and not resume:
            raise FileExistsError(
                f"{folder} already holds the records of a search. Give another folder, or resume=True to go on."
            )
        self._lines = 0
        if resume:
            self._checkpoints.resume(self._go_on)
        search.group.wait()  # nobody writes before all have read
        self._journal = Journal(path, keep=self._lines) if search.group.rank == 0 else None

    def __enter__(self) -> Self:
        self._signals.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._signals.__exit__()
        if self._journal is not None:
            self._journal.close()
        if isinstance(error, RankGone):
            raise RankGone(
                f"{error} The last checkpoint is in {self.folder}. Start all processes again and go on with "
                f"run(..., folder={str(self.folder)!r}, resume=True)."
            ) from error

    def note(self, step: Step) -> None:
        if self._journal is not None:
            self._journal.append(asdict(step))
        self._lines += 1

    def end_turn(self, *, epoch_is_over: bool) -> None:
        stop = self._search.group.any(
            self._signals.requested
        )  # a signal may reach the processes in different turns
        if (epoch_is_over or stop) and self._search.group.rank == 0:
            self._save()
        if stop:
            raise SearchStopped(
                f"The search was stopped after {self._search.weight_steps} weight steps and saved. Go on with "
                f"run(..., folder={str(self.folder)!r}, resume=True)."
            )

    def _save(self) -> None:
        if self._journal is not None:
            self._journal.sync()  # a checkpoint must not know of lines that a power cut takes away
        state = {
            "settings": self._search.settings(),
            "search": self._search.state(self.folder),
            "data": [list(data.position) for data in self._data],
            "lines": self._lines,
        }
        self._checkpoints.save(state, self._search.weight_steps)

    def _go_on(self, saved: dict[str, Any]) -> None:
        """The search comes last: what it takes over it keeps."""
        check_form(saved, [{"settings": {}, "search": {}, "data": [[0, 0], [0, 0]], "lines": 0}], "it")
        now, before = self._search.settings(), saved["settings"]
        changed = [
            f"{key} is {now[key]} now and was {before.get(key)}"
            for key in now
            if repr(now[key]) != repr(before.get(key))
        ]
        if changed:
            raise ValueError(f"other settings: {'; '.join(changed)}")
        for data, (passes, number) in zip(self._data, saved["data"], strict=True):
            data.enter((check_count("a pass", passes, least=0), check_count("a position", number, least=0)))
        lines = check_count("lines", saved["lines"], least=0)
        self._search.restore(saved["search"], self.folder)
        self._lines = lines
