"""Observe what every candidate adds to one pass of the network, each on its real inputs."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from advnas.modes import evaluating
from advnas.space import SearchSpace
from advnas.structure import ALWAYS, Condition, names_of


class Arguments(NamedTuple):
    """What the network is called with, where some arguments go by name: model(*args, **kwargs)."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


Example = Tensor | tuple[Any, ...] | Arguments
"""What the network is called with: one tensor, a tuple of all arguments, or `Arguments`."""


@dataclass
class _Span:
    """A choice under way. inner: what the choices inside it have added."""

    condition: Condition
    start: float
    inner: float = 0.0


def observe(
    space: SearchSpace, architecture: Mapping[str, str], example: Example, reading: Callable[[], float]
) -> dict[Condition, float]:
    """Run one architecture; return by condition what each candidate added to a meter by itself.

    Choices inside a candidate count apart from it, and tied choices and time steps add up. What no candidate added
    stands under ALWAYS.

    Args:
        space: whose model runs.
        architecture: what it runs.
        example: its inputs.
        reading: of a meter that only rises, such as a clock.
    """
    names, found = names_of(space), defaultdict[Condition, float](float)
    spans = [_Span(ALWAYS, 0.0)]

    def enter(choice: nn.Module, args: Any) -> None:
        condition = spans[-1].condition | {(names[choice], architecture[names[choice]])}
        spans.append(_Span(condition, reading()))

    def leave(choice: nn.Module, args: Any, output: Any) -> None:
        span = spans.pop()
        added = reading() - span.start
        found[span.condition] += added - span.inner
        spans[-1].inner += added

    with ExitStack() as hooks, space.running(architecture), computing(space.model):
        for choice in names:
            hooks.enter_context(_removed(choice.register_forward_pre_hook(enter)))
            hooks.enter_context(_removed(choice.register_forward_hook(leave)))
        start = reading()
        call(space.model, example)
        found[ALWAYS] = reading() - start - spans[0].inner
    return dict(found)


@contextmanager
def _removed(hook: Any) -> Iterator[None]:
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def computing(model: nn.Module) -> Iterator[None]:
    """Inference: evaluation mode, without a graph; every module gets its own mode back."""
    with evaluating(model), torch.no_grad():
        yield


def call(model: nn.Module, example: Example) -> Any:
    """Call a model on the example; operations that work in place get a copy of it."""
    example = pytree.tree_map_only(Tensor, Tensor.clone, example)
    if isinstance(example, Arguments):
        return model(*example.args, **example.kwargs)
    return model(*example) if isinstance(example, tuple) else model(example)
