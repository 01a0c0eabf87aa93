"""Fresh weights from a seed, by every layer's own `reset_parameters`; a warning where they began otherwise."""

import math
import warnings
from collections.abc import Iterator, Mapping
from numbers import Integral

import torch
from torch import Tensor, nn

from advnas.randomness import seeded

Moments = tuple[float, float]
_ERRORS = 4.0  # standard errors beyond which two samples have no common distribution
_SHARE = 0.2  # of the deviation; less makes no difference to a training
_FEWEST = 16  # numbers that a deviation is estimated from
_SHOWN = 4


class InitializationWarning(UserWarning):
    """Fresh weights from a seed are not distributed as the model's own constructor makes them."""


def check_fresh(fresh: object) -> None:
    """Raise TypeError unless fresh weights are asked for by a seed or by a function; None asks for none."""
    what = "derive(fresh=make_model), with the function or the class that makes your model, or a seed, fresh=0."
    if isinstance(fresh, nn.Module):
        raise TypeError(f"fresh is a {type(fresh).__name__} that is made already. Write {what}")
    whole = isinstance(fresh, Integral) and not isinstance(fresh, bool)
    if fresh is not None and not whole and not callable(fresh):
        raise TypeError(f"fresh must be a seed or a function that makes the model, got {fresh!r}. Write {what}")


def moments(weight: Tensor) -> Moments | None:
    """Mean and standard deviation of a tensor; None where it has none, or no values."""
    if weight.is_meta or not weight.is_floating_point() or not weight.numel():
        return None
    deviation, mean = torch.std_mean(weight.detach().float(), correction=0)
    return mean.item(), deviation.item()


def reset(module: nn.Module, seed: int, initial: Mapping[int, Moments]) -> None:
    """Initialise all trainable weights from a seed, leaving the global random state as it was.

    Frozen weights keep their values, and a part with no other weights keeps its buffers too: they were frozen
    because their values matter, as those of a pretrained network under adapters.

    Args:
        module: whose layers all know `reset_parameters`.
        seed: of the weights.
        initial: mean and standard deviation that weights had when their constructor had made them, by id.

    Raises:
        TypeError: there are trainable parameters that no `reset_parameters` sets.
    """
    before = {name: weight.detach().clone() for name, weight in module.named_parameters()}
    trainable = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
    with torch.no_grad():
        for weight in trainable.values():
            weight.fill_(math.nan)  # what is still there afterwards was not set by anybody
    with seeded(seed, *{weight.device for weight in module.parameters()}):
        for part in _thawed(module):
            own = getattr(part, "reset_parameters", None)
            if callable(own):
                own()
    left = [name for name, weight in trainable.items() if weight.isnan().any()]
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if left or not weight.requires_grad:
                weight.copy_(before[name])
    if left:
        raise TypeError(
            f"Cannot make fresh weights from a seed: no reset_parameters() sets {_named(left)}. Write "
            "fresh=make_model with the function that makes your model, or give the class that holds them that "
            "method."
        )
    _warn_of_changes(trainable, initial)


def _thawed(module: nn.Module) -> Iterator[nn.Module]:
    """The parts of a module, except those whose weights are all frozen, with everything in them."""
    weights = list(module.parameters())
    if weights and not any(weight.requires_grad for weight in weights):
        return
    yield module
    for child in module.children():
        yield from _thawed(child)


def _warn_of_changes(weights: Mapping[str, Tensor], initial: Mapping[int, Moments]) -> None:
    changed = [
        name for name, weight in weights.items() if id(weight) in initial and _differ(initial[id(weight)], weight)
    ]
    if changed:
        warnings.warn(
            "Fresh weights from a seed are made by reset_parameters(), which initialises "
            f"{_named(changed)} otherwise than they were when the search was made. If that was an initialisation "
            "of your own, write fresh=make_model with the function that makes your model.",
            InitializationWarning,
            stacklevel=4,
        )


def _differ(before: Moments, weight: Tensor) -> bool:
    """Whether two samples of this size have other means or deviations than chance explains, by far.

    A constant is told from a sample however few they are; a single number says nothing.
    """
    now = moments(weight)
    assert now is not None
    spread, count = max(before[1], now[1]), weight.numel()
    most = spread * max(_SHARE, _ERRORS * math.sqrt(2 / count)) + 1e-6
    moved = abs(before[0] - now[0]) > most or abs(before[1] - now[1]) > most
    constant = min(before[1], now[1]) == 0.0
    if count == 1:
        return False
    if constant:
        return moved or spread > 0
    return moved and count >= _FEWEST


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else ""
    return ", ".join(names[:_SHOWN]) + more
