"""Choice: the candidates at one decision. It runs the active ones and weighs their outputs."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm


class Choice(nn.Module):
    """A decision that is open: any of `candidates` may stand here.

        O_i(x) = sum_j a_ij O_ij(x; w_ij)          (eq. forward)

    Put it wherever a module may stand. Candidates take the same inputs, any number of them, and return outputs
    of the same shape (a tensor, or tuples, lists and dicts of tensors). Choices with equal names are one tied
    decision: fifteen stacked cells that share six names hold six decisions. Unnamed choices are named after
    their place in the model. A candidate may hold Choices of its own.
    """

    def __init__(self, candidates: Mapping[str, nn.Module], *, name: str | None = None) -> None:
        super().__init__()
        _check_candidates(candidates)
        self.name = name
        self.operations = tuple(candidates)
        self.candidates = nn.ModuleList(candidates.values())
        self._route: Route | None = None
        self._seen: dict[Hashable, tuple[str, Hashable]] = {}

    def extra_repr(self) -> str:
        """The decision's name and its operations, for `print(model)`."""
        return f"name={self.name!r}, operations={list(self.operations)}"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the operations that the current draw routes through this decision."""
        route = self._route
        if route is None:
            raise RuntimeError(
                f"{self} has no architecture to run. Take steps with advnas.Search, run one architecture with "
                "`with space.running(architecture): model(x)`, or get a plain module from `space.derive(...)`."
            )
        # Under a gate of 0 (see Passage) a nested choice runs without a graph: its draw makes no difference.
        route.reached |= torch.is_grad_enabled() or not route.gated
        total = None
        for passage in route.passages:
            output = passage.run(self.candidates[passage.index], args, kwargs)
            self._check_shape(self.operations[passage.index], args, kwargs, output)
            total = output if total is None else _map(torch.add, total, output)
        return total if route.shift is None else _map(partial(_on_device, torch.add, route.shift), total)

    def _check_shape(self, operation: str, args: Any, kwargs: Any, output: Any) -> None:
        """Compare with what other candidates returned for inputs of these shapes; only drawn ones are ever run."""
        inputs, shape = _describe((args, kwargs)), _describe(output)
        other, expected = self._seen.setdefault(inputs, (operation, shape))
        if shape != expected:
            raise ValueError(self._disagreement({other: expected, operation: shape}, args))
        if len(self._seen) > _SHAPES_REMEMBERED:
            del self._seen[next(iter(self._seen))]

    def compare_shapes(self, *args: Any, **kwargs: Any) -> str | None:
        """Run all candidates on one input, to explain a failure; None if they agree."""
        shapes: dict[str, Hashable] = {}
        for operation, candidate in zip(self.operations, self.candidates, strict=True):
            try:
                with torch.no_grad():
                    shapes[operation] = _describe(candidate(*args, **kwargs))
            except (RuntimeError, ValueError, TypeError) as error:
                shapes[operation] = f"an error ({error})"
        return self._disagreement(shapes, args) if len(set(shapes.values())) > 1 else None

    def _disagreement(self, shapes: Mapping[str, Hashable], args: Any) -> str:
        returned = ", ".join(f"{operation!r} returned {shape}" for operation, shape in shapes.items())
        return (
            f"The candidates of one choice must return the same shape, but at {self.label} {returned} "
            f"for the same input {_describe(args)}. Give them the same number of output features and stride."
        )

    @property
    def label(self) -> str:
        """How messages speak of this choice."""
        return f"choice {self.name!r}" if self.name else f"the choice between {', '.join(self.operations)}"


class Zero(nn.Module):
    """The zero operation: no connection. With a stride, every spatial size is divided by it, rounding up."""

    def __init__(self, stride: int = 1) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Zeros shaped like x, [batch, channels, *spatial] where there is a stride."""
        if self.stride == 1:
            return torch.zeros_like(x)
        spatial = (-(-size // self.stride) for size in x.shape[2:])
        return x.new_zeros(*x.shape[:2], *spatial)


@dataclass(frozen=True)
class Passage:
    """One active candidate in one step: its index, the gate before its output (None: bare) and the gate's value."""

    index: int
    gate: Tensor | None
    value: float

    def run(self, candidate: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """w O(x), as cheaply as its weight allows."""
        if self.value == 0:
            return self._run_without_graph(candidate, args, kwargs)
        if self.gate is None:
            output = candidate(*args, **kwargs)
            return output if self.value == 1 else _map(lambda leaf: leaf * self.value, output)
        norm = last_norm(candidate) if self.value > 0 else None
        if norm is not None:
            with _scaled(norm, self.gate):
                return candidate(*args, **kwargs)
        weigh = _UnitGate.apply if self.value == 1 else torch.mul
        return _map(partial(_on_device, weigh, self.gate), candidate(*args, **kwargs))

    def _run_without_graph(self, candidate: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A weight of 0 passes no gradient to the candidate or its input; only the weight's own slope remains."""
        with torch.no_grad():
            output = candidate(*args, **kwargs)
        if self.gate is None:
            return _map(torch.zeros_like, output)
        return _map(partial(_on_device, torch.mul, self.gate), output)


@dataclass
class Route:
    """What one decision runs in one step, shared by the tied choices; remembers whether any of them was reached."""

    passages: tuple[Passage, ...]
    shift: Tensor | None = None
    reached: bool = False

    @property
    def gated(self) -> bool:
        """Whether the slopes of the weights were asked for."""
        return self.passages[0].gate is not None


class _UnitGate(torch.autograd.Function):
    """w O at w = 1. Its backward pass hands the gradient on untouched and takes one dot product for the gate,
    where a multiplication would scale the gradient, form w O's elementwise product and sum it.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, output: Tensor, gate: Tensor) -> Tensor:
        ctx.save_for_backward(output)
        return output.clone()  # not a view: whatever comes next may work in place

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (output,) = ctx.saved_tensors
        return gradient, _inner_product(gradient, output)


def _inner_product(a: Tensor, b: Tensor) -> Tensor:
    """<a, b> over all elements, without a temporary where both lie in memory in the same order."""
    if a.dtype == b.dtype in (torch.float32, torch.float64) and a.stride() == b.stride() and _is_dense(a):
        return torch.dot(a.as_strided((a.numel(),), (1,)), b.as_strided((b.numel(),), (1,)))
    return (a * b).sum(dtype=torch.float32 if a.dtype.itemsize < 4 else None)


def _is_dense(tensor: Tensor) -> bool:
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


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
        return candidate
    if isinstance(candidate, nn.Sequential) and type(candidate).forward is nn.Sequential.forward:
        children = list(candidate)
        while children and type(children[-1]) in _POSITIVELY_HOMOGENEOUS:
            children.pop()
        used_once = bool(children) and children.count(children[-1]) == 1
        return last_norm(children[-1]) if used_once else None
    declared = getattr(candidate, "last_norm", None)
    return declared if isinstance(declared, _BatchNorm) else None


@contextmanager
def _scaled(norm: _BatchNorm, gate: Tensor) -> Iterator[None]:
    """Let `gate` multiply the output of `norm`, as part of its gamma and beta."""
    gamma, beta = norm._parameters["weight"], norm._parameters["bias"]
    reference = next((buffer for buffer in (gamma, norm.running_mean) if buffer is not None), None)
    gate = gate if reference is None else gate.to(reference.device)
    # contiguous: torch's CPU batch_norm backward is silently wrong for channels_last input and a stride of 0
    scale = gate.expand(norm.num_features).contiguous() if gamma is None else gamma * gate
    norm._parameters["weight"] = scale  # type: ignore[assignment]
    norm._parameters["bias"] = None if beta is None else beta * gate  # type: ignore[assignment]
    try:
        yield
    finally:
        norm._parameters["weight"], norm._parameters["bias"] = gamma, beta


_SHAPES_REMEMBERED = 16


def _check_candidates(candidates: Mapping[str, nn.Module]) -> None:
    if not isinstance(candidates, Mapping):
        raise TypeError(
            f"A Choice names its candidates, got {type(candidates).__name__}. "
            "Write Choice({'conv': nn.Conv2d(...), 'skip': nn.Identity()})."
        )
    if not candidates:
        raise ValueError("A Choice needs at least one candidate, got none.")
    for name, candidate in candidates.items():
        if not isinstance(candidate, nn.Module):
            raise TypeError(
                f"Candidate {name!r} is {candidate!r}, which is not an nn.Module. "
                + ("Write an instance, not the class." if isinstance(candidate, type) else "Wrap it in one.")
            )


def _map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function to every tensor of equal trees of tuples, lists and dicts; other leaves stay as they are."""
    if isinstance(tree, Tensor):
        return function(tree, *others)
    if isinstance(tree, dict):
        return type(tree)({key: _map(function, tree[key], *(other[key] for other in others)) for key in tree})
    if isinstance(tree, tuple | list):
        leaves = [_map(function, *parts) for parts in zip(tree, *others, strict=True)]
        return type(tree)(*leaves) if hasattr(tree, "_fields") else type(tree)(leaves)
    return tree


def _on_device(function: Callable[[Tensor, Tensor], Tensor], scalar: Tensor, leaf: Tensor) -> Tensor:
    return function(leaf, scalar.to(leaf.device))


def _describe(tree: Any) -> Hashable:
    """What can be said of inputs and outputs without holding them: shapes of tensors, names of other types."""
    if isinstance(tree, Tensor):
        return tuple(tree.shape)
    if isinstance(tree, dict):
        return tuple((key, _describe(value)) for key, value in tree.items())
    if isinstance(tree, tuple | list):
        return tuple(_describe(value) for value in tree)
    return type(tree).__name__
