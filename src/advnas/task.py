"""A task: data, and the loss of a model on a minibatch of it."""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data.dataloader import _BaseDataLoaderIter

from advnas.notebook import table

_OF_OUTPUTS = ("torch.nn.functional", "torch.nn.modules.loss")
_EXAMPLES = {
    "loss": "def loss(model, batch): return F.cross_entropy(model(batch[0]), batch[1])",
    "metric": "def metric(model, batch): return (model(batch[0]).argmax(-1) == batch[1]).float().mean().item()",
}


@dataclass(frozen=True)
class Task:
    """The data and the loss of a search. The data are iterables of minibatches, such as DataLoaders.

    Reported losses and metrics are means over minibatches, each of which counts once: nothing says how many
    examples one has. They are exact where all minibatches have the same size, for example with `drop_last=True`, or
    where there is one: `test=[everything]`.

    Args:
        training: minibatches for the weights, iterated from the start in every epoch.
        validation: minibatches for theta, iterated from the start whenever they end.
        loss: computes the scalar loss of a model on a minibatch.
        test: minibatches to judge the answer by, from which nothing is learnt; the validation data if not given.
        metric: judges answers besides the loss, such as the accuracy on a minibatch; larger is better. A search
            records and shows that of its most likely architecture on one minibatch, once per epoch; it does not
            learn from it. Tables and reports show the name of the function, and the mean over minibatches.
        examples: how many examples or tokens the loss of one minibatch is the mean of, for strategies that need the
            number.

    Raises:
        ValueError: some of the data can be read only once.
        TypeError: the loss or the metric cannot be called with a model and a minibatch.
    """

    training: Iterable[Any]
    validation: Iterable[Any]
    loss: Callable[[nn.Module, Any], Tensor]
    test: Iterable[Any] | None = None
    metric: Callable[[nn.Module, Any], float] | None = None
    examples: int | None = None

    def __post_init__(self) -> None:
        for name, batches in self._data().items():
            refuse_read_once(batches, f"the {name} data are read again and again")
        for name, function in self._functions().items():
            _check_call(name, function)

    def __repr__(self) -> str:
        return f"Task({', '.join(f'{name}: {value}' for name, value in self._rows())})"

    def _repr_html_(self) -> str:
        return table("Task", self._rows())

    def _data(self) -> dict[str, Iterable[Any]]:
        """The data there are, by name."""
        named = {"training": self.training, "validation": self.validation, "test": self.test}
        return {name: batches for name, batches in named.items() if batches is not None}

    def _functions(self) -> dict[str, Callable[[nn.Module, Any], Any]]:
        """The loss, and the metric if there is one."""
        return {"loss": self.loss} if self.metric is None else {"loss": self.loss, "metric": self.metric}

    def _rows(self) -> list[tuple[str, str]]:
        """What there is, by name; never the data themselves."""
        return [
            *((name, _described(batches)) for name, batches in self._data().items()),
            *((name, _name_of(function)) for name, function in self._functions().items()),
        ]


def _check_call(name: str, function: Callable[[nn.Module, Any], Any]) -> None:
    """Raise TypeError for what cannot be called with a model and a minibatch, such as torch's losses of outputs."""
    called = f"The {name} of a task is called as {name}(model, batch)"
    if getattr(function, "__module__", None) in _OF_OUTPUTS:
        raise TypeError(
            f"{called}, and {_name_of(function)} takes the outputs of a model. Write {_EXAMPLES[name]}."
        )
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise TypeError(
            f"{called}, which {_name_of(function)} does not allow: {error}. Write {_EXAMPLES[name]}."
        ) from None
    except ValueError:  # nobody knows what it takes
        pass


def _described(batches: Iterable[Any]) -> str:
    count = f"{len(batches):,} minibatches" if isinstance(batches, Sized) else "minibatches"
    return f"{count} in a {type(batches).__name__}"


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def refuse_read_once(batches: Iterable[Any], use: str) -> None:
    """Raise ValueError for an iterator, unless it is somebody's own loader, which has a length and begins anew.

    Args:
        batches: the data.
        use: what is done with them, as a sentence.
    """
    begins_anew = isinstance(batches, Sized) and not isinstance(batches, _BaseDataLoaderIter)
    if isinstance(batches, Iterator) and not begins_anew:
        raise ValueError(
            f"A {type(batches).__name__} can be read only once, and {use}. Pass a list, a DataLoader, "
            "or an object whose __iter__ begins anew."
        )


def length_of(batches: Iterable[Any]) -> int | None:
    """How many minibatches a pass has; None where only reading them tells, as for an IterableDataset."""
    try:
        return len(batches) if isinstance(batches, Sized) else None
    except TypeError:  # a DataLoader has a length if its dataset has one
        return None


def mean_over(model: nn.Module, batches: Iterable[Any], of: Callable[[nn.Module, Any], Any]) -> float:
    """Return the mean over minibatches of a number such as the loss; each counts once, whatever its size.

    Args:
        model: in training or evaluation mode, which is not changed.
        batches: the minibatches.
        of: computes the number for the model on one minibatch.

    Raises:
        ValueError: there are no minibatches, or the loss takes gradients and says nothing of `torch.enable_grad`.
    """
    with torch.no_grad(), explaining_gradients():
        numbers = [float(of(model, batch)) for batch in batches]
    if not numbers:
        raise ValueError(
            "There are no minibatches to judge a model by: the data are empty, or an iterator that was read before."
        )
    return math.fsum(numbers) / len(numbers)


@contextmanager
def explaining_gradients() -> Iterator[None]:
    """Say what to write where a loss that takes gradients itself is computed under `torch.no_grad`."""
    recording = torch.is_grad_enabled()
    try:
        yield
    except RuntimeError as error:
        if recording or "does not require grad" not in str(error):
            raise
        raise ValueError(
            "The loss takes gradients itself, such as by torch.autograd.grad, and is only judged here, under "
            "torch.no_grad(). Let it compute under `with torch.enable_grad():`, from the model's call on."
        ) from error
