"""Gates: how a weight enters the network in front of a candidate's output, as cheaply as it can.

    O_i(x) = sum over the active k of w_ik O_ik(x)

A weight that asks for a gradient is a gate; d loss / d w_ik is what the backward pass gives back for it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import _SingleLevelFunction
from torch.nn.modules.batchnorm import _BatchNorm

from advnas.gates.buffers import copy_on_write
from advnas.gates.placement import GatePlacement
from advnas.gates.trees import is_weighable, map_tensors


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
                return map_tensors(_silenced, candidate(*args, **kwargs))
        if self.gate is None:
            return map_tensors(self._scale, candidate(*args, **kwargs))
        if placement.norm is not None and self.value > 0 and placement.holds:
            return placement.run_scaled(*self._scaled(placement.norm), args, kwargs)
        if placement.front and self.value > 0 and _is_one_tensor(args) and placement.holds:
            return candidate(self._weigh(args[0]), **kwargs)
        return map_tensors(self._weigh, candidate(*args, **kwargs))

    def _scale(self, tensor: Tensor) -> Tensor:
        return tensor * self.value if is_weighable(tensor) else tensor

    def _weigh(self, tensor: Tensor) -> Tensor:
        assert self.gate is not None
        if not is_weighable(tensor):
            return tensor
        gate = self.gate if self.gate.device == tensor.device else self.gate.to(tensor.device)
        if self.value != 1 or (tensor.numel() < _SMALL and tensor.dtype in _SUMMED_AS_THEY_ARE):
            return tensor * gate
        return unit_gate(tensor, gate)

    def _scaled(self, norm: _BatchNorm) -> tuple[Tensor, Tensor | None]:
        """Gamma and beta of a norm, multiplied by the gate."""
        beta = norm._parameters["bias"]
        return self._gamma(norm, norm._parameters["weight"]), None if beta is None else beta * self._like(beta)

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
        ctx.save_for_backward(output, gate)
        return copy_on_write(output)  # not a view: whatever comes next may work in place

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        output, gate = ctx.saved_tensors
        if torch.is_grad_enabled():  # this slope will have a slope itself, in which w must stand, though it is 1
            return gradient * gate, inner_product(gradient, output)
        return gradient, inner_product(gradient, output)


# Without the Python layer of torch.autograd.Function for torch.func transforms: a tenth of a gate's cost.
unit_gate: Callable[[Tensor, Tensor], Tensor] = _UnitGate.apply  # type: ignore[attr-defined]


def inner_product(one: Tensor, other: Tensor) -> Tensor:
    """The sum of all products, for tensors of one shape: a real number, summed in 32 bits at least.

    Of complex tensors, real and imaginary parts count as numbers of their own: a gate is real.
    """
    if one.is_complex() or other.is_complex():
        kind = torch.promote_types(one.dtype, other.dtype)
        return inner_product(torch.view_as_real(one.to(kind)), torch.view_as_real(other.to(kind)))
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


def _silenced(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if is_weighable(tensor) else tensor


def _is_one_tensor(args: tuple[Any, ...]) -> bool:
    return len(args) == 1 and isinstance(args[0], Tensor) and is_weighable(args[0])
