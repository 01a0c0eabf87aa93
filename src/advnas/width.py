"""Width: an open inner width, whose candidates are slices of the same weights."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from advnas.arguments import check_count
from advnas.choice import Choice


class Width(Choice):
    """A body whose inner width is open: candidate "64" runs it with the first 64 of its inner units.

    One body holds the weights, and all widths share them: candidate w uses the first w rows of the layers that make
    the inner units, and the first w columns of those that read them. So makers and readers always agree, and what
    enters and leaves the body keeps its size. A step costs what the drawn width costs, however many there are. It
    is a `Choice` like any other: strategies, stores and limits treat it alike. A derived network has plain narrower
    layers. So a sliced layer must not be used elsewhere, except by a `Width` of the same name in the same way.

    In an `nn.Sequential` the first layer with weights makes the inner units, and the last one that mixes them reads
    them; every layer between is of the inner width on both sides. For any other body, say so:

        Width(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)), (64, 128, 256))
        Width(lora, (2, 4, 8), makes=["down"], reads=["up"])

    A weight step moves the whole tensors where the optimiser has momentum or weight decay, as in slimmable networks
    (Yu et al., ICLR 2019): what the drawn width does not use has a gradient of 0, not none.

    Args:
        body: any module made of linear, convolution, norm and embedding layers, and layers without weights.
        widths: those to choose from, each at most the body's own.
        name: of the decision; see `Choice`.
        makes: names of the submodules whose outputs are the inner units. Norms in between belong to both lists.
        reads: names of the submodules whose inputs are the inner units.
    """

    def __init__(
        self,
        body: nn.Module,
        widths: Sequence[int],
        *,
        name: str | None = None,
        makes: Sequence[str] | None = None,
        reads: Sequence[str] | None = None,
    ) -> None:
        sides = _sides_of_sequential(body) if makes is None and reads is None else _named_sides(body, makes, reads)
        _check_widths(widths, _full_width(body, sides))
        super().__init__({str(width): Sliced(body, width, sides) for width in widths}, name=name)


@dataclass(frozen=True)
class Sides:
    """Which sides of a layer have the inner width."""

    inputs: bool = False
    outputs: bool = False


@dataclass(frozen=True)
class Kind:
    """How a type of layer names its sizes, and which axis of its weight is which.

    inputs, outputs: the attributes that hold the numbers of features. Layers that keep the number, as norms do,
    have one attribute for both and no axis of inputs.
    """

    outputs: str
    inputs: str | None = None
    output_axis: int = 0
    input_axis: int | None = None
    vectors: Sequence[str] = field(default=("bias",))

    @property
    def mixes(self) -> bool:
        """Whether every output depends on all inputs."""
        return self.inputs is not None

    def features(self, layer: nn.Module, attribute: str) -> int:
        """Read a number of features."""
        size = getattr(layer, attribute)
        return int(size[-1]) if isinstance(size, tuple) else int(size)


_CONVOLUTION = Kind("out_channels", "in_channels", input_axis=1)
_STATISTICS = Kind("num_features", vectors=("bias", "running_mean", "running_var"))
_KINDS: dict[type[nn.Module], Kind] = {
    nn.Linear: Kind("out_features", "in_features", input_axis=1),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _CONVOLUTION),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), _STATISTICS),
    nn.LayerNorm: Kind("normalized_shape"),
    nn.RMSNorm: Kind("normalized_shape", vectors=()),
    nn.Embedding: Kind("embedding_dim", output_axis=1, vectors=()),
}


class Sliced(nn.Module):
    """A body that runs with the first part of its own weights: one candidate of a `Width`."""

    def __init__(self, body: nn.Module, width: int, sides: Mapping[str, Sides]) -> None:
        super().__init__()
        self.body, self.width = body, width
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._attributes: list[tuple[str, str, Any]] = []
        self._sides = {name: _effective(body.get_submodule(name), own) for name, own in sides.items()}
        for name, own in self._sides.items():
            self._narrow(name, body.get_submodule(name), own)

    def extra_repr(self) -> str:
        """The width, for `print(model)`."""
        return f"width={self.width}"

    @property
    def sliced(self) -> dict[nn.Module, Sides]:
        """The layers that become narrower, and at which sides."""
        return {self.body.get_submodule(name): sides for name, sides in self._sides.items()}

    def _narrow(self, name: str, layer: nn.Module, sides: Sides) -> None:
        """Note the shapes and attributes of one layer at this width."""
        kind, width = _KINDS[type(layer)], self.width
        depthwise = _is_depthwise(layer)
        for axis, attribute, elastic in (
            (kind.output_axis, kind.outputs, sides.outputs),
            (None if depthwise else kind.input_axis, kind.inputs, sides.inputs),
        ):
            if elastic and attribute is not None:
                self._attributes.append((name, attribute, _resized(getattr(layer, attribute), width)))
                if axis is not None:
                    self._cut(f"{name}.weight", layer.weight, axis)
        if depthwise:
            self._attributes.append((name, "groups", width))
        for vector in kind.vectors if sides.outputs else ():
            self._cut(f"{name}.{vector}", getattr(layer, vector), 0)

    def _cut(self, name: str, tensor: object, axis: int) -> None:
        if isinstance(tensor, Tensor):  # a layer may have no bias and no weight
            name = name.removeprefix(".")  # of a body that is a single layer
            shape = list(self._shapes.get(name, tensor.shape))
            shape[axis] = self.width
            self._shapes[name] = tuple(shape)

    def _tensors(self) -> dict[str, Tensor]:
        """The part of every elastic tensor that this width uses: views."""
        found: dict[str, Tensor] = {}
        for name, shape in self._shapes.items():
            place, _, attribute = name.rpartition(".")
            found[name] = getattr(self.body.get_submodule(place), attribute)[tuple(slice(size) for size in shape)]
        return found

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body at this width."""
        with self._resized():
            return functional_call(self.body, self._tensors(), args, kwargs)

    @contextmanager
    def _resized(self) -> Iterator[None]:
        """Layers look at some of their sizes when they run, such as the groups of a depthwise convolution."""
        layers = [(self.body.get_submodule(name), attribute, value) for name, attribute, value in self._attributes]
        before = [getattr(layer, attribute) for layer, attribute, _ in layers]
        try:
            for layer, attribute, value in layers:
                setattr(layer, attribute, value)
            yield
        finally:
            for (layer, attribute, _), value in zip(layers, before, strict=True):
                setattr(layer, attribute, value)

    def plain(self, memo: dict[int, Any]) -> nn.Module:
        """Copy the body with plain layers of this width.

        Args:
            memo: what was copied already, as for `copy.deepcopy`.
        """
        body: nn.Module = copy.deepcopy(self.body, memo)
        for name, attribute, value in self._attributes:
            setattr(body.get_submodule(name), attribute, value)
        for name, part in self._tensors().items():
            place, _, attribute = name.rpartition(".")
            layer = body.get_submodule(place)
            own = part.detach().clone()
            if isinstance(old := getattr(layer, attribute), nn.Parameter):
                own = nn.Parameter(own, requires_grad=old.requires_grad)
            setattr(layer, attribute, own)
        return body

    def outline(self) -> nn.Module:
        """The plain body of this width without its numbers, on torch's meta device: for counting."""
        return self.plain({}).to("meta")


