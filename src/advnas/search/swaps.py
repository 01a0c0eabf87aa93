"""Measured swaps: does a strategy's credit agree with the network?

A strategy that learns from slopes predicts what another operation at one decision would change. Here a few such
swaps are measured as well, and the two are compared. Nothing of the search is changed.
"""

import copy
import itertools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from advnas import strategies
from advnas.architecture import Draw
from advnas.distribution import Distribution
from advnas.randomness import generator
from advnas.records.restoring import check_form
from advnas.search.parent import loss_and_slope
from advnas.search.schedule import Length
from advnas.search.second_order import Further
from advnas.search.step import LossOf, NonFiniteLoss
from advnas.strategies import Feedback, Phase, State
from advnas.strategies.strategy import GATED

if TYPE_CHECKING:
    from advnas.search.search import Search

_SHARE = 0.01  # of all passes of a search, at most
_FEWEST, _MOST = 8, 64  # swaps
_AGREEMENT, _ERRORS = 0.35, 2.0  # a cosine that is so many standard errors below this one is too low
_DRAWS = 6  # sets these draws apart from the other randomness of a seed
_TRIES = 200  # draws from four equally likely architectures, by which all of them have come


@dataclass(frozen=True)
class Swap:
    """One operation in place of another, everything else being equal, on one minibatch.

    measured: how much higher the reward is with `rival` than with `operation`; the reward is minus the loss.
    believed: the same by what the strategy would move theta; in units of its own where its steps are not those of
    the gradient.
    """

    decision: str
    operation: str
    rival: str
    measured: float
    believed: float


class CreditWarning(UserWarning):
    """The slopes that a strategy learns from contradict measured swaps."""


@dataclass(frozen=True)
class CreditCheck:
    """Measured swaps next to what a strategy believed about them.

    strategy: its name. rivals: whether it compares operations with each other, or else with nothing. swaps: all
    different; none where the strategy does not learn from slopes of single architectures.
    """

    strategy: str
    rivals: bool
    swaps: tuple[Swap, ...]

    @classmethod
    def pooled(cls, checks: Sequence[Self]) -> Self:
        """Put the swaps of several searches with one strategy together; they are independent of each other."""
        swaps = itertools.chain.from_iterable(check.swaps for check in checks)
        return cls(checks[0].strategy, checks[0].rivals, tuple(swaps))

    @property
    def cosine(self) -> float:
        """Between measured and believed gains: 1 for full agreement, 0 for none, below 0 for the wrong direction.

        Gains count no more than their median, as one swap that ruins the network must not outweigh all others.
        """
        measured, believed = self._clipped("measured"), self._clipped("believed")
        size = math.hypot(*measured) * math.hypot(*believed)
        return sum(map(math.prod, zip(measured, believed, strict=True))) / size if size else 0.0

    @property
    def decisions(self) -> tuple[str, ...]:
        """Where something was measured."""
        return tuple(dict.fromkeys(swap.decision for swap in self.swaps))

    @property
    def wrong_at(self) -> tuple[str, ...]:
        """The decisions at which measured and believed gains point in opposite directions."""
        products = dict.fromkeys(self.decisions, 0.0)
        for swap, *gains in zip(self.swaps, self._clipped("measured"), self._clipped("believed"), strict=True):
            products[swap.decision] += math.prod(gains)
        return tuple(name for name, value in products.items() if value < 0)

    @property
    def enough(self) -> bool:
        """Whether there are enough swaps to say anything."""
        return len(self.swaps) >= _FEWEST

    @property
    def agrees(self) -> bool:
        """Whether the cosine is higher than chance explains: by chance that of n swaps is off by 1 / sqrt(n)."""
        return self.enough and self.cosine > self._error

    @property
    def contradicts(self) -> bool:
        """Whether there is no agreement, and enough swaps to have shown one that a search could learn from."""
        return self.enough and not self.agrees and self.cosine + self._error < _AGREEMENT

    @property
    def good(self) -> bool | None:
        """True where measured and believed gains agree, False where they contradict, None where that is open."""
        if self.agrees:
            return True
        return False if self.contradicts else None

    @property
    def _error(self) -> float:
        return _ERRORS / math.sqrt(len(self.swaps))

    def __str__(self) -> str:
        told = f"(cosine {self.cosine:.2f} over {len(self.swaps)} swaps, 1 being full agreement)"
        where = f"at {len(self.wrong_at)} of {len(self.decisions)} decisions"
        if self.contradicts:
            return f"The slopes of {self.strategy} contradict measured swaps {where} {told}{_ADVICE[self.rivals]}"
        if self.agrees:
            return f"The slopes of {self.strategy} agree with measured swaps {told}; they are wrong {where}."
        return f"Whether the slopes of {self.strategy} agree with measured swaps is open {told}."

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `result.json`; the swaps alone decide the others."""
        figures = {"cosine": self.cosine, "wrong_at": list(self.wrong_at), "contradicts": self.contradicts}
        return figures | asdict(self) | {"swaps": [asdict(swap) for swap in self.swaps]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read what `to_json` returned.

        Raises:
            ValueError: it is something else.
        """
        swap = asdict(Swap("", "", "", 0.0, 0.0))
        form = {"strategy": "", "rivals": False}
        check_form(content, [form | {"swaps": []}, form | {"swaps": [swap]}], "credit")
        swaps = tuple(Swap(**{name: each[name] for name in swap}) for each in content["swaps"])
        return cls(content["strategy"], content["rivals"], swaps)

    def _clipped(self, name: str) -> list[float]:
        gains = [getattr(swap, name) for swap in self.swaps]
        limit = median([abs(gain) for gain in gains if gain] or [0.0])
        return [max(-limit, min(limit, gain)) for gain in gains]


