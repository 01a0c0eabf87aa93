"""A derived module as files that others can read: weights, a torch.export program, ONNX. Each is checked first."""

import copy
import importlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from advnas.architecture import Architecture
from advnas.choice import Choice
from advnas.modes import evaluating
from advnas.randomness import generator
from advnas.records.bounds import load_torch_file
from advnas.records.files import write_atomically

Inputs = tuple[Tensor, ...]
Shapes = tuple[dict[int, Any] | None, ...]
Runner = Callable[[Inputs], list[Tensor]]
_SAFE, _PICKLED = "weights.safetensors", "weights.pt"
_LIKE = "other numbers like the example's (indices and lengths need an integer type)"


@dataclass(frozen=True)
class Exported:
    """The file that was written.

    difference: the largest absolute difference between the outputs of the file and of the module.
    dynamic_batch: whether the file takes batches of any size; if not, only of the example's.
    """

    path: Path
    difference: float
    dynamic_batch: bool


@dataclass(frozen=True)
class _Format:
    """file: its name. write: a module that is traced on inputs, to bytes. read: bytes to what they compute."""

    file: str
    write: Callable[[nn.Module, Inputs, Shapes], bytes]
    read: Callable[[bytes, nn.Module], Runner]


def export(
    module: nn.Module,
    example: Inputs,
    folder: Path | str,
    to: Literal["plain", "pt2", "onnx"],
    *,
    architecture: Mapping[str, str] | None = None,
    batch_dims: Sequence[int | None] | None = None,
    tolerance: float = 1e-5,
) -> Exported:
    """Write a plain module, as it computes in evaluation mode, into a folder.

    First the content is run on the example and on inputs of other batch sizes, and compared with the module.

    Args:
        module: without Choices, such as `Search.derive` makes it.
        example: the arguments of one call.
        folder: where the files go.
        to: "plain" writes the weights, `weights.safetensors` (`weights.pt` where safetensors is not installed), for
            `load_plain`; "pt2" writes `model.pt2`, which torch.export.load reads without advnas or the module's
            source; "onnx" writes `model.onnx`, at most 2 GB.
        architecture: goes into `architecture.json`, for `Architecture.from_json`.
        batch_dims: for every input, the dimension that counts examples, or None where there is none; 0 by default.
        tolerance: how far outputs may be off, in units of the largest one.

    Raises:
        ValueError: the module cannot be written, or the file computes something else; nothing was written.
    """
    _check(module, example, to)
    example = tuple(tensor.detach() for tensor in example)
    dims = _batch_dims(example, batch_dims)
    chosen = _format(to)
    with evaluating(module), torch.no_grad():
        content, difference, dynamic = _converted(chosen, module, example, dims, tolerance)
    folder = Path(folder)
    if architecture is not None:
        write_atomically(folder / "architecture.json", Architecture(architecture).to_json() + "\n")
    write_atomically(folder / chosen.file, content)
    if to == "plain":  # the other kind would be that of an earlier module
        (folder / (_PICKLED if chosen.file == _SAFE else _SAFE)).unlink(missing_ok=True)
    return Exported(folder / chosen.file, difference, dynamic)


def _check(module: nn.Module, example: Inputs, to: str) -> None:
    if to not in ("plain", "pt2", "onnx"):
        raise ValueError(f"to must be 'plain', 'pt2' or 'onnx', got {to!r}.")
    for path, part in module.named_modules():
        if isinstance(part, Choice):
            raise ValueError(
                f"{type(module).__name__} still holds a Choice at {path or 'its top'!r}, so it is many networks. "
                "Export one of them: export(search.derive(architecture), ...)."
            )
    if not isinstance(example, tuple) or not all(isinstance(tensor, Tensor) for tensor in example) or not example:
        kinds = ", ".join(type(part).__name__ for part in example) if isinstance(example, tuple) else ""
        got = f"a tuple of {kinds or 'nothing'}" if isinstance(example, tuple) else type(example).__name__
        raise TypeError(f"example must be a tuple of tensors, got {got}. Write for example (x,).")


