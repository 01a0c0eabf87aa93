"""Check a state that was read from a file before it is taken over: it fits, or nothing is changed."""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from advnas.records.plain import plain

State = Mapping[str, Any]


@contextmanager
def rolled_back_on_failure(put_back: Callable[[], object]) -> Iterator[None]:
    """Call `put_back` if loading a state fails, and raise ValueError that says why."""
    try:
        yield
    except ValueError:
        put_back()
        raise
    except Exception as error:  # modules, optimisers and generators refuse what they are given in ways of their own
        put_back()
        raise ValueError(f"{type(error).__name__}: {' '.join(str(error).split())}") from error


def check_settings(now: State, before: State) -> None:
    """Raise ValueError where settings differ from those of a saved state."""
    check_form(before, [{}], "settings")
    changed = [
        f"{key} is {now.get(key)} now and was {before.get(key)}"
        for key in {**before, **now}
        if repr(now.get(key)) != repr(before.get(key))
    ]
    if changed:
        raise ValueError(f"other settings: {'; '.join(changed)}")


def check_form(saved: Any, examples: Sequence[Any], name: str) -> None:
    """Raise ValueError unless a value is built like the examples: what stood at its place at different times.

    Mappings need the names that all examples have, sequences the same length, tensors the same dtype and shape.
    Where the examples differ, a value may be like any of them, and a size or length may be any. A name that none of
    them has says nothing: some states grow later.
    """
    alike = [example for example in examples if _kind(example) == _kind(saved)]
    if not alike:
        raise ValueError(f"{name} is {_describe(saved)}, and should be {_describe(examples[-1])}")
    if isinstance(saved, Mapping):
        for key in dict.fromkeys(key for example in alike for key in example):
            inner = [example[key] for example in alike if key in example]
            if key in saved:
                check_form(saved[key], inner, f"{name}.{key}")
            elif len(inner) == len(alike):
                raise ValueError(f"{name} has no {key!r}")
    elif isinstance(saved, list | tuple):
        counts = len({len(example) for example in alike}) > 1
        if not counts and len(saved) != len(alike[0]):
            raise ValueError(f"{name} has {len(saved)} entries, and should have {len(alike[0])}")
        every = [entry for example in alike for entry in example]
        for number, value in enumerate(saved):
            like = every if counts else [example[number] for example in alike]
            check_form(value, like, f"{name}.{number}")
    elif isinstance(saved, Tensor) and not _fits(saved, [example.shape for example in alike]):
        raise ValueError(f"{name} is {_describe(saved)}, and should be {_describe(alike[-1])}")


def check_optimizer(optimizer: Optimizer, saved: Any, name: str, *, whole: bool = True) -> None:
    """Raise ValueError unless a state speaks of this optimiser's parameters, with tensors of the right kind.

    torch does not look at what it loads into an optimiser, and a fused step reads past the end of a tensor that is
    too short.

    Args:
        optimizer: what the state is for.
        saved: a state_dict of an optimiser.
        name: how errors speak of it.
        whole: whether nothing may be missing; a disk store keeps most of it elsewhere.
    """
    now = plain(optimizer.state_dict(), name)
    check_form(saved, [{"state": {}, "param_groups": now["param_groups"]}], name)
    numbers = [group["params"] for group in now["param_groups"]]
    if [group["params"] for group in saved["param_groups"]] != numbers:
        raise ValueError(f"{name}: an optimiser's groups of parameters should be {numbers}")
    known: dict[Any, tuple[Tensor, State]] = {}
    for group, own in zip(optimizer.param_groups, numbers, strict=True):
        example = _kept_for_an_example(type(optimizer), group)
        known |= {number: (weight, example) for number, weight in zip(own, group["params"], strict=True)}
    for number, kept in saved["state"].items():
        if number not in known:
            raise ValueError(f"{name}: the optimiser has no parameter {number!r}")
        weight, example = known[number]
        like = {key: _like(value, weight) for key, value in example.items()} | now["state"].get(number, {})
        if not whole and isinstance(kept, Mapping):
            like = {key: value for key, value in like.items() if key in kept}
        check_form(kept, [like], f"{name}.state.{number}")


def optimizer_settings(optimizer: Optimizer) -> str:
    """An optimiser as its user wrote it, without what makes no difference to its results.

    Call before the first step: learning rates are annealed.
    """
    groups = [
        ", ".join(f"{key}={value}" for key, value in group.items() if key not in _NO_DIFFERENCE)
        for group in optimizer.param_groups
    ]
    return f"{type(optimizer).__name__}({'; '.join(dict.fromkeys(groups))})"


_NO_DIFFERENCE = ("params", "fused", "foreach", "capturable", "differentiable")

_EXAMPLE = (2, 3)


def _kept_for_an_example(kind: type[Optimizer], group: Mapping[str, Any]) -> State:
    """What an optimiser of this kind keeps for a parameter, learnt by one step on a small one of its own.

    Empty where such an optimiser cannot be made: then a state is compared with what stands now alone.
    """
    takes = inspect.signature(kind).parameters.keys() - {"params"}
    example = torch.nn.Parameter(torch.ones(_EXAMPLE))
    example.grad = torch.zeros(_EXAMPLE)
    try:
        optimizer = kind(
            [example], **{key: value for key, value in group.items() if key in takes and key != "params"}
        )
        optimizer.step()
    except Exception:  # whatever somebody's own optimiser needs beyond its group
        return {}
    kept = optimizer.state[example]
    return {
        key: value for key, value in kept.items() if isinstance(value, Tensor) and value.shape in ((), _EXAMPLE)
    }


def _like(value: Tensor, weight: Tensor) -> Tensor:
    """The same for another parameter: a tensor shaped like the example is shaped like the parameter."""
    return weight.detach() if value.shape == _EXAMPLE else value


def load_optimizer(optimizer: Optimizer, state: State) -> None:
    """Load an optimiser's state without sharing its memory."""
    optimizer.load_state_dict(copy.deepcopy(dict(state)))


def _kind(value: Any) -> object:
    """Values of one kind may stand for each other, once their parts agree."""
    if isinstance(value, Tensor):
        return value.dtype, value.layout, value.dim(), value.is_meta
    if isinstance(value, Mapping):
        return Mapping
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float  # a learning rate of 1 is annealed to 0.5
    return type(value)


def _fits(saved: Tensor, shapes: list[torch.Size]) -> bool:
    """Sizes in which the examples differ count something, such as draws that are being gathered."""
    sizes = zip(saved.shape, *shapes, strict=True)
    return all(size in known or len(set(known)) > 1 for size, *known in sizes)


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return "nothing" if value is None else f"of type {type(value).__name__}"
