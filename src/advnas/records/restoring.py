"""Put a state that was read from a file into place: it fits and is taken over whole, or nothing is changed."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

State = Mapping[str, Any]


def take_over(state: State, *, now: State, put: Callable[[State], object], moved: Callable[[], State]) -> None:
    """Replace what stands now by a state that is built like it; raise ValueError and leave it as it was if not.

    put: puts a state into place and shares no memory with it. moved: takes a step that may go anywhere and tells
    the state after it; only that shows what an optimiser keeps. All is checked before anything is put: torch does
    not look at an optimiser's state, and a fused step reads past the end of a tensor that is too short.
    """
    before = copy.deepcopy(now)
    try:
        put(before)  # so that the step below does not move `state`, should that be the very state that stands now
        after = moved()
        put(before)
        check_form(state, [before, after, _without_optimizer_states(before)], "state")
        put(state)
    except Exception as error:  # modules, optimisers and generators refuse what they are given in ways of their own
        put(before)
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ValueError(kind + " ".join(str(error).split())) from error


def _without_optimizer_states(state: Any) -> Any:
    """As it was before the first step: an earlier state may be gone back to."""
    if not isinstance(state, Mapping):
        return state
    if "param_groups" in state:
        return {**state, "state": {}}
    return {key: _without_optimizer_states(value) for key, value in state.items()}


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


def put_optimizer(optimizer: Optimizer, state: State) -> None:
    """Load an optimiser's state without sharing its memory; it must speak of the same parameters."""
    numbers = [group["params"] for group in optimizer.state_dict()["param_groups"]]
    if [group["params"] for group in state["param_groups"]] != numbers:
        raise ValueError(f"an optimiser's groups of parameters should be {numbers}")
    strangers = set(state["state"]) - {number for group in numbers for number in group}
    if strangers:
        raise ValueError(f"an optimiser has no parameters {strangers}")
    optimizer.load_state_dict(copy.deepcopy(dict(state)))


def blank_step(optimizer: Optimizer) -> None:
    """A step with gradients of zero; weight decay and momentum still move the parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


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