def _batch_dims(example: Inputs, given: Sequence[int | None] | None) -> tuple[int | None, ...]:
    """One for every input, not negative."""
    dims = [0 if tensor.dim() else None for tensor in example] if given is None else list(given)
    if len(dims) != len(example):
        raise ValueError(f"batch_dims must have one entry for each of {len(example)} inputs, got {given!r}.")
    for tensor, dim in zip(example, dims, strict=True):
        if dim is not None and not -tensor.dim() <= dim < tensor.dim():
            raise ValueError(f"batch_dims says {dim} of an input with shape {list(tensor.shape)}.")
    pairs = list(zip(example, dims, strict=True))
    sizes = {tensor.shape[dim] for tensor, dim in pairs if dim is not None}
    if len(sizes) > 1:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in example)
        raise ValueError(
            f"The inputs {shapes} do not agree about the batch size in dimensions {tuple(dims)}. Say for every "
            "input which one counts examples, for example batch_dims=(1, 0), with None for an input without."
        )
    return tuple(None if dim is None else dim % tensor.dim() for tensor, dim in pairs)


def _converted(
    chosen: _Format, module: nn.Module, example: Inputs, dims: tuple[int | None, ...], tolerance: float
) -> tuple[bytes, float, bool]:
    """A file's content that was compared with the module, their difference, and whether any batch size will do."""
    # That is asked for first, as some modules fix theirs. A tracer fails with errors of many kinds.
    if any(dim is not None for dim in dims):
        batch = torch.export.Dim("batch")
        shapes = tuple(None if dim is None else {dim: batch} for dim in dims)
        with suppress(Exception):
            content = chosen.write(module, _at_least_two(example, dims), shapes)
            trials = [example, *_fresh(example, dims, dynamic=True)]
            return content, _compare(chosen, content, module, trials, tolerance), True
    with _explained(f"{type(module).__name__} cannot be written as {chosen.file}"):
        content = chosen.write(module, example, (None,) * len(example))
    trials = [example, *_fresh(example, dims, dynamic=False)]
    return content, _compare(chosen, content, module, trials, tolerance), False