class Outlines:
    """Candidates as they are counted: those of a `Width` narrowed, one for all widths of the same body."""

    def __init__(self) -> None:
        self._narrowed: dict[tuple[nn.Module, int], nn.Module] = {}

    def of(self, candidate: nn.Module) -> nn.Module:
        """The candidate, or its plain body where it is a width."""
        if not isinstance(candidate, Sliced):
            return candidate
        key = candidate.body, candidate.width
        if key not in self._narrowed:
            self._narrowed[key] = candidate.outline()
        return self._narrowed[key]


def check_slices(model: nn.Module, name_of: Mapping[Choice, str]) -> None:
    """Refuse layers that a `Width` slices and that are used in another way too: a derived layer has one size.

    Args:
        model: a module with choices.
        name_of: the decision of every choice.

    Raises:
        ValueError: a sliced layer is used outside of the widths of one decision, or sliced at other sides.
    """
    uses: dict[nn.Module, dict[tuple[object, ...], str]] = {}

    def visit(module: nn.Module, path: str, decision: str, slices: Mapping[nn.Module, tuple[object, ...]]) -> None:
        decision = name_of.get(module, decision) if isinstance(module, Choice) else decision
        if isinstance(module, Sliced):
            own = {layer: (*slices.get(layer, ()), (decision, sides)) for layer, sides in module.sliced.items()}
            slices = {**slices, **own}
        found = uses.setdefault(module, {})
        found.setdefault(slices.get(module, ()), path)
        if len(found) > 1 or len(next(iter(found))) > 1:
            raise _used_twice(module, [*found.values(), path])
        for name, child in module.named_children():
            visit(child, f"{path}.{name}" if path else name, decision, slices)

    visit(model, "", "", {})


def _used_twice(layer: nn.Module, paths: Sequence[str]) -> ValueError:
    return ValueError(
        f"The {type(layer).__name__} at {paths[0]!r} is also that at {paths[1]!r}, and a Width slices it, but not "
        "in the same way at both. A derived network could not make it narrower in one place alone. Give each place "
        "a layer of its own, such as copy.deepcopy(body), or give Widths that share their body one name, so that "
        "they are one decision."
    )


