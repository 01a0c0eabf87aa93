"""Policy: the distribution over architectures, and what learns it."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from advnas.architecture import Draw
from advnas.distribution import Distribution, Theta
from advnas.parallel.group import Group
from advnas.parallel.reductions import Estimates, average_estimates
from advnas.records.restoring import (
    check_form,
    check_optimizer,
    load_optimizer,
    optimizer_settings,
    rolled_back_on_failure,
)
from advnas.search.budget import Budget
from advnas.search.optimizers import theta_optimizer_of
from advnas.search.schedule import TRAVEL, USUAL_RATE, Annealing, Rates, constant, fitted_adam, fitted_rate
from advnas.search.step import Draws, NonFinite, OptimizerOf, Step, check_finite
from advnas.search.undo import undone_on_failure
from advnas.strategies import Feedback, Phase, State, Strategy

if TYPE_CHECKING:
    from advnas.search.search import Search


@dataclass(frozen=True)
class Update:
    """What one step of theta did. loss: mean over the processes [...]. norm: of the gradient before clipping; None
    where the strategy is still gathering.
    """

    loss: Tensor
    norm: float | None


class Policy:
    """p_theta, the strategy that learns it with its state and its optimiser, and the best architecture drawn.

    Leading dimensions of theta hold independent searches side by side (the toy study); a network has none.

    Args:
        strategy: how a draw is made, and theta's gradient.
        sizes: candidates of every decision.
        zeros: bool [decisions, candidates], the zero operations.
        optimizer: called with theta's parameters.
        generator: of all draws.
        annealing: maps the share of the architecture steps already taken to a factor on the learning rate.
        clip: largest norm of theta's gradient, of each search by itself; None for any.
        batch: leading dimensions.
    """

    def __init__(
        self,
        strategy: Strategy,
        sizes: Sequence[int],
        zeros: Tensor,
        *,
        optimizer: OptimizerOf,
        generator: torch.Generator,
        annealing: Annealing = constant,
        clip: float | None = None,
        batch: tuple[int, ...] = (),
    ) -> None:
        self.strategy, self.clip = strategy, clip
        self.theta = Theta(sizes, batch=batch)
        self.optimizer = theta_optimizer_of(optimizer, self.theta.parameters)
        self.settings = optimizer_settings(self.optimizer)
        self.rates = Rates(self.optimizer, annealing)
        self._fitted = optimizer is fitted_adam
        if self._fitted:
            self.settings = self.settings.replace(f"lr={USUAL_RATE}", f"lr={TRAVEL:g} / steps of theta")
        self.generator = generator
        self._leaf = self.theta.logits()
        self.state: State = strategy.init(self._leaf.detach(), zeros, generator)
        self.best = torch.zeros_like(self._leaf, requires_grad=False)
        self.best_loss = torch.full(batch, torch.inf, dtype=torch.float64)
        self.group = Group()
        self.has_own_draws = False
        self._budget, self._has_gradient = Budget({"": [""]}), True

    @property
    def budget(self) -> Budget:
        """What the search may cost; nothing costs anything by default."""
        return self._budget

    @budget.setter
    def budget(self, budget: Budget) -> None:
        self._budget = budget
        self._has_gradient = not budget or self._try_step()[0] is not None

    def fit_rate(self, steps: int | None) -> None:
        """Fit the learning rate of the default optimiser to a number of architecture steps."""
        if self._fitted:
            self.rates.initial = [fitted_rate(steps)]

    def join(self, group: Group, draws: Draws) -> None:
        """Learn together with other processes, from one draw or from one per process."""
        self.group, self.has_own_draws = group, draws == "independent" and group.size > 1

    def share_costs(self) -> None:
        """Take the costs of rank 0: those that were measured are others in every process."""
        if self.budget:
            saved = self.budget.save()
            self._budget = self.budget.loaded({**saved, "costs": self.group.text_of_first(saved["costs"])})

    @property
    def distribution(self) -> Distribution:
        """p_theta as it stands."""
        return Distribution(self.theta.logits().detach())

    def draw(self, phase: Phase, progress: float | None, generator: torch.Generator | None = None) -> Draw:
        """Draw what the next step runs.

        Args:
            phase: what the draw is for.
            progress: the share of the architecture steps already taken; None where that is not known.
            generator: instead of the policy's own.
        """
        self._leaf = self.theta.logits()
        return self.strategy.draw(self._leaf, self.state, phase, progress, generator or self.generator)

    def learn(self, feedback: Feedback, draw: Draw, progress: float | None) -> Update:
        """Algorithm 1, lines 9-10: take one step of theta from what came back of the latest draw.

        Raises:
            NonFinite: the loss or the gradient is not finite; nothing is changed.
        """
        self.rates.anneal(progress)
        told = feedback if self._has_gradient else self.budget.penalise(feedback, draw)
        with torch.no_grad():
            gradient, state = self.strategy.gradient(told, draw, self._leaf, self.state)
        found = self._exchange(feedback, draw, gradient, state)
        norm = self._move(found, draw)
        self.state = found.state
        self._remember(found)
        return Update(found.losses.mean(0), norm)

    @contextmanager
    def undone_on_failure(self) -> Iterator[None]:
        """If the block fails, all that a step may have moved here is as before."""
        before = self.state, self.best, self.best_loss, self.budget.multipliers
        with undone_on_failure(self.optimizer, self.theta.parameters):
            try:
                yield
            except BaseException:
                self.state, self.best, self.best_loss, self.budget.multipliers = before
                raise

    def _exchange(self, feedback: Feedback, draw: Draw, gradient: Tensor | None, state: State) -> Estimates:
        """Put together what all processes have learnt, where each has a draw of its own."""
        if not self.has_own_draws:
            chosen, single = draw.weights.detach().unsqueeze(0), torch.tensor([draw.one_hot])
            return Estimates(gradient, feedback.reached, state, feedback.loss.unsqueeze(0), chosen, single)
        found = average_estimates(self.group, gradient, feedback.reached, self.state, state, feedback.loss, draw)
        check_finite("The loss is", found.losses.mean().item())
        return found

    def _move(self, found: Estimates, draw: Draw) -> float | None:
        """Step along the gradient [..., decisions, candidates], where it was reached; its norm before clipping."""
        norm, reached, multipliers = None, found.reached, self.budget.multipliers
        if found.gradient is not None:
            ascent = found.gradient * reached.unsqueeze(-1)
            if self.budget and self._has_gradient:
                ascent, reached, multipliers = self.budget.steer(ascent, reached, Distribution(self._leaf.detach()))
            # Before clipping in double precision: where squares overflow, the norm itself need not.
            norms = torch.linalg.vector_norm(ascent, dim=(-2, -1), keepdim=True, dtype=torch.float64)
            norm = norms.norm().item()
            check_finite("The gradient of theta has norm", norm)
            if self.clip is not None:  # every search by its own norm
                ascent = ascent * (self.clip / (norms + 1e-6)).clamp(max=1.0).to(ascent.dtype)
            check_finite("The square of the gradient of theta is", ascent.square().sum().item())
            self.theta.set_gradient(-ascent, reached)
            self.optimizer.step()
        if self.budget and not self._has_gradient:
            multipliers = self.budget.ascend(torch.ones_like(multipliers), Distribution(self._leaf.detach()))
        self.budget.multipliers = multipliers
        moved = self.theta.logits().detach()
        projected = self.strategy.project(self._leaf.detach(), moved, draw, found.state)
        if projected is not moved:
            self.theta.assign(projected)
        if not self.theta.is_finite():
            raise NonFinite("The optimiser made theta infinite or not a number")
        return norm

    def _remember(self, found: Estimates) -> None:
        """Keep the best architecture that was run."""
        for loss, chosen, single in zip(found.losses.double(), found.chosen, found.single.tolist(), strict=True):
            if single:
                better = (loss < self.best_loss) & self.budget.allowed(chosen)
                self.best_loss = torch.where(better, loss, self.best_loss)
                self.best = torch.where(better[..., None, None], chosen, self.best)

    @property
    def has_best(self) -> bool:
        """Whether any single architecture was evaluated."""
        return bool(self.best_loss.isfinite().all())

    def save(self) -> dict[str, Any]:
        """Return everything that decides how theta goes on, without copying it."""
        return {
            "theta": [parameter.detach() for parameter in self.theta.parameters],
            "optimizer": self.optimizer.state_dict(),
            "strategy": self.state,
            "generator": self.generator.get_state(),
            "best": self.best,
            "best_loss": self.best_loss,
            **({"budget": self.budget.save()} if self.budget else {}),
        }

    def check(self, saved: Mapping[str, Any]) -> None:
        """Raise ValueError if a state cannot be of a policy like this one; nothing is changed."""
        now = self.save() | {"optimizer": {}}
        check_form(saved, [now, {**now, "strategy": self._try_step()[1]}], "architecture")
        check_optimizer(self.optimizer, saved["optimizer"], "architecture.optimizer")
        if self.budget:
            self.budget.loaded(saved["budget"])

    @contextmanager
    def loading(self, saved: Mapping[str, Any]) -> Iterator[None]:
        """Take over a state, sharing no memory with it; be as before if it does not fit or the block fails.

        Raises:
            ValueError: the state cannot be of a policy like this one.
        """
        self.check(saved)
        with rolled_back_on_failure(partial(self._put, copy.deepcopy(self.save()))):
            self._put(saved)
            yield

    def _put(self, saved: Mapping[str, Any]) -> None:
        for parameter, value in zip(self.theta.parameters, saved["theta"], strict=True):
            parameter.data.copy_(value)
        load_optimizer(self.optimizer, saved["optimizer"])
        self.state = copy.deepcopy(dict(saved["strategy"]))
        self.generator.set_state(saved["generator"])
        self.best, self.best_loss = saved["best"].clone(), saved["best_loss"].clone()
        if self.budget:
            self._budget = self.budget.loaded(saved["budget"])

    def _try_step(self) -> tuple[Tensor | None, State]:
        """The gradient and the state after a step that brought nothing: what later ones are built like."""
        logits = self.theta.logits()
        draw = self.strategy.draw(logits, self.state, Phase.ARCHITECTURE, 0.0, torch.Generator())
        zeros = torch.zeros_like(draw.weights, requires_grad=False)
        blank = Feedback(
            loss=zeros.sum((-2, -1)),
            slope=zeros if draw.weights.requires_grad else None,
            reached=torch.ones(zeros.shape[-2], dtype=torch.bool),
            probe=lambda draws: torch.zeros(draws.weights.shape[:-2]),
            unrolled=lambda: zeros,
        )
        with torch.no_grad():
            return self.strategy.gradient(blank, draw, logits, self.state)


def report(search: "Search", phase: str, draw: Draw, update: Update, feedback: Feedback | None = None) -> Step:
    """Tell what a step did."""
    advantages = {}
    if feedback is not None and feedback.slope is not None:
        values = -(feedback.slope * draw.weights.detach()).sum(-1)
        rows = zip(search.space.decisions, values.tolist(), feedback.reached.tolist(), strict=True)
        advantages = {decision.name: value for decision, value, hit in rows if hit}
    contrasts = _contrasts(search, draw, feedback) if feedback is not None else {}
    return Step(
        phase=phase,
        number=search.weight_steps if feedback is None else search.architecture_steps,
        loss=update.loss.item(),
        entropy=search.distribution.entropy().mean().item(),
        architecture=search.space.drawn_operations(draw) if draw.one_hot else None,
        advantages=advantages,
        gradient_norm=update.norm,
        contrasts=contrasts,
        limits=search.policy.budget.report(search.distribution) if search.policy.budget else {},
    )


def _contrasts(search: "Search", draw: Draw, feedback: Feedback) -> dict[str, dict[str, float]]:
    """Tell by decision and rival how much higher the reward would be, to first order; reached decisions only."""
    if not draw.rival_places or not draw.one_hot or feedback.slope is None:
        return {}
    gains, reached = draw.gains(feedback.slope).tolist(), feedback.reached.tolist()
    found: dict[str, dict[str, float]] = {}
    for row, column in draw.rival_places:
        if reached[row]:
            decision = search.space.decisions[row]
            found.setdefault(decision.name, {})[decision.operations[column]] = gains[row][column]
    return found
