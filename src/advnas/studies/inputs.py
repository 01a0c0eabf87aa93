"""What the loss of a task calls the network with: for costs of real inputs, and for files that take tensors."""

import inspect

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from advnas.costs import Arguments
from advnas.costs.observation import call
from advnas.modes import evaluating
from advnas.randomness import seeded
from advnas.search import Search
from advnas.task import Task


def called_with(model: nn.Module, task: Task) -> Arguments:
    """Find the arguments of the first call of the model by the loss, on a validation minibatch.

    Raises:
        ValueError: the loss does not call it.
    """
    calls: list[Arguments] = []
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append(Arguments(args, kwargs)), with_kwargs=True
    )
    try:
        with torch.no_grad(), seeded(0), evaluating(model):
            task.loss(model, next(iter(task.validation)))
    finally:
        hook.remove()
    if not calls:
        raise ValueError(
            "The loss does not call the model, so nobody knows its inputs. Let it call model(...) itself, or use "
            "advnas.costs and advnas.export in Python with inputs of yours."
        )
    return calls[0]


def one_example(search: Search, task: Task) -> Arguments:
    """What the loss calls the network with, for one example where it takes batches of one; else for a minibatch."""
    with search.space.running(search.argmax({})):
        inputs = called_with(search.model, task)
        single: Arguments = tree_map_only(Tensor, lambda tensor: tensor[:1] if tensor.dim() else tensor, inputs)
        try:
            with torch.no_grad(), evaluating(search.model):
                call(search.model, single)
        except (RuntimeError, ValueError, IndexError):
            return inputs
    return single


def example_inputs(model: nn.Module, task: Task) -> tuple[Tensor, ...]:
    """What the loss calls the model with, as tensors in the order of its forward: the inputs of a file.

    Raises:
        ValueError: it is called with something else.
    """
    inputs = called_with(model, task)
    if not inputs.kwargs and all(isinstance(argument, Tensor) for argument in inputs.args):
        return inputs.args
    bound = inspect.signature(model.forward).bind(*inputs.args, **inputs.kwargs)
    if bound.kwargs or not all(isinstance(argument, Tensor) for argument in bound.args):
        told = ", ".join(f"{name}: {type(value).__name__}" for name, value in bound.arguments.items())
        raise ValueError(
            f"The loss calls the model with more than tensors in order ({told}), which a file cannot take. Use "
            "export() of advnas.export in Python, on a module that takes tensors."
        )
    return bound.args


def why_no_file(model: nn.Module, task: Task) -> str:
    """Why `advnas export` cannot write a model; empty where it can."""
    try:
        example_inputs(model, task)
    except ValueError as error:
        return str(error)
    return ""
