"""Architectures (one operation at every decision) and draws (what one step of the search runs)."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from advnas.notebook import table


def check_is_mapping(given: object) -> None:
    """Raise TypeError for what cannot be an architecture, such as an answer that has one."""
    if not isinstance(given, Mapping):
        inside = isinstance(getattr(given, "architecture", None), Mapping)
        what = repr(given) if isinstance(given, str) else f"a {type(given).__name__}"
        advice = "Write its .architecture." if inside else "Write for example {'edge': 'conv'}."
        raise TypeError(f"An architecture maps decision names to operation names, got {what}. {advice}")


class Architecture(Mapping[str, str]):
    """An immutable choice of one operation at every decision.

    Equality and hash do not depend on the order of the decisions, so architectures can be counted, cached
    and compared across runs and machines.

    Args:
        operations: the name of the operation at every decision, by the name of the decision.

    Raises:
        TypeError: it is no mapping, or a name is not a text.
    """

    __slots__ = ("_operations",)

    def __init__(self, operations: Mapping[str, str]) -> None:
        check_is_mapping(operations)
        for decision, operation in operations.items():
            if not isinstance(decision, str) or not isinstance(operation, str):
                raise TypeError(
                    f"An architecture maps decision names to operation names, got {decision!r}: {operation!r}. "
                    "Write for example Architecture({'edge': 'conv'})."
                )
        self._operations = dict(operations)

    def __getitem__(self, decision: str) -> str:
        return self._operations[decision]

    def __iter__(self) -> Iterator[str]:
        return iter(self._operations)

    def __len__(self) -> int:
        return len(self._operations)

    def __hash__(self) -> int:
        return hash(frozenset(self._operations.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and dict(self) == dict(other)

    def __repr__(self) -> str:
        return f"Architecture({self._operations!r})"

    def _repr_html_(self) -> str:
        return table("Architecture", self._operations.items(), ("decision", "operation"))

    @property
    def digest(self) -> str:
        """Return twelve hexadecimal digits that name this architecture on any machine."""
        canonical = json.dumps(self._operations, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    def to_json(self) -> str:
        """Return one JSON object, with the decisions in their own order."""
        return json.dumps(self._operations)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote.

        Args:
            text: one JSON object of texts.

        Raises:
            ValueError: the text is something else.
        """
        try:
            operations = json.loads(text)
        except (ValueError, RecursionError) as error:  # no JSON, too many digits, too many brackets
            raise ValueError(f"An architecture must be a JSON object, got {text[:80]!r}: {error}") from error
        if not isinstance(operations, dict) or not all(isinstance(name, str) for name in operations.values()):
            raise ValueError(
                f'An architecture must be a JSON object of texts like {{"edge": "conv"}}, got {text[:80]!r}.'
            )
        return cls(operations)