def _effective(layer: nn.Module, sides: Sides) -> Sides:
    """A layer that keeps the number of its units has the inner width on both sides."""
    return sides if _mixes(layer) else Sides(True, True)


def _is_depthwise(layer: nn.Module) -> bool:
    groups = getattr(layer, "groups", 1)
    return groups > 1 and groups == getattr(layer, "in_channels", None)


def _resized(size: Any, width: int) -> Any:
    return (*size[:-1], width) if isinstance(size, tuple) else width


def _sides_of_sequential(body: nn.Module) -> dict[str, Sides]:
    """Find the maker and the reader of the inner units, and what stands between them."""
    if type(body) is not nn.Sequential:
        raise ValueError(
            f"Which layers of a {type(body).__name__} make the inner units and which read them cannot be told. "
            'Write for example Width(body, widths, makes=["first"], reads=["last"]): names of its submodules.'
        )
    layers = [(name, layer) for name, layer in body.named_modules() if [*layer.parameters(recurse=False)]]
    mixing = [number for number, (_, layer) in enumerate(layers) if type(layer) in _KINDS and _mixes(layer)]
    makes = [0] if layers and type(layers[0][1]) is nn.Embedding else mixing[:1]
    if not makes or not mixing or mixing[-1] <= makes[0]:
        raise ValueError(
            "An open width needs a layer that makes the inner units and one that reads them, such as "
            f"nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)); got {_kinds_in(body)}."
        )
    first, last = makes[0], mixing[-1]
    between = {layers[number][0]: Sides(True, True) for number in range(first + 1, last)}
    return _known(body, {layers[first][0]: Sides(outputs=True), **between, layers[last][0]: Sides(inputs=True)})


def _mixes(layer: nn.Module) -> bool:
    return _KINDS[type(layer)].mixes and not _is_depthwise(layer)


def _named_sides(body: nn.Module, makes: Sequence[str] | None, reads: Sequence[str] | None) -> dict[str, Sides]:
    """Take the user's word for it."""
    if not makes or not reads or isinstance(makes, str) or isinstance(reads, str):
        raise ValueError(
            f"makes and reads are both lists of names of submodules, got makes={makes!r} and reads={reads!r}. "
            'Write for example makes=["up", "gate"], reads=["down"].'
        )
    known = dict(body.named_modules())
    for name in (*makes, *reads):
        if name not in known:
            names = ", ".join(filter(None, known)) or "none"
            raise ValueError(f"The body has no submodule {name!r}. It has {names}.")
    return _known(body, {name: Sides(name in reads, name in makes) for name in (*makes, *reads)})


def _known(body: nn.Module, sides: dict[str, Sides]) -> dict[str, Sides]:
    """Refuse layers that nobody can slice."""
    for name in sides:
        layer = body.get_submodule(name)
        grouped = getattr(layer, "groups", 1) > 1 and not _is_depthwise(layer)
        if type(layer) not in _KINDS or grouped:
            what = "a convolution in groups" if grouped else f"a {type(layer).__name__}"
            names = ", ".join(kind.__name__ for kind in _KINDS)
            raise ValueError(
                f"Layer {name!r} of the body is {what}, which cannot be sliced. Sliced are {names}, exactly these "
                "types, and depthwise convolutions. Choose between whole modules with Choice({...}) instead."
            )
    return sides


def _full_width(body: nn.Module, sides: Mapping[str, Sides]) -> int:
    """The width of the body as it is; all its layers must agree."""
    sizes: dict[str, int] = {}
    for name, own in sides.items():
        layer = body.get_submodule(name)
        kind = _KINDS[type(layer)]
        if own.outputs or not kind.mixes:
            sizes[f"{name} gives"] = kind.features(layer, kind.outputs)
        if own.inputs and kind.inputs is not None:
            sizes[f"{name} takes"] = kind.features(layer, kind.inputs)
    if len({*sizes.values()}) != 1:
        told = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise ValueError(f"All layers inside an open width must have the same number of units, but {told}.")
    return next(iter(sizes.values()))


def _check_widths(widths: Sequence[int], full: int) -> None:
    if not widths or len({*widths}) != len(widths):
        raise ValueError(
            f"widths must be different numbers of units, got {list(widths)}. Write for example (64, 128)."
        )
    for width in widths:
        if check_count("width", width) > full:
            raise ValueError(f"A width of {width} is more than the {full} units of the body. Make the body wider.")


def _kinds_in(body: nn.Module) -> str:
    return ", ".join(type(layer).__name__ for layer in body) if isinstance(body, nn.Sequential) else repr(body)
