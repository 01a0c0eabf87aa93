"""The expected costs of architectures drawn from p_theta, in closed form, and their gradient."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from advnas.costs.cost import Cost

_Places = dict[tuple[str, str], int]


class Expected:
    """E[c](theta) = constant + sum over the terms of value * product over the condition of mu_ik.

    Decisions are independent under p_theta, so the product is the probability that the condition holds: that of a
    nested operation is the probability of being reached times its own. Nothing is drawn, so nothing has variance.

    Args:
        costs: of one space.
        decisions: the operations of every decision, in the order of theta.
    """

    def __init__(self, costs: Sequence[Cost], decisions: Mapping[str, Sequence[str]]) -> None:
        self.width = max(map(len, decisions.values()))
        self.shape = (len(costs), len(decisions), self.width)
        places: _Places = {
            (name, operation): row * self.width + column
            for row, (name, operations) in enumerate(decisions.items())
            for column, operation in enumerate(operations)
        }
        self.constant = torch.tensor([cost.constant for cost in costs], dtype=torch.float64)
        self._table = torch.zeros(len(costs), len(decisions) * self.width, dtype=torch.float64)
        nested = list(dict.fromkeys(when for cost in costs for when in cost.terms if len(when) > 1))
        for number, cost in enumerate(costs):
            for when, value in cost.terms.items():
                if len(when) == 1:
                    self._table[number, places[next(iter(when))]] += value
        values = [[cost.terms.get(when, 0.0) for when in nested] for cost in costs]
        self._values = torch.tensor(values, dtype=torch.float64).reshape(len(costs), len(nested))
        one = len(decisions) * self.width  # where a factor of 1 stands
        self._factors = _padded([[places[each] for each in when] for when in nested], one)

    def of(self, probabilities: Tensor) -> Tensor:
        """The expected costs [..., costs] at mu [..., decisions, candidates]."""
        flat = probabilities.double().flatten(-2)
        total = self.constant + flat @ self._table.T
        if len(self._factors):
            total = total + self._with_one(flat)[..., self._factors].prod(-1) @ self._values.T
        return total

    def slope(self, probabilities: Tensor) -> Tensor:
        """d E[c] / d mu: [..., costs, decisions, candidates]."""
        flat = probabilities.double().flatten(-2)
        slope = self._table.expand(*flat.shape[:-1], *self._table.shape)
        if len(self._factors):
            slope = slope + self._nested_slope(self._with_one(flat)[..., self._factors])
        return slope.reshape(*slope.shape[:-1], *self.shape[1:])

    def gradient(self, probabilities: Tensor) -> Tensor:
        """d E[c] / d theta = mu (d E[c]/d mu - mu^T d E[c]/d mu): [..., costs, decisions, candidates]."""
        slope, mu = self.slope(probabilities), probabilities.double().unsqueeze(-3)
        return mu * (slope - (mu * slope).sum(-1, keepdim=True))

    def _nested_slope(self, factors: Tensor) -> Tensor:
        """By the product rule. factors: [..., terms, factors of a term]."""
        slope = factors.new_zeros(*factors.shape[:-2], self._values.shape[0], self._table.shape[1] + 1)
        for number in range(factors.shape[-1]):
            others = torch.cat([factors[..., :number], factors[..., number + 1 :]], -1).prod(-1)
            slope.index_add_(-1, self._factors[:, number], self._values * others.unsqueeze(-2))
        return slope[..., :-1]

    def _with_one(self, flat: Tensor) -> Tensor:
        return torch.cat([flat, flat.new_ones(*flat.shape[:-1], 1)], -1)


def _padded(rows: Iterable[Sequence[int]], filler: int) -> Tensor:
    rows = list(rows)
    longest = max(map(len, rows), default=1)
    padded = [[*row, *[filler] * (longest - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.long).reshape(len(rows), longest)
