"""Gates: how a weight enters the network in front of a candidate's output, as cheaply as it can.

    O_i(x) = sum over the active k of w_ik O_ik(x)

A weight that asks for a gradient is a gate; d loss / d w_ik is what the backward pass gives back for it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import _SingleLevelFunction
from torch.nn.modules.batchnorm import _BatchNorm

from advnas.gates.trees import map_tensors


@dataclass(frozen=True)
class GatePlacement:
    """Where a candidate lets a gate in; found once, used in every step.

    norm: the BatchNorm whose scale is that of the output. The gate becomes its gamma: exact, and nothing more
        is kept for the backward pass.
    front: the candidate passes a positive scale on, f(w x) = w f(x), as pooling does. The gate stands before
        it: what is kept is the input, which others often keep anyway.
    Neither: the gate stands behind the candidate, and its output is kept.
    """

    candidate: nn.Module
    norm: _BatchNorm | None
    front: bool


def find_placement(candidate: nn.Module) -> GatePlacement:
    """The cheapest place for a gate on this candidate."""
    return GatePlacement(candidate, last_norm(candidate), _passes_scale(candidate))


@dataclass(slots=True)
class ActiveCandidate:
    """One active candidate in one step: its index, its gate (None: no gradient wanted) and the weight's value.

    gammas: the gate as scale of a BatchNorm, by its width; one for all tied choices.
    """

    index: int
    gate: Tensor | None
    value: float
    gammas: dict[int, Tensor] | None = None

    def run(self, placement: GatePlacement, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """w O(x)."""
        candidate = placement.candidate
        if self.gate is None and self.value == 0:
            with torch.no_grad():
                return map_tensors(torch.zeros_like, candidate(*args, **kwargs))
        if self.gate is None:
            return map_tensors(lambda leaf: leaf * self.value, candidate(*args, **kwargs))
        if placement.norm is not None and self.value > 0:
            return self._run_scaled(placement.norm, candidate, args, kwargs)
        if placement.front and self.value > 0 and len(args) == 1 and isinstance(args[0], Tensor):
            return candidate(self._weigh(args[0]), **kwargs)
        return map_tensors(self._weigh, candidate(*args, **kwargs))

    def _weigh(self, tensor: Tensor) -> Tensor:
        assert self.gate is not None
        gate = self.gate if self.gate.device == tensor.device else self.gate.to(tensor.device)
        if self.value != 1 or (tensor.numel() < _SMALL and tensor.dtype in _SUMMED_AS_THEY_ARE):
            return tensor * gate
        return unit_gate(tensor, gate)

    def _run_scaled(
        self, norm: _BatchNorm, candidate: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run with gamma and beta of `norm` multiplied by the gate."""
        gamma, beta = norm._parameters["weight"], norm._parameters["bias"]
        norm._parameters["weight"] = self._gamma(norm, gamma)  # type: ignore[assignment]
        if beta is not None:
            norm._parameters["bias"] = beta * self._like(beta)  # type: ignore[assignment]
        try:
            return candidate(*args, **kwargs)
        finally:
            norm._parameters["weight"], norm._parameters["bias"] = gamma, beta

    def _gamma(self, norm: _BatchNorm, gamma: Tensor | None) -> Tensor:
        if gamma is not None:
            return gamma * self._like(gamma)
        if self.gammas is None:
            self.gammas = {}
        if norm.num_features not in self.gammas:
            like = self._like(norm.running_mean) if norm.running_mean is not None else self.gate
            assert like is not None
            # contiguous: torch's CPU batch_norm backward is silently wrong for channels_last and a stride of 0
            self.gammas[norm.num_features] = like.expand(norm.num_features).contiguous()
        return self.gammas[norm.num_features]

    def _like(self, tensor: Tensor) -> Tensor:
        assert self.gate is not None
        return self.gate.to(tensor.device, tensor.dtype)