@contextmanager
def _explained(problem: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ValueError(f"{problem}: {error}") from error


def _at_least_two(example: Inputs, dims: tuple[int | None, ...]) -> Inputs:
    """The example with its only row repeated: torch.export would take a batch size of 1 for a constant."""
    return tuple(
        tensor if dim is None or tensor.shape[dim] > 1 else torch.cat([tensor, tensor], dim)
        for tensor, dim in zip(example, dims, strict=True)
    )


def _fresh(example: Inputs, dims: tuple[int | None, ...], *, dynamic: bool) -> list[Inputs]:
    """Other inputs like the example: of one row and of two more where the batch size is free."""
    random, pairs = generator(0), list(zip(example, dims, strict=True))
    count = next((tensor.shape[dim] for tensor, dim in pairs if dim is not None), 1)
    drawn = [torch.randint(count, (size,), generator=random) for size in ([1, count + 2] if dynamic else [count])]
    return [tuple(_resampled(tensor, dim, rows, random) for tensor, dim in pairs) for rows in drawn]


def _resampled(tensor: Tensor, dim: int | None, rows: Tensor, random: torch.Generator) -> Tensor:
    """Some rows of whole numbers, which may be indices or lengths; normal numbers on the scale of any others."""
    if dim is None:
        return tensor
    taken = tensor.index_select(dim, rows.to(tensor.device))
    if not tensor.is_floating_point():
        return taken
    deviation, mean = torch.std_mean(tensor.double(), correction=0)
    noise = torch.randn(taken.shape, generator=random, dtype=torch.float64).to(tensor.device)
    return (mean + noise * (deviation if deviation > 0 else 1.0)).to(tensor.dtype)


def _compare(chosen: _Format, content: bytes, module: nn.Module, trials: list[Inputs], tolerance: float) -> float:
    """The largest difference of the outputs; raises if it is too large."""
    worst, problem = 0.0, f"{type(module).__name__} cannot be run as {chosen.file}, and nothing was written"
    with _explained(problem):
        run = chosen.read(content, module)
    for inputs in trials:
        with _explained(f"{type(module).__name__} fails on {_LIKE}, and nothing was written"):
            expected = _outputs(module(*inputs))
        with _explained(problem):
            got = run(inputs)
        if [tensor.shape for tensor in got] != [tensor.shape for tensor in expected]:
            raise ValueError(_disagreement(chosen, module, inputs, "returns other shapes than the module"))
        for ours, theirs in zip(expected, got, strict=True):
            difference, scale = _difference(ours, theirs)
            if not difference <= tolerance * scale:
                what = f"is off by {difference:.2g} where the largest output is {scale:.2g}"
                raise ValueError(_disagreement(chosen, module, inputs, what))
            worst = max(worst, difference)
    return worst


def _disagreement(chosen: _Format, module: nn.Module, inputs: Inputs, what: str) -> str:
    shapes = ", ".join(str(list(tensor.shape)) for tensor in inputs)
    return (
        f"{type(module).__name__} as {chosen.file} {what}, for inputs {shapes}. Nothing was written. Look for "
        "randomness, or for what depends on the values of tensors; a larger tolerance allows for rounding."
    )


def _difference(ours: Tensor, theirs: Tensor) -> tuple[float, float]:
    """The largest absolute difference, and the largest finite output; the same infinities and NaNs are equal."""
    ours, theirs = ours.detach().cpu().double(), theirs.detach().cpu().double()
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    off = torch.where(same, 0.0, (ours - theirs).abs()).nan_to_num(nan=torch.inf)
    scale = torch.where(ours.isfinite(), ours.abs(), 0.0)
    return (off.max().item(), scale.max().item()) if off.numel() else (0.0, 0.0)


def _outputs(result: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


def _format(to: Literal["plain", "pt2", "onnx"]) -> _Format:
    if to == "pt2":
        return _Format("model.pt2", _write_program, _read_program)
    if to == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            _import(package, "onnx")
        return _Format("model.onnx", _write_onnx, _read_onnx)
    file = _SAFE if find_spec("safetensors") else _PICKLED
    return _Format(file, partial(_write_weights, file), partial(_read_weights, file))


def _import(package: str, extra: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(
            f"This needs the package {package.partition('.')[0]}. Run pip install 'advnas[{extra}]'."
        ) from error


def _write_program(module: nn.Module, inputs: Inputs, shapes: Shapes) -> bytes:
    program, buffer = torch.export.export(module, inputs, dynamic_shapes=shapes), io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


def _read_program(content: bytes, module: nn.Module) -> Runner:
    program = torch.export.load(io.BytesIO(content)).module()
    return lambda inputs: _outputs(program(*inputs))


def _write_onnx(module: nn.Module, inputs: Inputs, shapes: Shapes) -> bytes:
    program = torch.export.export(module, inputs, dynamic_shapes=shapes)
    with warnings.catch_warnings():
        # Torch's exporter uses what torch itself has deprecated; there is nothing that a user could change.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        logging.getLogger("torch.onnx._internal.exporter").setLevel(logging.ERROR)  # it misses torchvision, aloud
        converted = torch.onnx.export(program, dynamo=True, external_data=False, verbose=False)
    assert converted is not None
    content: bytes = converted.model_proto.SerializeToString()
    return content


def _read_onnx(content: bytes, module: nn.Module) -> Runner:
    session = _import("onnxruntime", "onnx").InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]

    def run(inputs: Inputs) -> list[Tensor]:
        arrays = [tensor.cpu().numpy() for tensor in inputs]
        return [torch.as_tensor(output) for output in session.run(None, dict(zip(names, arrays, strict=True)))]

    return run


def _write_weights(file: str, module: nn.Module, inputs: Inputs, shapes: Shapes) -> bytes:
    """Of tensors that share their memory, as tied embeddings do, the first is written."""
    state = _tensors(module)
    weights = {name: state[name].detach().cpu().contiguous().clone() for name in _owners(state).values()}
    if file == _SAFE:
        content: bytes = _import("safetensors.torch", "safetensors").save(weights, {"format": "pt"})
        return content
    buffer = io.BytesIO()
    torch.save(weights, buffer)
    return buffer.getvalue()


def _read_weights(file: str, content: bytes, module: nn.Module) -> Runner:
    """A copy that has lost its weights must get them back."""
    twin = copy.deepcopy(module)
    for tensor in _tensors(twin).values():
        tensor.zero_()
    _load(twin, _parsed(file, content), file)
    return lambda inputs: _outputs(twin(*inputs))


def load_plain(module: nn.Module, folder: Path | str) -> None:
    """Load the weights that `export(..., "plain")` wrote. Nothing in the file can execute code.

    Raises:
        FileNotFoundError: the folder has no weights.
        ValueError: the file is damaged, or a tensor does not fit; the message names it. The module is not changed.
    """
    folder = Path(folder)
    path = next((folder / file for file in (_SAFE, _PICKLED) if (folder / file).is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f"{folder} has no {_SAFE} and no {_PICKLED}. Write them with export(module, example, folder, 'plain')."
        )
    _load(module, _parsed(str(path), path.read_bytes()), str(path))


def _parsed(file: str, content: bytes) -> dict[str, Tensor]:
    safetensors = _import("safetensors.torch", "safetensors") if file.endswith(_SAFE) else None
    try:
        weights = safetensors.load(content) if safetensors else load_torch_file(io.BytesIO(content))
    except Exception as error:  # of many kinds, depending on where the file is damaged
        reason = " ".join(str(error).split())
        raise ValueError(f"{file} is damaged, or no file of weights: {reason} Export the module again.") from error
    if not isinstance(weights, dict) or not all(map(_is_named_tensor, weights.items())):
        raise ValueError(f"{file} is no file of weights: it must hold tensors by name. Export the module again.")
    return weights


def _is_named_tensor(entry: tuple[Any, Any]) -> bool:
    """One that can be copied: neither sparse nor only a shape."""
    name, tensor = entry
    whole = isinstance(tensor, Tensor) and tensor.layout == torch.strided and not tensor.is_meta
    return isinstance(name, str) and whole


def _load(module: nn.Module, weights: dict[str, Tensor], source: str) -> None:
    state = _tensors(module)
    owners = _owners(state)
    written = {owners[_place(state[name])]: name for name in weights if name in state}
    # Names of one tensor are as good as each other.
    whole = {name: weights[written[owner]] for name in state if (owner := owners[_place(state[name])]) in written}
    whole |= weights
    missing, unexpected = state.keys() - whole.keys(), whole.keys() - state.keys()
    wrong = [
        f"{name} is {_describe(whole[name])} in the file and {_describe(tensor)} in the module"
        for name, tensor in state.items()
        if name in whole and _describe(whole[name]) != _describe(tensor)
    ]
    problems = [
        *([f"the file has no {', '.join(sorted(missing))}"] if missing else []),
        *([f"the module has no {', '.join(sorted(unexpected))}"] if unexpected else []),
        *wrong,
    ]
    if problems:
        raise ValueError(
            f"The weights in {source} do not fit into this {type(module).__name__}: {'; '.join(problems)}. Derive "
            f"the architecture that was exported{_NORMS if any('running_' in name for name in unexpected) else ''}."
        )
    module.load_state_dict(whole)


_NORMS = ", and give it running statistics with advnas.answers.track_norms(module)"


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    state: dict[str, Any] = module.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"{type(module).__name__} keeps {type(value).__name__} under {name!r} in its state, and a file of "
                "weights holds only tensors. Keep it in a buffer, or export to 'pt2'."
            )
    return dict(state)


Place = tuple[Any, ...]


def _place(tensor: Tensor) -> Place:
    """Where a tensor lies in memory and how; the same for two names of one tensor."""
    # Tensors without elements all lie nowhere.
    where = tensor.data_ptr() if tensor.numel() else id(tensor)
    return (tensor.device, where, tensor.dtype, tensor.shape, tensor.stride())


def _owners(state: Mapping[str, Tensor]) -> dict[Place, str]:
    """The first name of every tensor."""
    owners: dict[Place, str] = {}
    for name, tensor in state.items():
        owners.setdefault(_place(tensor), name)
    return owners


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
