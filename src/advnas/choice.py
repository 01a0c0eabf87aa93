"""Choice: the candidates at one decision. It runs the active ones and adds up their weighted outputs."""

import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from advnas.gates import (
    ActiveCandidate,
    GatePlacement,
    Rerun,
    Route,
    Slot,
    add_zero_gates,
    find_placement,
    is_weighable,
    map_tensors,
    parts_of,
    strange_leaf,
    tensors_in,
)
from advnas.gates.buffers import copy_on_write
from advnas.gates.gate import is_transformed
from advnas.gates.shapes import Call, describe, note_call, plain_shape, read_call, shape_returned


class Choice(nn.Module):
    """A decision that is open: any of `candidates` may stand here.

        O_i(x) = sum_j a_ij O_ij(x; w_ij)          (eq. forward)

    Put it wherever a module may stand. Candidates take the same inputs, any number of them, which they do not
    change in place, and return outputs of the same shape: a tensor, or tensors in tuples, lists, dicts, dataclasses
    and what else torch.utils._pytree knows. Whole numbers in them, such as lengths and masks, are not weighted.
    Choices with equal names are one tied decision: fifteen stacked cells that share six names hold six decisions.
    Unnamed choices are named after their place in the model. A candidate may hold Choices of its own.

    edge: for a choice between two nodes of a cell, which it reads and which it adds to. It promises that a node
        which choices both add to and read is the sum of what they add, and that nobody else reads it. Nothing is
        computed otherwise, but searching is cheaper: gates move along nodes to where they cost nothing.
    """

    def __init__(
        self, candidates: Mapping[str, nn.Module], *, name: str | None = None, edge: tuple[str, str] | None = None
    ) -> None:
        super().__init__()
        _check_candidates(candidates)
        _check_edge(edge)
        if name is not None:
            _check_name("A choice", name)
        self.name, self.edge = name, edge
        self.operations = tuple(candidates)
        self.candidates = nn.ModuleList(candidates.values())
        self.slot = Slot()
        self._placements: list[GatePlacement] = []
        self._buffers_inside: list[list[dict[str, Tensor | None]]] = []
        self._seen: dict[Hashable, tuple[str, Hashable]] = {}

    def extra_repr(self) -> str:
        """The decision's name and its operations, for `print(model)`."""
        return f"name={self.name!r}, operations={list(self.operations)}"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the operations that the current draw routes through this decision."""
        route = self.slot.route
        if route is None:
            raise RuntimeError(
                f"Choice({self.extra_repr()}) has no architecture to run. Take steps with advnas.Search, run one "
                "architecture with `with space.running(architecture): model(x)`, or get a plain module from "
                "`space.derive(...)`."
            )
        graph = torch.is_grad_enabled()
        if not route.reached:
            # A nested choice under a gate of 0 runs without a graph: its draw makes no difference.
            route.reached = not route.gated or graph
        route.calls[self] = note_call(args, kwargs)
        if DistributedDataParallel._active_ddp_module is not None:
            route.wrapped = True
        if route.rivals and graph:  # without a graph, nobody asks for a slope
            self._refuse_transforms()
            return self._run_with_rivals(route, args, kwargs)
        total = self._run_all(route.active, args, kwargs)
        if graph and not route.cut:
            route.cut = not _has_graph(total)
        return total if route.shift is None else map_tensors(route.add_shift, total)

    def _replicate_for_data_parallel(self) -> Self:
        raise TypeError(
            "A network with a Choice cannot be run by DataParallel: its threads do not know the architecture. "
            "Search with several processes, Search(model, group=...), and derive a plain module for DataParallel."
        )

    def _run(self, active: ActiveCandidate, args: Any, kwargs: Any) -> Any:
        index = active.index
        placement = self._placements[index]
        if active.gate is None and active.value == 1:  # as in every weight step
            output = placement.candidate(*args, **kwargs)
        else:
            if placement.declared and active.gate is not None:
                self._try_declared(index, args, kwargs)
            output = active.run(placement, args, kwargs)
        self._check_output(index, args, kwargs, output)
        return output

    def _run_all(self, active: Sequence[ActiveCandidate], args: Any, kwargs: Any) -> Any:
        versions = _versions_of(args, kwargs)
        total = None
        for one in active:
            output = self._run(one, args, kwargs)
            if versions != _versions_of(args, kwargs):
                raise self.input_changed(one.index)
            total = output if total is None else map_tensors(self._add, total, output)
        return total

    def _add(self, one: Tensor, other: Tensor) -> Tensor:
        if is_weighable(one):
            return torch.add(one, other)
        if not torch.equal(one, other):
            raise ValueError(
                f"Candidates of {self.label} that run together return different whole numbers ({one.dtype}), which "
                "cannot be weighted and added. Let them return the same, or numbers with a fraction."
            )
        return one

    def _try_declared(self, index: int, args: Any, kwargs: Any) -> None:
        if not self._placements[index].try_declared(args, kwargs):
            warnings.warn(
                f"Candidate {self.operations[index]!r} of {self.label} declares a last_norm, but its output does "
                "not follow the scale of that norm: something behind it adds to the output or is not linear. Its "
                "gate stands behind the candidate instead. Remove the attribute last_norm.",
                stacklevel=2,
            )

    def _run_with_rivals(self, route: Route, args: Any, kwargs: Any) -> Any:
        """Run what is on the path now, and the rivals in the backward pass, on the same input."""
        rerun = Rerun(self, args, kwargs)
        return add_zero_gates(rerun, route.rivals, self._run_all(route.active, args, kwargs))

    def _refuse_transforms(self) -> None:
        """Rivals run in the backward pass, where a transform that the forward pass was in is over."""
        if is_transformed():
            raise TypeError(
                f"The loss runs {self.label} inside a transform of torch.func, such as vmap or grad, where it "
                "cannot be compared with other candidates. Compute the loss without one, or write "
                "strategy='advantage'."
            )

    def run_rival(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one candidate without a graph, and leave its buffers, such as running statistics, as they are."""
        versions = _versions_of(args, kwargs)
        before = [dict(buffers) for buffers in self._buffers_inside[index]]
        for buffers in self._buffers_inside[index]:
            buffers.update({name: copy_on_write(buffer) for name, buffer in buffers.items() if buffer is not None})
        try:
            output = self.candidates[index](*args, **kwargs)
        finally:
            for buffers, earlier in zip(self._buffers_inside[index], before, strict=True):
                buffers.update(earlier)
        if versions != _versions_of(args, kwargs):
            raise self.input_changed(index)
        self._check_output(index, args, kwargs, output)
        return output

    def input_changed(self, index: int | None) -> ValueError:
        """Say that the input was changed in place: by the candidate at an index, or by somebody else."""
        if index is None:
            return ValueError(
                f"The input of {self.label} was changed in place after the choice had read it, and the candidates "
                "that the drawn one is compared with run on it later. Write for example x = x + ... for x += ..."
            )
        return ValueError(
            f"Candidate {self.operations[index]!r} of {self.label} changes its input in place, and others read the "
            "same input. Write for example nn.ReLU(inplace=False)."
        )

    def differentiated_twice(self) -> ValueError:
        """Say that the loss differentiates a backward pass in which rivals run."""
        return ValueError(
            f"The loss differentiates through {self.label} with create_graph=True, as losses with gradients of the "
            "network do, and this strategy compares the choice with other candidates in the backward pass, which "
            "cannot be differentiated again. Write strategy='advantage'."
        )

    @property
    def active(self) -> tuple[nn.Module, ...]:
        """The candidates that the current draw runs, for modules that spare work none of them needs."""
        route = self.slot.route
        if route is None:
            return ()
        indices = [*(one.index for one in route.active), *(rival.index for rival in route.rivals)]
        return tuple(self.candidates[index] for index in indices)

    def prepare(self) -> None:
        """Look once what is inside the candidates; done when a SearchSpace takes the choice in."""
        self._placements = [find_placement(candidate) for candidate in self.candidates]
        self._buffers_inside = [[m._buffers for m in one.modules() if m._buffers] for one in self.candidates]

    def passes_scale(self, index: int) -> bool:
        """Whether a gate of this candidate may stand in front of it."""
        return self._placements[index].front

    def passes_scale_now(self, index: int) -> bool:
        """Whether that is still so: a hook may come at any time."""
        return self._placements[index].front and self._placements[index].holds

    def put_back(self) -> None:
        """Undo what a gate has changed in a candidate, after an interrupt at any place."""
        for placement in self._placements:
            placement.put_back()

    def _check_output(self, index: int, args: Any, kwargs: Any, output: Any) -> None:
        """Compare with what other candidates returned for inputs of these shapes; only drawn ones are ever run."""
        if len(args) == 1 and not kwargs and isinstance(args[0], Tensor) and isinstance(output, Tensor):
            inputs: Hashable = args[0].shape  # by far the most common call
            shape: Hashable = output.shape
            known = self._seen.get(inputs)
            if known is not None and known[1] == shape and is_weighable(output):
                return
        else:
            inputs, shape = describe((args, kwargs), values=True), describe(output)
        self._check_kind(index, output)
        operation = self.operations[index]
        other, expected = self._seen.setdefault(inputs, (operation, shape))
        if shape != expected:
            raise ValueError(self._disagreement({other: expected, operation: shape}, args))
        if len(self._seen) > _SHAPES_REMEMBERED:
            del self._seen[next(iter(self._seen))]

    def _check_kind(self, index: int, output: Any) -> None:
        """Refuse what cannot be weighted, or could only in part."""
        strange, tensors = strange_leaf(output), tensors_in(output)
        if strange is None and any(map(is_weighable, tensors)):
            return
        if strange is not None:
            what = f"{'' if strange is output else 'something with '}an object of type {type(strange).__name__}"
            why = "cannot be weighted, as its tensors are not known"
        elif tensors:
            what, why = f"whole numbers only ({tensors[0].dtype})", "let no gradient through"
        else:
            what, why = f"no tensor but {output!r:.40}", "cannot be weighted"
        raise TypeError(
            f"Candidate {self.operations[index]!r} of {self.label} returns {what}, which {why}. Return a tensor "
            "of numbers with a fraction, or such tensors in a tuple, list, dict or dataclass; make another class "
            "known with torch.utils._pytree.register_pytree_node."
        )

    def compare_shapes(self, noted: Call) -> str | None:
        """Say which candidates disagree about their output for a call, or cannot take it; None if they agree.

        Nothing of the candidates is run or changed: copies without numbers are.
        """
        args, kwargs = read_call(noted)
        shapes = {
            operation: shape_returned(candidate, args, kwargs)
            for operation, candidate in zip(self.operations, self.candidates, strict=True)
        }
        known = {operation: shape for operation, shape in shapes.items() if shape is not None}
        return self._disagreement(known, args) if len(set(known.values())) > 1 else None

    def _disagreement(self, shapes: Mapping[str, Hashable], args: Any) -> str:
        returned = ", ".join(f"{operation!r} returned {plain_shape(shape)}" for operation, shape in shapes.items())
        return (
            f"The candidates of one choice must return the same shape, but at {self.label} {returned} "
            f"for the same input {describe(args)}. Give them the same number of output features and stride."
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


def check_is_module(given: object) -> None:
    """Raise TypeError for what is no module, such as a class or a function that makes one."""
    if not isinstance(given, nn.Module):
        got = f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
        name = getattr(given, "__name__", "")
        advice = f" Write {name if name.isidentifier() else 'make_model'}()." if callable(given) else ""
        raise TypeError(f"The model must be an nn.Module with a Choice inside, got {got}.{advice}")


def choices_by_name(model: nn.Module) -> dict[str, list[Choice]]:
    """Find the choices of a model: by the name that was given, or else by their place.

    Raises:
        ValueError: one is named like the place of another, which has no name; they would be one decision.
    """
    groups: dict[str, list[Choice]] = {}
    for path, module in model.named_modules():
        if isinstance(module, Choice):
            own = groups.setdefault(module.name or path or "choice", [])
            own.append(module)
            if len({choice.name is None for choice in own}) > 1:
                raise ValueError(
                    f"A choice is named {module.name or path!r}, and another without a name stands at this place "
                    "of the model; they would be one decision. Give one of them another name."
                )
    return groups


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
        _check_name("A candidate", name)
        if not isinstance(candidate, nn.Module):
            raise TypeError(
                f"Candidate {name!r} is {candidate!r}, which is not an nn.Module. "
                + ("Write an instance, not the class." if isinstance(candidate, type) else "Wrap it in one.")
            )


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise TypeError(f"{what} is named by a text, got {name!r}. Write for example {str(name) or 'conv'!r}.")


def _check_edge(edge: tuple[str, str] | None) -> None:
    if edge is not None and (not isinstance(edge, tuple) or len(edge) != 2 or len({*map(str, edge)}) != 2):
        raise ValueError(
            f"edge must name two nodes, the one that is read and the one that is added to, got {edge!r}. "
            "Write for example edge=('0', '1'), or leave it out."
        )


def _has_graph(output: Any) -> bool:
    if isinstance(output, Tensor):
        return output.requires_grad
    return any(tensor.requires_grad for tensor in tensors_in(output))


def _versions_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """Changes with every write into one of the tensors of a call."""
    return _versions(args[0]) if len(args) == 1 and not kwargs else _versions((args, kwargs))


def _versions(tree: Any) -> Hashable:
    if isinstance(tree, Tensor):
        return None if tree.is_inference() else tree._version
    return tuple(map(_versions, parts_of(tree)))