@dataclass(frozen=True)
class Draw:
    """What one step runs: O_i(x) = sum over the active k of weights[i, k] O_ik(x), at every decision i.

    Leading dimensions hold independent draws; a network runs one draw at a time, a vectorised task many.

    Args:
        weights: [..., decisions, candidates]. Where it requires a gradient, its entries enter the network as gates,
            and the step returns d loss / d weights. A weight of 1 that requires no gradient costs nothing: its
            operation runs without a gate.
        active: bool, same shape: the candidates that are executed. One that is active behind a gate of 0 is a
            rival: it adds nothing, and runs inside the backward pass, without a graph, only to learn its own slope.
        constants: whether the weights of inactive candidates are added to the output as numbers (GDAS).
        shares: same shape, or None: how much each rival of the chosen operation counts; see `contrasted`.
    """

    weights: Tensor
    active: Tensor
    constants: bool = False
    shares: Tensor | None = None

    @classmethod
    def bare(cls, chosen: Tensor, rivals: Tensor | None = None) -> Self:
        """Run the chosen operations and nothing else.

        Args:
            chosen: one-hot [..., decisions, candidates].
            rivals: one-hot, same shape: which operation `swaps` puts in the place of each; it does not run here.
        """
        return cls(weights=chosen, active=chosen != 0, shares=rivals)

    @classmethod
    def gated(cls, chosen: Tensor) -> Self:
        """Run the chosen operations, each behind a gate of value 1 whose slope is computed.

        Args:
            chosen: one-hot [..., decisions, candidates].
        """
        return cls(weights=chosen.detach().clone().requires_grad_(), active=chosen != 0)

    @classmethod
    def contrasted(cls, chosen: Tensor, rivals: Tensor) -> Self:
        """Run the chosen operations behind gates of 1, and beside each its rivals behind gates of 0.

        Args:
            chosen: one-hot [..., decisions, candidates].
            rivals: same shape: how much each rival counts, 0 for those that are none. The chosen operation is never
                its own rival.
        """
        shares = rivals * (chosen == 0)
        active = (chosen != 0) | (shares != 0)
        return cls(chosen.detach().clone().requires_grad_(), active, shares=shares)

    @property
    def rivals(self) -> Tensor:
        """How much each rival of the chosen operation counts, where the strategy knows that there are some."""
        assert self.shares is not None, "this draw has no rivals"
        return self.shares

    def gains(self, slope: Tensor) -> Tensor:
        """How much higher the reward would be with another operation, to first order: <dr/dO, O_b - O_a>.

        Args:
            slope: d loss / d weights, [..., decisions, candidates].

        Returns:
            Same shape; 0 at the chosen operation, and without meaning where a candidate was not active.
        """
        return (slope * self.weights.detach()).sum(-1, keepdim=True) - slope

    @cached_property
    def values(self) -> list[Any]:
        """The weights as numbers, nested like the tensor."""
        found: list[Any] = self.weights.tolist()
        return found

    @cached_property
    def one_hot(self) -> bool:
        """Whether the network computes exactly one architecture: one weight of 1 per decision, all others 0."""
        rows = self.values if self.weights.dim() == 2 else self.weights.detach().flatten(0, -2).tolist()
        return all(row.count(1) == 1 and row.count(0) == len(row) - 1 for row in rows)

    @cached_property
    def places(self) -> list[tuple[int, ...]]:
        """The (decision, candidate) of every active candidate, row by row."""
        return [tuple(place) for place in self.active.nonzero().tolist()]

    @cached_property
    def rival_places(self) -> list[tuple[int, ...]]:
        """Those of the rivals among them."""
        if not self.weights.requires_grad or len(self.places) == len(self.values):
            return []
        return [
            (row, column) for row, column in self.places if self.values[row][column] == 0 and any(self.values[row])
        ]

    @cached_property
    def path(self) -> list[tuple[int, ...]]:
        """Those of the others, which the network runs forward."""
        if not self.rival_places:
            return self.places
        rivals = set(self.rival_places)
        return [place for place in self.places if place not in rivals]

    def detached(self) -> Self:
        """Return the same draw without a gradient, and so without rivals."""
        weights = self.weights.detach()
        if self.shares is None:
            return self._renewed(weights, None)
        return type(self)(weights, self.active & (self.shares == 0), self.constants)

    def as_leaf(self) -> Self:
        """Return the same draw with weights that are a leaf of their own, apart from the graph that made them."""
        return self._renewed(self.weights.detach().requires_grad_(self.weights.requires_grad), self.shares)

    def _renewed(self, weights: Tensor, shares: Tensor | None) -> Self:
        """Return a draw of equal numbers, which need not be looked at again."""
        other = type(self)(weights, self.active, self.constants, shares)
        other.__dict__.update((name, self.__dict__[name]) for name in _OF_NUMBERS if name in self.__dict__)
        return other

    def knock_outs(self) -> Self:
        """Return one draw per decision, in a new first dimension: the same, with that decision's output zero.

        The operation of that decision stays active, so only the drawn operations are executed.
        """
        weights = self.weights.detach()
        decisions = weights.shape[-2]
        others = 1 - torch.eye(decisions, dtype=weights.dtype, device=weights.device)
        shape = (decisions, *[1] * (weights.dim() - 2), decisions, 1)
        return type(self)(
            weights=weights * others.reshape(shape),
            active=self.active.expand(decisions, *self.active.shape),
        )

    def swaps(self) -> Self:
        """Return one draw per decision, in a new first dimension: the same, with the rival at that decision.

        A decision without a rival, as it has one operation, keeps that.
        """
        weights = self.weights.detach()
        decisions = weights.shape[-2]
        here = torch.eye(decisions, dtype=torch.bool, device=weights.device)
        shape = (decisions, *[1] * (weights.dim() - 2), decisions, 1)
        has_rival = self.rivals.any(-1, keepdim=True)
        return type(self).bare(torch.where(here.reshape(shape) & has_rival, self.rivals, weights))

    def __iter__(self) -> "Iterator[Draw]":
        """The draws along the first dimension."""
        for weights, active in zip(self.weights, self.active, strict=True):
            yield Draw(weights, active, self.constants)


_OF_NUMBERS = ("values", "one_hot", "places")  # what is remembered of a draw, and depends on its numbers alone
