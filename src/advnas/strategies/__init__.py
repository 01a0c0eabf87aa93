"""Search strategies by name. Adding one: write its file, import it here, and give it a name below."""

import dataclasses
from typing import Any, get_args

import torch

from advnas.arguments import did_you_mean
from advnas.strategies.advantage import Advantage
from advnas.strategies.contrast import Contrast
from advnas.strategies.darts import Darts
from advnas.strategies.enas import Enas
from advnas.strategies.exact_advantage import ExactAdvantage
from advnas.strategies.exact_contrast import ExactContrast
from advnas.strategies.gdas import Gdas
from advnas.strategies.nasp import Nasp
from advnas.strategies.parsec import Parsec
from advnas.strategies.proxyless import Proxyless
from advnas.strategies.random import Random
from advnas.strategies.ranked_random import RankedRandom
from advnas.strategies.reinforce import Reinforce
from advnas.strategies.snas import Snas
from advnas.strategies.strategy import Answer, Feedback, Phase, State, Strategy

__all__ = [
    "Answer",
    "Feedback",
    "Phase",
    "State",
    "Strategy",
    "answers_of",
    "baselines",
    "for_task",
    "get",
    "made",
    "name_of",
    "names",
    "options",
]

_STRATEGIES: dict[str, type[Strategy]] = {
    "contrast": Contrast,
    "exact_contrast": ExactContrast,
    "advantage": Advantage,
    "exact_advantage": ExactAdvantage,
    "reinforce": Reinforce,
    "enas": Enas,
    "parsec": Parsec,
    "proxyless": Proxyless,
    "gdas": Gdas,
    "darts": Darts,
    "snas": Snas,
    "nasp": Nasp,
    "random": Random,
    "ranked_random": RankedRandom,
}


def names() -> tuple[str, ...]:
    """All strategies: ours, the paper's, then its competitors, sparse before dense, and the baselines last."""
    return tuple(_STRATEGIES)


def get(name: str, **options: Any) -> Strategy:
    """The strategy of that name with the given hyper-parameters, e.g. get("parsec", samples=8)."""
    kind = strategy_type(name)
    known = [field.name for field in _fields(kind)]
    for option in options:
        if option not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise ValueError(f"Strategy {name!r} has no option {option!r}{did_you_mean(option, known)}; {takes}.")
    return kind(**options)


def for_task(name: str, **facts: Any) -> Strategy:
    """Build a strategy and tell it what it wants to know about a task.

    A strategy asks for a fact in the metadata of a field: `field(default=64, metadata={"task": "examples"})`.

    Args:
        name: one of `names()`.
        facts: what is known about the task, such as examples=64. What the strategy does not ask for is ignored, and
            so is None.

    Returns:
        The strategy, with its defaults where no fact is given.
    """
    wanted = {field.metadata.get("task"): field.name for field in _fields(strategy_type(name))}
    given = {wanted[fact]: value for fact, value in facts.items() if fact in wanted and value is not None}
    return get(name, **given)


def answers_of(name: str) -> tuple[Answer, ...]:
    """Which answers a search by a strategy can give: one that only mixes operations draws no architecture."""
    strategy, logits, random = get(name), torch.zeros(1, 2), torch.Generator().manual_seed(0)
    draw = strategy.draw(logits, strategy.init(logits, logits, random), Phase.ARCHITECTURE, 0.0, random)
    every: tuple[Answer, ...] = get_args(Answer)
    return tuple(answer for answer in every if draw.one_hot or answer != "process_best")


def baselines() -> tuple[str, ...]:
    """Name the strategies that learn nothing: what the others are compared with."""
    return tuple(name for name, kind in _STRATEGIES.items() if not kind.learns)


def strategy_type(name: str) -> type[Strategy]:
    """The class behind a name; says what was meant if there is none."""
    try:
        return _STRATEGIES[name]
    except KeyError:
        raise ValueError(
            f"There is no strategy {name!r}{did_you_mean(name, names())}. Choose one of {', '.join(names())}."
        ) from None


def name_of(strategy: Strategy) -> str:
    """Return the name that a strategy has here; that of its class, if it is somebody's own."""
    known = (name for name, kind in _STRATEGIES.items() if kind is type(strategy))
    return next(known, type(strategy).__name__)


def options(name: str) -> dict[str, Any]:
    """The hyper-parameters of a strategy and their defaults."""
    return {field.name: field.default for field in _fields(strategy_type(name))}


def _fields(kind: type[Strategy]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)  # type: ignore[arg-type]


def made(strategy: str | Strategy) -> Strategy:
    """The strategy itself, or the one of that name.

    Raises:
        TypeError: it is a class, or lacks what a strategy has.
        ValueError: there is none of that name.
    """
    if isinstance(strategy, str):
        return get(strategy)
    if isinstance(strategy, type):
        raise TypeError(f"A strategy must be an object, got a class. Write {strategy.__name__}().")
    missing = [name for name in vars(Strategy) if not name.startswith("_") and not hasattr(strategy, name)]
    if missing:
        kind = type(strategy).__name__
        raise TypeError(
            f"A {kind} is no strategy: it has no {', '.join(missing)}. Subclass advnas.strategies.Strategy, "
            f"which has all but draw and gradient: class {kind}(Strategy)."
        )
    return strategy