@dataclass(frozen=True)
class Node:
    """The sum of what some decisions return, read by other decisions alone; both by their number."""

    makers: tuple[int, ...]
    readers: tuple[int, ...]

    def fold_gate(self, gates: list[Tensor | None]) -> None:
        """Do without the last reader's gate, where all readers pass a scale on. No output or slope changes.

        Reader r takes in w_r x with x = sum over the makers m of v_m O_m. With v_m w_last for every v_m, and
        w_r / w_last for every w_r, it takes in the same, and w_last / w_last is no gate at all. Its slope is now
        found by those of the makers, which are often free, instead of a dot product with x.
        """
        *others, last = self.readers
        moved, gates[last] = gates[last], None
        assert moved is not None  # a decision reads one node only
        for maker in self.makers:
            gate = gates[maker]
            gates[maker] = moved if gate is None else gate * moved
        for other in others:
            gate = gates[other]
            assert gate is not None
            gates[other] = gate / moved


class _UnitGate(_SingleLevelFunction):
    """w O at w = 1. Its backward pass hands the gradient on untouched and takes one dot product for the gate,
    where a multiplication would scale the gradient, form w O's elementwise product and sum it.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, gate: Tensor) -> Tensor:
        ctx.save_for_backward(output)
        return copy_on_write(output)  # not a view: whatever comes next may work in place

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled():
            raise RuntimeError("A gate of 1 can be differentiated only once; do not use create_graph=True here.")
        (output,) = ctx.saved_tensors
        return gradient, inner_product(gradient, output)


# Without the Python layer of torch.autograd.Function for torch.func transforms: a tenth of a gate's cost.
unit_gate: Callable[[Tensor, Tensor], Tensor] = _UnitGate.apply  # type: ignore[attr-defined]


def copy_on_write(tensor: Tensor) -> Tensor:
    """A copy that costs nothing until someone writes into it or its original."""
    if not tensor.is_cpu:
        return tensor.clone()
    try:
        return tensor._lazy_clone()
    except RuntimeError:  # memory that torch does not own alone, such as numpy's or another process's
        return tensor.clone()


def inner_product(one: Tensor, other: Tensor) -> Tensor:
    """The sum of all products, for tensors of one shape: a scalar, summed in 32 bits at least."""
    if other.dtype in _SUMMED_AS_THEY_ARE and one.dtype == other.dtype:
        if one.is_contiguous() and other.is_contiguous():
            return torch.dot(one.view(-1), other.view(-1))
        if one.stride() == other.stride() and _has_no_gaps(other):
            size = (other.numel(),)
            return torch.dot(one.as_strided(size, (1,)), other.as_strided(size, (1,)))
    return (one * other).sum(dtype=torch.promote_types(other.dtype, torch.float32))


_SUMMED_AS_THEY_ARE = (torch.float32, torch.float64)
_SMALL = 2**13  # elements, below which a call of Python costs more than the passes over memory that it saves


def _has_no_gaps(tensor: Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


# f(w x) = w f(x) for w > 0: a gate in front of these is a gate behind them.
_POSITIVELY_HOMOGENEOUS = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.Identity,
    nn.Dropout,
    nn.Dropout2d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.AdaptiveAvgPool2d,
    nn.Flatten,
)


def last_norm(candidate: nn.Module) -> _BatchNorm | None:
    """The BatchNorm whose scale is the scale of the candidate's output, if there is one.

    A gate can then be its gamma: exact, and nothing more is kept for the backward pass. Found in any
    nn.Sequential that ends in a BatchNorm, also when ReLU, dropout or pooling follow; a module of your own
    says so by an attribute `last_norm`.
    """
    if isinstance(candidate, _BatchNorm):
        only_scales = isinstance(candidate, nn.SyncBatchNorm) or type(candidate).forward is _BatchNorm.forward
        return candidate if only_scales else None
    if isinstance(candidate, nn.Sequential) and type(candidate).forward is nn.Sequential.forward:
        children = list(candidate)
        while children and type(children[-1]) in _POSITIVELY_HOMOGENEOUS:
            children.pop()
        norm = last_norm(children[-1]) if children else None
        uses = [module for _, module in candidate.named_modules(remove_duplicate=False)].count(norm)
        return norm if uses == 1 else None
    declared = getattr(candidate, "last_norm", None)
    return declared if isinstance(declared, _BatchNorm) else None


def _passes_scale(candidate: nn.Module) -> bool:
    if isinstance(candidate, nn.Sequential) and type(candidate).forward is nn.Sequential.forward:
        return len(candidate) > 0 and all(_passes_scale(part) for part in candidate)
    return type(candidate) in _POSITIVELY_HOMOGENEOUS
