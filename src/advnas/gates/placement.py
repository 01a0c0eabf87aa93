"""GatePlacement: the cheapest place for a gate on a candidate that gives its output and slopes exactly."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from advnas.gates.buffers import BufferSnapshot
from advnas.gates.trees import map_tensors, tensors_in
from advnas.gates.trust import (
    POSITIVELY_HOMOGENEOUS,
    is_batch_norm,
    is_sequence,
    is_torchs_own,
    is_unhooked,
    no_global_hooks,
)
from advnas.randomness import GeneratorStates


@dataclass
class GatePlacement:
    """Where a candidate lets a gate in; found once, used in every step.

    norm: the BatchNorm whose scale is that of the output. The gate becomes its gamma: exact, and nothing more
        is kept for the backward pass.
    front: the candidate passes a positive scale on, f(w x) = w f(x), as pooling does. The gate stands before
        it: what is kept is the input, which others often keep anyway.
    Neither: the gate stands behind the candidate, and its output is kept.

    trusted: the modules that this is concluded from. Where one of them has a hook, the gate stands behind.
    declared: that the norm is the last was said by the candidate, and nobody has tried it yet.
    """

    candidate: nn.Module
    norm: _BatchNorm | None
    front: bool
    trusted: tuple[nn.Module, ...] = ()
    declared: bool = False

    def __post_init__(self) -> None:
        self._own = {} if self.norm is None else dict(self.norm._parameters)

    @property
    def holds(self) -> bool:
        """Whether the modules still compute what this was concluded from: a hook may come at any time."""
        return all(map(is_unhooked, self.trusted)) and no_global_hooks()

    def run_scaled(self, gamma: Tensor, beta: Tensor | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the candidate while its norm scales and shifts by other tensors."""
        assert self.norm is not None
        try:
            self.norm._parameters["weight"] = gamma  # type: ignore[assignment]
            self.norm._parameters["bias"] = beta  # type: ignore[assignment]
            return self.candidate(*args, **kwargs)
        finally:
            self.put_back()

    def put_back(self) -> None:
        """Give the norm its own parameters again, after an interrupt at any place."""
        if self.norm is not None:
            self.norm._parameters.update(self._own)

    def try_declared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Run the candidate twice, with other scales of the norm it declares, and see whether its output follows.

        If not, forget the norm. Buffers and torch's generators are as before.
        """
        assert self.norm is not None
        buffers, random = BufferSnapshot(self.candidate.modules()), GeneratorStates(_devices(args, kwargs))
        try:
            once, often = (self._outputs(factor, random, args, kwargs) for factor in (1.0, _FACTOR))
        finally:
            buffers.put_back()
            random.restore()
        self.declared = False
        if not _are_in_proportion(once, often):
            self.norm = None
        return self.norm is not None

    def _outputs(
        self, factor: float, random: GeneratorStates, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Tensor]:
        """What the candidate returns if its norm scales by a factor, and shifts by half of it."""
        assert self.norm is not None
        like = next(self.candidate.parameters(), self.norm.running_mean)
        like = torch.zeros(()) if like is None else like
        gamma = torch.full((self.norm.num_features,), factor, dtype=like.dtype, device=like.device)
        args, kwargs = map_tensors(torch.clone, (args, kwargs))  # it may work in place
        random.restore()
        with torch.no_grad():
            return tensors_in(self.run_scaled(gamma, gamma / 2, args, kwargs))


_FACTOR = 8.0  # a power of two scales without rounding, and takes what is normalised far beyond any saturation


def _are_in_proportion(once: list[Tensor], often: list[Tensor]) -> bool:
    return len(once) == len(often) and all(
        one.shape == other.shape and (_FACTOR * one - other).abs().amax() <= 0.01 * other.abs().amax()
        for one, other in zip(once, often, strict=True)
        if one.is_floating_point() and one.numel() > 0
    )


def _devices(args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[torch.device]:
    return {tensor.device for tensor in tensors_in((args, kwargs))}


def find_placement(candidate: nn.Module) -> GatePlacement:
    """The cheapest place for a gate on this candidate.

    A last BatchNorm is found in any nn.Sequential that ends in one of torch, also when ReLU, dropout or pooling
    follow; a module of your own says so by an attribute `last_norm`, which is tried out once.
    """
    if _passes_scale(candidate):
        return GatePlacement(candidate, None, True, tuple(candidate.modules()))
    chain = _find_norm(candidate)
    if chain is None:
        return GatePlacement(candidate, None, False)
    norm, trusted, declared = chain
    return GatePlacement(candidate, norm, False, trusted, declared)


_Chain = tuple[_BatchNorm, tuple[nn.Module, ...], bool]


def _find_norm(candidate: nn.Module) -> _Chain | None:
    """The norm, the modules that it takes to conclude that it is the last to scale, and whether one declares it."""
    if is_batch_norm(candidate):
        assert isinstance(candidate, _BatchNorm)
        return candidate, (candidate,), False
    if not is_sequence(candidate):
        return _find_declared(candidate)
    children = list(candidate.children())
    after: list[nn.Module] = []
    while children and is_torchs_own(children[-1]) and type(children[-1]) in POSITIVELY_HOMOGENEOUS:
        after.append(children.pop())
    found = _find_norm(children[-1]) if children else None
    if found is None or _uses(candidate, found[0]) != 1:
        return None
    norm, trusted, declared = found
    return norm, (candidate, *after, *trusted), declared


def _find_declared(candidate: nn.Module) -> _Chain | None:
    if "last_norm" not in candidate._modules and not hasattr(type(candidate), "last_norm"):
        return None  # a wrapper, such as torch.compile's, may answer for what is inside
    norm = getattr(candidate, "last_norm", None)
    if not is_batch_norm(norm):
        return None
    assert isinstance(norm, _BatchNorm)
    return norm, tuple(candidate.modules()), True


def _uses(candidate: nn.Module, norm: nn.Module) -> int:
    return [module for _, module in candidate.named_modules(remove_duplicate=False)].count(norm)


def _passes_scale(candidate: nn.Module) -> bool:
    """Whether f(w x) = w f(x). Not what works in place: it would write into the product unnoticed."""
    if is_sequence(candidate):
        return len(list(candidate.children())) > 0 and all(map(_passes_scale, candidate.children()))
    homogeneous = is_torchs_own(candidate) and type(candidate) in POSITIVELY_HOMOGENEOUS
    return homogeneous and not getattr(candidate, "inplace", False)
