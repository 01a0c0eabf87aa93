"""Algorithm 1: train one parent network while learning which of its operations to keep."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

import torch
from torch import nn
from torch.optim import Optimizer

from advnas import strategies
from advnas.architecture import Architecture
from advnas.arguments import check_count
from advnas.costs import Cost
from advnas.distribution import Distribution
from advnas.parallel.group import Group
from advnas.randomness import generator
from advnas.records.restoring import check_form
from advnas.search.budget import Amounts, Budget
from advnas.search.feedback import gather_feedback
from advnas.search.loop import SearchRun
from advnas.search.optimizers import factory_of
from advnas.search.parent import Parent, gate_slope, loss_and_slope
from advnas.search.plan import Plan, measure
from advnas.search.policy import Policy, Update, report
from advnas.search.precision import repeated_on_overflow, set_precision
from advnas.search.progress import describe, describe_html
from advnas.search.running import RunOptions, carry_out
from advnas.search.schedule import Progress, check_makes_loss, cosine, fitted_adam, turn
from advnas.search.shared_weights import SharedWeights
from advnas.search.step import Draws, LossOf, OptimizerOf, ProcessBest, Step
from advnas.search.training_step import training_step
from advnas.search.verdict import Verdict, verdict_of
from advnas.stores import Store, make_store
from advnas.strategies import Phase, Strategy
from advnas.task import Task

# The paper's settings for convolutional cells (appendix).
PAPER_WEIGHTS: OptimizerOf = partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
PAPER_THETA: OptimizerOf = partial(torch.optim.Adam, lr=3e-4, betas=(0.5, 0.999), weight_decay=3e-3, fused=True)

_OWN_DRAW = 1  # sets a process's own draws apart from its other randomness


class Search:
    """One search of one parent network.

    Args:
        model: any module with at least one Choice.
        strategy: a name (see `advnas.strategies.names()`) or a strategy object.
        steps, warmup: how many weight steps there will be, and in how many of the first ones theta stays fixed.
            Needed by learning rate schedules and temperatures; `run` fills them in.
        schedule: "alternate" takes a weight step on training data and an architecture step on validation data in
            turn (Algorithm 1); "joint" gets both gradients from one pass over one training minibatch.
        weight_optimizer: called with the parameters, or a ready optimiser of them; the paper's SGD by default. The
            attribute is the optimiser itself. A scheduler of torch that is attached to it takes over its rates.
        architecture_optimizer: called with theta's parameters; by default Adam with a rate that fits the length of
            the search (`fitted_adam`). The paper's is `PAPER_THETA`.
        annealing: maps progress in [0, 1] to a factor on both learning rates.
        weight_clip, architecture_clip: largest gradient norm, or None.
        weights: where the candidates that are not drawn live: "resident", "host", "disk" or a store of
            `advnas.stores`. It makes no difference to the results.
        memory_budget: with "disk", how much of the candidates may be in memory at a time, such as "2GB".
        precision: "float32", "bf16" or "fp16", of the operations that can do with less; see `search.precision`.
        seed: of everything random here. Each step also seeds torch's global generator for the time of its own
            forward pass (dropout and the like) and restores it, so a step's randomness depends on nothing else.
        group, draws: for several processes; see `join`.
        limit: the most that the answer may cost, by the name of a cost: {"parameters": 100_000} or "100k". A
            multiplier per limit moves theta's probability inside during the search, and `argmax` holds it exactly.
        penalty: a fixed weight in the loss per unit of a cost instead, by name; it promises nothing.
        costs: what else than "parameters" the two may name, made by `advnas.costs`.
    """

    def __init__(
        self,
        model: nn.Module,
        strategy: str | Strategy = "contrast",
        *,
        steps: int | None = None,
        warmup: int = 0,
        schedule: Literal["alternate", "joint"] = "alternate",
        weight_optimizer: OptimizerOf | Optimizer = PAPER_WEIGHTS,
        architecture_optimizer: OptimizerOf = fitted_adam,
        annealing: Callable[[float], float] = cosine,
        weight_clip: float | None = 1.0,
        architecture_clip: float | None = 1.0,
        weights: str | Store = "resident",
        memory_budget: int | str | None = None,
        precision: str = "float32",
        seed: int = 0,
        group: Group | None = None,
        draws: Draws = "shared",
        limit: Amounts | None = None,
        penalty: Amounts | None = None,
        costs: Iterable[Cost] = (),
    ) -> None:
        if schedule not in ("alternate", "joint"):
            raise ValueError(f"schedule must be 'alternate' or 'joint', got {schedule!r}.")
        self.strategy = strategies.made(strategy)
        self.schedule, self.seed = schedule, check_count("seed", seed, least=0)
        self.weight_clip, self.annealing = weight_clip, annealing
        self.make_weight_optimizer = factory_of(weight_optimizer)
        self.progress = Progress()
        self.progress.set_length(steps, warmup)
        self.parent = Parent(model, self.seed, self.progress)
        self.model, self.space = model, self.parent.space
        store = make_store(weights, memory_budget)
        self.weights = SharedWeights(self.space, weight_optimizer, annealing, weight_clip, store)
        self.weight_optimizer = self.weights.optimizer
        set_precision(self, precision)
        self.parent.lend = store.lent
        self.policy = Policy(
            self.strategy,
            self.space.sizes,
            self.space.zeros,
            optimizer=architecture_optimizer,
            generator=generator(self.seed),
            annealing=annealing,
            clip=architecture_clip,
        )
        self.policy.fit_rate(self.progress.theta_steps)
        self.policy.budget = Budget.of(self.space, limit, penalty, costs)
        self.theta = self.policy.theta
        self.latest_run: SearchRun | None = None
        self.warned: set[type[Warning]] = set()
        self.join(Group() if group is None else group, draws)

    def join(self, group: Group, draws: Draws = "shared") -> None:
        """Search in step with other processes: the same model, strategy and settings, other minibatches.

        All go on from the weights of rank 0. A weight step trains one architecture on the minibatches of all. For
        an architecture step, draws="shared" does the same, and "independent" lets each process draw its own
        architecture: as many samples per update as there are processes.
        """
        if draws not in ("shared", "independent"):
            raise ValueError(f"draws must be 'shared' or 'independent', got {draws!r}.")
        if draws == "independent" and not self.strategy.independent_draws:
            known = ", ".join(
                name for name in strategies.names() if strategies.strategy_type(name).independent_draws
            )
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
        self.weights.group, self.parent.rank = group, group.rank
        self.policy.join(group, draws)
        if group.size > 1:
            weights = self.model.state_dict()
            shapes = {name: list(value.shape) for name, value in weights.items()}
            group.agree("search", repr((self.settings(), shapes)))
            group.copy_from_first_(weights.values())
            self.policy.share_costs()

    @property
    def weight_steps(self) -> int:
        """How many weight steps were taken."""
        return self.progress.weight_steps

    @property
    def architecture_steps(self) -> int:
        """How many architecture steps were taken."""
        return self.progress.architecture_steps

    @property
    def distribution(self) -> Distribution:
        """p_theta as it stands; one row per decision, in the order of `space.decisions`."""
        return self.policy.distribution

    def probabilities(self) -> dict[str, dict[str, float]]:
        """Return mu(theta) by name: of every operation at every decision."""
        rows = self.distribution.probabilities.tolist()
        return {
            decision.name: dict(zip(decision.operations, row, strict=False))
            for decision, row in zip(self.space.decisions, rows, strict=True)
        }

    @property
    def process_best(self) -> ProcessBest | None:
        """The drawn architecture with the lowest minibatch loss so far."""
        if not self.policy.has_best:
            return None
        return ProcessBest(self.space.architecture(self.policy.best), self.policy.best_loss.item())

    def answers(self) -> dict[str, Any]:
        """Return argmax, process best and probabilities as they stand; plain values, ready for JSON."""
        best = self.process_best
        return {
            "argmax": dict(self.argmax()),
            "process_best": None if best is None else {"architecture": dict(best.architecture), "loss": best.loss},
            "probabilities": self.probabilities(),
        }

    def argmax(self, limit: Amounts | None = None, *, costs: Iterable[Cost] = ()) -> Architecture:
        """Return the most likely architecture within the limits, exactly.

        Args:
            limit: instead of the limits of the search, {} for none.
            costs: what else than "parameters" and the costs of the search it may name.

        Raises:
            Infeasible: no architecture is within the limits; the message tells the least that is possible.
        """
        if limit is None:
            return self.policy.budget.best(self.distribution)
        known = [one.cost for one in self.policy.budget.limits]
        return Budget.of(self.space, limit, None, [*known, *costs]).best(self.distribution)

    def derive(
        self, architecture: Architecture | None = None, *, fresh: int | Callable[[], nn.Module] | None = None
    ) -> nn.Module:
        """Make a plain module of the given architecture, by default the most likely; see `SearchSpace.derive`."""
        plain = self.space.derive(self.argmax() if architecture is None else architecture, fresh=fresh)
        return plain.to(self.space.device)  # candidates may have been elsewhere

    @repeated_on_overflow
    def weight_step(self, loss_of: LossOf) -> Step:
        """Algorithm 1, lines 2-5: draw an architecture and take one step of its weights."""
        phase = Phase.WARMUP if self.progress.in_warmup else Phase.WEIGHTS
        draw = self.policy.draw(phase, self.progress.of_theta).detached()  # 3    a ~ p_theta
        with training_step(self, "weight step", draw) as path:
            with self.parent.running(draw) as trace:  #                           every Choice follows the draw
                passes = self.parent.passes(loss_of, trace if path.parameters else None)
                loss = path.backward(passes)  # 4    delta_w: mean over ranks, finite, clipped
            with path.undone_on_failure():
                path.step(self.progress.of_weights)  # 5    w <- SGD
                self.progress.weight_steps += 1
        name = "warmup" if phase is Phase.WARMUP else "weights"
        return report(self, name, draw, Update(loss, None))

    @repeated_on_overflow
    def architecture_step(self, loss_of: LossOf, *, training_loss_of: LossOf | None = None) -> Step:
        """Algorithm 1, lines 6-10: draw an architecture and take one step of theta.

        Args:
            loss_of: on a validation minibatch.
            training_loss_of: only for second-order strategies, which look one weight step ahead.
        """
        own = self.policy.has_own_draws
        place = (self.weight_steps, self.architecture_steps, self.group.rank)
        random = generator(self.seed, *place, _OWN_DRAW) if own else None
        draw = self.policy.draw(Phase.ARCHITECTURE, self.progress.of_theta, random)  # 7    each behind a gate of 1
        with self.parent.step("architecture step", draw), self.weights.loaded(draw):
            gated = draw.weights.requires_grad
            with self.parent.running(draw) as trace, self.weights.frozen(draw), torch.set_grad_enabled(gated):
                loss, slope = loss_and_slope(self.parent, loss_of, draw, trace)  # 8    -A_i; gates only
            feedback = gather_feedback(self, draw, loss, slope, trace, (loss_of, training_loss_of))
            with self.policy.undone_on_failure():
                update = self.policy.learn(feedback, draw, self.progress.of_theta)  # 9-10    theta <- Adam
                self.progress.architecture_steps += 1
        return report(self, "architecture", draw, update, feedback)

    @repeated_on_overflow
    def joint_step(self, loss_of: LossOf) -> Step:
        """Take both steps from one forward and one backward pass: weight gradients and slopes of the gates."""
        draw = self.policy.draw(Phase.ARCHITECTURE, self.progress.of_theta)
        gated = draw.as_leaf()  # theta's own graph comes later
        gates = gated.weights
        with training_step(self, "joint step", draw) as path:
            wanted = [gates] if gates.requires_grad else []
            with self.parent.running(gated) as trace:
                passes = self.parent.passes(loss_of, trace if wanted or path.parameters else None)
                loss = path.backward(passes, wanted)
            self.parent.check_slope(gates.grad, gated, trace)
            feedback = gather_feedback(self, draw, loss, gate_slope(gates.grad, draw), trace, (loss_of, loss_of))
            with self.policy.undone_on_failure(), path.undone_on_failure():  # both move, or none
                update = self.policy.learn(feedback, draw, self.progress.of_theta)
                path.step(self.progress.of_weights)
                self.progress.count_joint_step()
        return report(self, "architecture", draw, update, feedback)

    def turn(self, training_loss_of: LossOf, validation_loss_of: Callable[[], LossOf]) -> list[Step]:
        """Take one turn of Algorithm 1's loop: which steps depends on the warm-up and the schedule.

        Args:
            training_loss_of: the loss on the next training minibatch.
            validation_loss_of: makes the loss on the next validation minibatch; called only when theta learns.
        """
        return list(turn(self, training_loss_of, check_makes_loss(validation_loss_of)))

    def run(
        self,
        task: Task,
        *,
        epochs: int,
        warmup: int = 0,
        folder: Path | str | None = None,
        resume: bool = False,
        **options: Unpack[RunOptions],
    ) -> Architecture:
        """Search for `epochs` passes over the training data, in the first `warmup` of them with theta fixed.

        In a group of N processes each takes every N-th minibatch, so that a pass has an N-th of the steps; rank 0
        writes the folder, which all must be able to read. An undecided answer is told (`UndecidedWarning`).

        Args:
            task: data and loss.
            epochs, warmup: passes over the training data, and how many of them theta is fixed.
            folder: a run folder (see `search.recorder`): every step is a line of `metrics.jsonl` there, every
                epoch a record and a checkpoint (the last two are kept), and the result is in `result.json`. Ctrl-C
                and SIGTERM let the step finish, save, and raise `SearchStopped`.
            resume: go on from the last checkpoint in the folder, bit for bit, or start if there is none; see
                `Replay` for what the data must be like. Where all are damaged, or of another search, ValueError
                says so, and search and folder are as they were. A search that is over goes on if `epochs` is
                larger than before, from its next step on as a part of the longer search.
            on_step: called with every step, before the next is taken.
            callbacks: one or several `Callback`s. `StopSearch` raised in one ends the search in order.
            progress: whether progress is shown on standard error or in the notebook; it is by default.
            device: where model and minibatches are taken, such as "cuda". The model stays there; see `on_device`.
            accumulate: how many minibatches make up a step, with the memory of one; 1 by default.
            time_limit, patience: stop in order after so many seconds of this call, or when the answer has been
                decided for so many epochs in a row; see `Patience`.

        Returns:
            The most likely architecture.
        """
        carry_out(self, task, epochs, warmup, None if folder is None else Path(folder), resume, options)
        return self.argmax()

    def verdict(self) -> Verdict:
        """Say in words whether the answer is decided, as far as the search itself can tell."""
        return verdict_of(self)

    def report(self, folder: Path | str) -> Path:
        """Write the report of the latest `run` into a folder, its own or another; return the page."""
        import advnas  # the front door of the package: reports know searches, and not the other way round

        page: Path = advnas.report(self, folder)
        return page

    def plan(self, loss_of: LossOf) -> Plan:
        """Tell what the search will need: memory of a step and seconds of a pass, measured; nothing is changed."""
        with self.parent.randomness():
            return measure(self.space, lambda _: self.parent.loss(loss_of), self.make_weight_optimizer)

    def settings(self) -> dict[str, Any]:
        """Return what must be the same where a search goes on."""
        precision = self.parent.precision.name
        unusual = {"precision": precision != "float32" and precision, "limits": self.policy.budget.settings()}
        return {
            "strategy": repr(self.strategy),
            "schedule": self.schedule,
            "seed": self.seed,
            "processes": self.group.size,
            "draws": self.draws,
            "steps": self.progress.steps,
            "warmup": self.progress.warmup,
            "decisions": {decision.name: list(decision.operations) for decision in self.space.decisions},
        } | {name: value for name, value in unusual.items() if value}

    def state(self, folder: Path | None = None) -> dict[str, Any]:
        """Return everything that decides how the search goes on, in two parts; see `records.save_state`.

        Args:
            folder: where the state will be kept. A disk store then writes what has changed since the last time
                into a file of its own there, and the state refers to it.
        """
        return {
            "weights": self.weights.save(folder, self.weight_steps),
            "architecture": self.policy.save() | {"steps": self.architecture_steps},
        } | self.parent.precision.state()

    def restore(self, state: Mapping[str, Any], folder: Path | None = None) -> None:
        """Go on where another search of the same model, strategy and settings was when it gave its `state`.

        The two searches may keep their weights in different stores.

        Args:
            state: what `state` returned.
            folder: the one that `state` was given, if any.

        Raises:
            ValueError: the state cannot be of such a search; the search is as it was.
        """
        check_form(state, [{"weights": {}, "architecture": {"steps": 0}} | self.parent.precision.state()], "state")
        steps = check_count("architecture.steps", state["architecture"]["steps"], least=0)
        with self.policy.loading(state["architecture"]):
            self.load_weights(state["weights"], folder)
        self.progress.architecture_steps = steps
        self.parent.precision.restore(state)

    def load_weights(self, weights: Mapping[str, Any], folder: Path | None = None) -> None:
        """Take over the weights, their optimiser and their step number: the first part of a search's `state`.

        Searches that share one warm-up start from it.

        Raises:
            ValueError: they cannot be of such a search; the search is as it was.
        """
        self.weights.load(weights, folder)
        self.progress.weight_steps = weights["steps"]

    __repr__ = describe
    _repr_html_ = describe_html
