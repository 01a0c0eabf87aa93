"""Budget: limits of a search, how they steer theta, and which architectures they allow."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from advnas.architecture import Architecture, Draw
from advnas.arguments import did_you_mean
from advnas.costs import Cost, Expected, Limit, most_valuable, operations_of, parameters, parse_amount
from advnas.costs.cost import MEASURED, how_to_make
from advnas.costs.knapsack import cheapest, explain
from advnas.distribution import Distribution
from advnas.space import SearchSpace
from advnas.strategies import Feedback

RATE = 0.05
"""Step of the multipliers, where the gradient of the reward and that of the costs are of one size."""
DAMPING = 5.0
"""Weight of the excess itself beside its sum over the steps: it slows theta down before it has gone too far."""
STRONGEST = 2.0
"""How many times the gradient of the reward the pressure of a limit may grow to."""

_TILTS = 1000  # steps towards a distribution within the limits

Amounts = Mapping[str, float | str]
"""By the name of a cost: 100_000, or "100k"."""


class Budget:
    """What a search may cost, and what costs weigh in theta's gradient.

        max over theta of  J(theta) - sum_k lambda_k (E[c_k] / limit_k - 1) - sum_k penalty_k E[c_k]
        lambda_k <- max(0, lambda_k + RATE s_k (E[c_k] / limit_k - 1)),    s_k = |grad J| / |grad E[c_k] / limit_k|

    E[c] and its gradient are exact (`advnas.costs.Expected`). s_k measures both gradients by one rule, so that
    nothing must be tuned to the size of losses and costs. A multiplier grows no further where its pressure is
    STRONGEST times the gradient of the reward: more would change nothing now and take long to go away.

    Args:
        decisions: the operations of every decision, in the order of theta.
        limits: what must hold for the answer.
        penalties: fixed weights, as (cost, loss per unit of the cost).
    """

    def __init__(
        self,
        decisions: Mapping[str, Sequence[str]],
        limits: Sequence[Limit] = (),
        penalties: Sequence[tuple[Cost, float]] = (),
    ) -> None:
        self.decisions, self.limits, self.penalties = decisions, tuple(limits), tuple(penalties)
        costs = [*(limit.cost for limit in limits), *(cost for cost, _ in penalties)]
        for cost in costs:
            cost.check_fits(decisions)
        if limits and cheapest(limits[0].cost, decisions, limits) is None:
            raise explain(decisions, limits)
        self._expected = Expected(costs, decisions)
        self._fixed = torch.tensor([weight for _, weight in penalties], dtype=torch.float64)
        self.amounts = torch.tensor([limit.amount for limit in limits], dtype=torch.float64)
        self.multipliers = torch.zeros(len(limits), dtype=torch.float64)

    @classmethod
    def of(
        cls, space: SearchSpace, limit: Amounts | None, penalty: Amounts | None, costs: Iterable[Cost]
    ) -> "Budget":
        """Make the budget that a person asked for.

        Args:
            space: what is searched.
            limit: the largest amount, by the name of a cost.
            penalty: the weight in the loss per unit, by the name of a cost.
            costs: what the names may mean, besides "parameters".

        Raises:
            TypeError: limit or penalty is no mapping.
            ValueError: a name or an amount is not known.
            Infeasible: no architecture is within the limits.
        """
        _check_amounts("limit", limit)
        _check_amounts("penalty", penalty)
        known = {cost.name: cost for cost in costs}
        asked = {*(limit or {}), *(penalty or {})}
        if "parameters" in asked:
            known.setdefault("parameters", parameters(space))
        for name in sorted(asked - known.keys()):
            names = [*known, *({"parameters"} - known.keys())]
            meant = did_you_mean(name, sorted({*names, *MEASURED} - {name}))
            raise ValueError(
                f"There is no cost {name!r}{meant} here; known are {', '.join(names)}. Write "
                f"Search(..., costs=[...]) with {how_to_make(name)}."
            )
        return cls(
            operations_of(space),
            [
                Limit(known[name], parse_amount(most, name, known[name].unit))
                for name, most in (limit or {}).items()
            ],
            [(known[name], parse_amount(weight, name, "", "penalty")) for name, weight in (penalty or {}).items()],
        )

    def __bool__(self) -> bool:
        """Whether anything costs something here."""
        return bool(self.limits or self.penalties)

    def allows(self, architecture: Mapping[str, str]) -> bool:
        """Whether an architecture is within all limits."""
        return all(limit.allows(architecture) for limit in self.limits)

    def allowed(self, chosen: Tensor) -> Tensor:
        """Whether architectures, one-hot [..., decisions, candidates], are within all limits: bool [...]."""
        if not self.limits:
            return chosen.new_ones(chosen.shape[:-2], dtype=torch.bool)
        rows = chosen.argmax(-1)
        found = [self.allows(self._named(row)) for row in rows.reshape(-1, rows.shape[-1]).tolist()]
        return torch.tensor(found).reshape(rows.shape[:-1])

    def _named(self, row: Sequence[int]) -> dict[str, str]:
        """The architecture of the operations at these places."""
        named = zip(self.decisions.items(), row, strict=True)
        return {name: operations[place] for (name, operations), place in named}

    def without(self, name: str) -> list[Limit]:
        """All limits but the one of a name."""
        return [limit for limit in self.limits if limit.cost.name != name]

    def best(self, distribution: Distribution) -> Architecture:
        """Return the most likely architecture within all limits, exactly.

        Raises:
            Infeasible: there is none.
        """
        rows = distribution.logits.detach().double().log_softmax(-1).tolist()
        named = zip(self.decisions.items(), rows, strict=True)
        values = {(name, one): row[place] for (name, own), row in named for place, one in enumerate(own)}
        return most_valuable(values, self.decisions, self.limits)

    def nearest_within(self, distribution: Distribution) -> Distribution:
        """Return p ~ p_theta exp(-sum_k t_k c_k), each t_k raised by steps until the expected cost is within it.

        Of all distributions within the limits it is about the nearest. It may miss them where its steps run out.
        """
        logits = distribution.logits.detach().double()
        for _ in range(_TILTS):
            tilted = Distribution(logits)
            excess = self._excess(tilted.probabilities).clamp_min(0)
            if not excess.any():
                break
            slope = self._expected.slope(tilted.probabilities)[: len(self.limits)] / self.amounts[:, None, None]
            share = slope / slope.flatten(1).amax(-1).clamp_min(1e-12)[:, None, None]
            logits = logits - (excess.clamp_max(1)[:, None, None] * share).sum(0)
        return Distribution(logits.to(distribution.logits.dtype))

    def expected(self, distribution: Distribution) -> dict[str, float]:
        """E[c] by name, of all costs that limits and penalties name."""
        costs = [*(limit.cost for limit in self.limits), *(cost for cost, _ in self.penalties)]
        values = self._expected.of(distribution.probabilities).tolist()
        return {cost.name: value for cost, value in zip(costs, values, strict=True)}

    def report(self, distribution: Distribution) -> dict[str, dict[str, float]]:
        """Where every limit and penalty stands, as plain values: the trace of a step."""
        found = {name: {"expected": value} for name, value in self.expected(distribution).items()}
        for limit, multiplier in zip(self.limits, self.multipliers.tolist(), strict=True):
            found[limit.cost.name] |= {"limit": limit.amount, "multiplier": multiplier}
        return found

    def steer(self, ascent: Tensor, reached: Tensor, distribution: Distribution) -> tuple[Tensor, Tensor, Tensor]:
        """Add the pressure of all costs to theta's gradient; a pure function of the arguments and the multipliers.

        Args:
            ascent: the strategy's estimate of grad J, [..., decisions, candidates].
            reached: bool [decisions]; a decision that costs something learns in every step.
            distribution: p_theta.

        Returns:
            The gradient, the decisions that learn, and the next multipliers.
        """
        gradients = self._expected.gradient(distribution.probabilities)
        count = len(self.limits)
        relative = gradients[..., :count, :, :] / self.amounts[..., None, None]
        sizes = torch.linalg.vector_norm(relative, dim=(-2, -1)).clamp_min(1e-12)
        scale = torch.linalg.vector_norm(ascent.double(), dim=(-2, -1))[..., None] / sizes
        now = (self.multipliers + DAMPING * scale * self._excess(distribution.probabilities)).clamp_min(0)
        pressure = (now.minimum(STRONGEST * scale)[..., None, None] * relative).sum(-3)
        pressure = pressure + (self._fixed[:, None, None] * gradients[..., count:, :, :]).sum(-3)
        touched = (pressure != 0).flatten(0, -3).any(0).any(-1) if pressure.dim() > 2 else (pressure != 0).any(-1)
        return ascent - pressure.to(ascent.dtype), reached | touched, self.ascend(scale, distribution)

    def ascend(self, scale: Tensor, distribution: Distribution) -> Tensor:
        """One step of dual ascent. scale: [..., limits], the size of a step."""
        excess = self._excess(distribution.probabilities)
        moved = (self.multipliers + RATE * scale * excess).clamp_min(0)
        return torch.where(excess > 0, torch.minimum(moved, (STRONGEST * scale).maximum(self.multipliers)), moved)

    def _excess(self, probabilities: Tensor) -> Tensor:
        """E[c] / limit - 1: [..., limits]."""
        return self._expected.of(probabilities)[..., : len(self.limits)] / self.amounts - 1

    def penalise(self, feedback: Feedback, draw: Draw) -> Feedback:
        """Put the costs of the draws into their losses, for a strategy whose policy is not theta alone (ENAS).

            loss <- loss + |loss| sum_k lambda_k (c_k(a) / limit_k - 1) + sum_k penalty_k c_k(a)

        There is no closed form then, and the cost of the draw is an unbiased estimate of the expected one.
        """
        return replace(
            feedback,
            loss=feedback.loss + self._surcharge(feedback.loss, draw),
            probe=lambda draws: (found := feedback.probe(draws)) + self._surcharge(found, draws),
        )

    def _surcharge(self, loss: Tensor, draw: Draw) -> Tensor:
        costs = self._expected.of(draw.weights.detach())
        excess = costs[..., : len(self.limits)] / self.amounts - 1
        extra = loss.abs() * (self.multipliers * excess).sum(-1) + (
            self._fixed * costs[..., len(self.limits) :]
        ).sum(-1)
        return extra.to(loss.dtype)

    def settings(self) -> dict[str, Any] | None:
        """What must be the same where a search goes on; None without costs."""
        if not self:
            return None
        limits = {limit.cost.name: limit.amount for limit in self.limits}
        return {"limit": limits, "penalty": {cost.name: weight for cost, weight in self.penalties}}

    def save(self) -> dict[str, Any]:
        """The multipliers and the costs themselves: those that were measured would be others the next time."""
        costs = [*(limit.cost for limit in self.limits), *(cost for cost, _ in self.penalties)]
        return {"multipliers": self.multipliers, "costs": json.dumps([cost.to_json() for cost in costs])}

    def loaded(self, saved: Mapping[str, Any]) -> "Budget":
        """Return a budget that goes on from a state.

        Raises:
            ValueError: it has other costs than this one.
        """
        before = [Cost.from_json(cost) for cost in json.loads(saved["costs"])]
        now = [*(limit.cost for limit in self.limits), *(cost for cost, _ in self.penalties)]
        for old, new in zip(before, now, strict=True):
            if old.terms.keys() != new.terms.keys() or (not new.note and old != new):
                raise ValueError(f"the cost {new.name!r} has other numbers now")
        limits = [replace(limit, cost=cost) for limit, cost in zip(self.limits, before, strict=False)]
        weights = (weight for _, weight in self.penalties)
        other = Budget(self.decisions, limits, list(zip(before[len(limits) :], weights, strict=True)))
        other.multipliers = saved["multipliers"].clone()
        return other


def _check_amounts(name: str, given: Amounts | None) -> None:
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(
            f"{name} must map the name of a cost to an amount, got {given!r}. Write for example "
            f"{name}={{'parameters': {'100_000' if name == 'limit' else '1e-6'}}}."
        )