_ADVICE = {
    False: ', as they do where choices stand in series. Write strategy="contrast".',
    True: ": a swap changes more than slopes can tell, as where one decision stands in many places. "
    'Compare with strategy="reinforce".',
}


def warn_of(check: CreditCheck) -> None:
    """Warn whoever called `Search.run` of a contradiction."""
    if check.contradicts:
        warnings.warn(str(check), CreditWarning, stacklevel=_CALLER_OF_RUN)


_CALLER_OF_RUN = (
    9  # frames above `warn_of`: SearchRun's two, the loop's two, two around it, Search.run, and its caller
)


def plan_squares(search: "Search", length: Length) -> int:
    """Tell how many squares of architectures a search may measure; 0 where too few swaps would come of it.

    All passes of a square cost what architecture steps cost, and a weight step costs what a pass with gates does.
    """
    sizes = search.space.sizes
    if search.space.size * sum(size - 1 for size in sizes) // 2 < _FEWEST:
        return 0  # there are no more swaps than these
    cost = search.strategy.architecture_passes(sizes)
    steps = (length.turns - length.warmup_turns) // search.strategy.architecture_every
    of_theta = 0 if search.schedule == "joint" else steps * cost
    sides = min(2, len(_open(search.distribution)))
    corners, swaps = 2**sides, sides**2
    fitting = int(_SHARE * (GATED * length.turns + of_theta) / (cost * corners))
    squares = min(fitting, _MOST // swaps)
    return squares if squares * swaps >= _FEWEST else 0


def check_credit(search: "Search", loss_of: LossOf, squares: int) -> CreditCheck:
    """Measure swaps on one minibatch, and ask the strategy what it believes about them.

    A square is a small space of its own: one operation at every decision, but two with equal probabilities at each
    of two decisions, drawn from p_theta. There the gradient of the expected reward is known,

        dJ/dtheta_i = mean over the swaps at i of 1/4 (r_b - r_a) (e_b - e_a)

    and the strategy's estimate is asked for with these logits, by the passes that an architecture step would run.
    Four passes give two swaps at each of the two decisions, with their losses and with what is believed about them.

    Args:
        search: it is left exactly as it was.
        loss_of: on the minibatch of an architecture step.
        squares: how many are measured; decisions take turns.

    Returns:
        The swaps; none for a strategy that is not judged, as its draws are no single architectures behind gates.
    """
    random = generator(search.seed, search.weight_steps, search.architecture_steps, _DRAWS)
    different: dict[frozenset[Columns], Swap] = {}
    rivals = False
    for rows in itertools.islice(_turns(_open(search.distribution), random), squares):
        square = _Square.drawn(search, rows, random)
        draws = square.draws()
        if draws is None:
            break
        rivals = any(draw.rival_places for draw in draws)
        different |= square.measure(draws, loss_of)
    return CreditCheck(strategies.name_of(search.strategy), rivals, tuple(different.values()))


def _open(distribution: Distribution) -> list[int]:
    """The decisions with more than one operation."""
    return (distribution.logits.isfinite().sum(-1) > 1).nonzero().flatten().tolist()


def _turns(rows: Sequence[int], random: torch.Generator) -> Iterator[tuple[int, ...]]:
    """Two decisions at a time, or the only one; all come equally often, in an order of their own."""
    order = [rows[place] for place in torch.randperm(len(rows), generator=random).tolist()]
    place = 0
    while True:
        yield tuple(dict.fromkeys((order[place % len(order)], order[(place + 1) % len(order)])))
        place += 2


Columns = tuple[int, ...]
"""An architecture by the number of the operation at every decision."""


@dataclass(frozen=True)
class _Corner:
    """One architecture of a square, as an architecture step would have found it. loss: on the minibatch. estimate:
    of theta's gradient [decisions, candidates]. reached: which decisions the pass came to.
    """

    loss: float
    estimate: Tensor
    reached: list[bool]


@dataclass(frozen=True)
class _Square:
    """All architectures that have one of two operations at each of some decisions, and are equal at the others.

    rows: those decisions. chosen, rivals: one-hot [decisions, candidates], the two operations.
    """

    search: "Search"
    rows: tuple[int, ...]
    chosen: Tensor
    rivals: Tensor
    random: torch.Generator

    @classmethod
    def drawn(cls, search: "Search", rows: tuple[int, ...], random: torch.Generator) -> Self:
        """Draw an architecture and rivals from p_theta."""
        chosen = search.distribution.sample(random)
        return cls(search, rows, chosen, search.distribution.without(chosen).sample(random), random)

    @cached_property
    def logits(self) -> Tensor:
        """0 at what may be drawn, minus infinity elsewhere; a leaf."""
        possible = self.chosen != 0
        for row in self.rows:
            possible[row] |= self.rivals[row] != 0
        return torch.zeros_like(self.chosen).masked_fill(~possible, -torch.inf).requires_grad_()

    @property
    def state(self) -> State:
        """The strategy's state, which it may do with as it likes."""
        return copy.deepcopy(self.search.policy.state)

    def draws(self) -> list[Draw] | None:
        """Let the strategy draw until every architecture has come; None where it does not run single ones."""
        progress, found = self.search.progress.of_theta, dict[Columns, Draw]()
        for _ in range(_TRIES):
            draw = self.search.strategy.draw(self.logits, self.state, Phase.ARCHITECTURE, progress, self.random)
            if not (draw.weights.requires_grad and draw.one_hot):
                return None
            found.setdefault(_columns(draw.weights), draw)
            if len(found) == 2 ** len(self.rows):
                return list(found.values())
        return None  # it does not draw from the distribution that it is given

    def measure(self, draws: Sequence[Draw], loss_of: LossOf) -> dict[frozenset[Columns], Swap]:
        """Run all architectures; return the swaps by the two architectures that each is between."""
        corners = {_columns(draw.weights): self._run(draw, loss_of) for draw in draws}
        rivals = _columns(self.rivals)
        swaps = {}
        for before, row in itertools.product(corners, self.rows):
            after = (*before[:row], rivals[row], *before[row + 1 :])
            swap = None if before == after else self._swap(row, corners[before], corners[after])
            if swap is not None:
                swaps[frozenset((before, after))] = swap
        return swaps

    def _run(self, draw: Draw, loss_of: LossOf) -> _Corner | None:
        """Do what an architecture step does, but for the step; None where nothing comes of it."""
        search = self.search
        try:
            with search.parent.step("swap before architecture step", draw), search.weights.loaded(draw):
                with search.parent.running(draw) as trace, search.weights.frozen(draw), torch.enable_grad():
                    loss, slope = loss_and_slope(search.parent, loss_of, draw, trace)
                further = Further(search.parent, search.weights, search.policy, draw, loss_of, loss_of)
                value = loss.detach().to(draw.weights.device)
                feedback = Feedback(value, slope, trace.reached, further.probe, further.unrolled)
                with torch.no_grad():
                    estimate, _ = search.strategy.gradient(feedback, draw, self.logits, self.state)
        except NonFiniteLoss:
            return None
        return None if estimate is None else _Corner(loss.item(), estimate, trace.reached.tolist())

    def _swap(self, row: int, before: _Corner | None, after: _Corner | None) -> Swap | None:
        """Compare two architectures; None where nothing can be said.

        The decision was not reached, a number is not finite, or nothing of it gets to the loss.
        """
        if before is None or after is None or not (before.reached[row] and after.reached[row]):
            return None
        operation, rival = _columns(self.chosen)[row], _columns(self.rivals)[row]
        towards = (before.estimate[row] + after.estimate[row]) / 2
        measured, believed = before.loss - after.loss, 2 * (towards[rival] - towards[operation]).item()
        if not math.isfinite(measured) or not math.isfinite(believed) or measured == believed == 0:
            return None
        decision = self.search.space.decisions[row]
        return Swap(decision.name, decision.operations[operation], decision.operations[rival], measured, believed)


def _columns(chosen: Tensor) -> Columns:
    return tuple(chosen.detach().argmax(-1).tolist())
