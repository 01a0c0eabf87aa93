"""Search strategies by name. Adding one: write its file, import it here, and give it a name below."""

import dataclasses
from typing import Any

from advnas.arguments import did_you_mean
from advnas.strategies.advantage import Advantage
from advnas.strategies.darts import Darts
from advnas.strategies.enas import Enas
from advnas.strategies.exact_advantage import ExactAdvantage
from advnas.strategies.gdas import Gdas
from advnas.strategies.nasp import Nasp
from advnas.strategies.parsec import Parsec
from advnas.strategies.proxyless import Proxyless
from advnas.strategies.random import Random
from advnas.strategies.reinforce import Reinforce
from advnas.strategies.snas import Snas
from advnas.strategies.strategy import Feedback, Phase, State, Strategy

__all__ = ["Feedback", "Phase", "State", "Strategy", "get", "names", "options"]

_STRATEGIES: dict[str, type[Strategy]] = {
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
}


def names() -> tuple[str, ...]:
    """All strategies: the paper's first, then its competitors, sparse before dense, and the baseline last."""
    return tuple(_STRATEGIES)


def get(name: str, **options: Any) -> Strategy:
    """The strategy of that name with the given hyper-parameters, e.g. get("parsec", samples=8)."""
    kind = strategy_type(name)
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for option in options:
        if option not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise ValueError(f"Strategy {name!r} has no option {option!r}{did_you_mean(option, known)}; {takes}.")
    return kind(**options)


def strategy_type(name: str) -> type[Strategy]:
    """The class behind a name; says what was meant if there is none."""
    try:
        return _STRATEGIES[name]
    except KeyError:
        raise ValueError(
            f"There is no strategy {name!r}{did_you_mean(name, names())}. Choose one of {', '.join(names())}."
        ) from None


def options(name: str) -> dict[str, Any]:
    """The hyper-parameters of a strategy and their defaults."""
    kind = strategy_type(name)
    return {field.name: field.default for field in dataclasses.fields(kind)}  # type: ignore[arg-type]


def draws_independently(strategy: Strategy | str) -> bool:
    """Whether the processes of a search may each learn from a draw of their own; see `Strategy`."""
    kind = strategy_type(strategy) if isinstance(strategy, str) else strategy
    return bool(getattr(kind, "independent_draws", False))
