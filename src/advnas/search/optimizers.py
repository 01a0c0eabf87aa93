"""The optimisers that people bring: a function that makes one, or one that is ready."""

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from advnas.search.step import OptimizerOf, refuse_closures


def weight_optimizer_of(given: OptimizerOf | Optimizer, model: nn.Module) -> Optimizer:
    """Return the optimiser of all weights of a model.

    Args:
        given: called with the list of the parameters, or an optimiser of (some of) them, which is taken as it is.
        model: whose parameters they are.

    Raises:
        ValueError: a ready optimiser is of another model, or computes the loss itself.
        TypeError: it is neither.
    """
    made = given if isinstance(given, Optimizer) else _made(given, list(model.parameters()), "weight_optimizer")
    own = {id(parameter) for parameter in model.parameters()}
    strange = sum(id(parameter) not in own for group in made.param_groups for parameter in group["params"])
    if strange:
        raise ValueError(
            f"{strange} parameters of the given {type(made).__name__} are not those of the model. Make it from "
            "model.parameters() after the model is complete, or give a function that makes it."
        )
    return refuse_closures(made)


def theta_optimizer_of(given: OptimizerOf, parameters: list[nn.Parameter]) -> Optimizer:
    """Return the optimiser of theta.

    Args:
        given: called with theta's parameters.
        parameters: of theta.

    Raises:
        ValueError: it computes the loss itself.
        TypeError: it is an optimiser that is ready, or makes none.
    """
    if isinstance(given, Optimizer):
        raise TypeError(
            f"architecture_optimizer must make an optimiser of theta, which the search itself makes, got a ready "
            f"{type(given).__name__} of something else. Write {_example('architecture_optimizer', type(given))}."
        )
    return refuse_closures(_made(given, parameters, "architecture_optimizer"))


def _made(given: OptimizerOf, parameters: list[nn.Parameter], name: str) -> Optimizer:
    """Call a function that makes an optimiser from parameters; say what `name` takes if it is none."""
    what = f"{name} must be a function that makes an optimiser from a list of parameters"
    if not callable(given):
        raise TypeError(f"{what}, got {given!r}. Write {_example(name)}.")
    try:
        made = given(parameters)
    except AttributeError as error:
        if error.obj is not parameters:
            raise
        raise TypeError(
            f"{what}, and looked for .{error.name} in that list, as of a model. Write {_example(name)}."
        ) from error
    if not isinstance(made, Optimizer):
        raise TypeError(f"{what}, and gave {type(made).__name__}. Write {_example(name)}.")
    return made


def _example(name: str, kind: type[Optimizer] = torch.optim.AdamW) -> str:
    return f"{name}=partial(torch.optim.{kind.__name__}, lr=1e-3)"


def factory_of(given: OptimizerOf | Optimizer) -> OptimizerOf:
    """Return what makes such an optimiser for other parameters, as a retraining needs it."""
    if not isinstance(given, Optimizer):
        return given
    groups = [{key: value for key, value in group.items() if key != "params"} for group in given.param_groups]
    return partial(_another, type(given), groups)


def _another(
    kind: type[Optimizer], groups: Sequence[Mapping[str, Any]], parameters: list[nn.Parameter]
) -> Optimizer:
    if len(groups) > 1:
        raise ValueError(
            f"The {kind.__name__} of the search has {len(groups)} parameter groups, and nobody knows which weights "
            "of another module belong to which. Give Search a function that makes the optimiser from parameters."
        )
    takes = inspect.signature(kind).parameters
    return kind(parameters, **{key: value for key, value in groups[0].items() if key in takes})
