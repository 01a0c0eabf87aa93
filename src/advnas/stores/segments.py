"""The format of a segment: a record per candidate, which is a header and the memory of the tensors it lists."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from advnas.records.checkpoints import DamagedCheckpoint
from advnas.records.files import is_plain_name
from advnas.stores.candidate_weights import VALUE, CandidateWeights

_HEADER_LENGTH = 8  # bytes of the number in front of the header

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.complex64,
        torch.complex128,
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
    )
}


class SavedTensor(NamedTuple):
    """A tensor of a record: the parameter it belongs to, VALUE or the key of the optimiser's state, its values."""

    parameter: str
    key: str
    tensor: Tensor


class _Layout(NamedTuple):
    """An entry of a header."""

    parameter: str
    key: str
    dtype: torch.dtype
    shape: list[int]
    stride: list[int]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def write_record(file: BinaryIO, candidate: CandidateWeights) -> tuple[int, str]:
    """Append a record: the length of a header, the header in JSON, the memory of every tensor.

    Args:
        file: The segment.
        candidate: Whose weights and optimiser state to write.

    Returns:
        Length and SHA-256 of the record.
    """
    layouts = [[*key, *_describe(offloaded.backing)] for key, offloaded in candidate.tensors.items()]
    header = json.dumps(layouts).encode()
    start = len(header).to_bytes(_HEADER_LENGTH, "little")
    digest, length = hashlib.sha256(), 0
    parts: list[bytes | memoryview] = [start, header, *map(_memory, candidate.backings)]
    for part in parts:
        digest.update(part)
        file.write(part)
        length += len(part)
    return length, digest.hexdigest()


def read_record(folder: Path, entry: Any, candidate: CandidateWeights) -> list[SavedTensor]:
    """Read and check a record; nothing is changed.

    Args:
        folder: Where the segments are.
        entry: Where the record is: [file, offset, length, SHA-256].
        candidate: Whose record it is to be.

    Returns:
        Its tensors.

    Raises:
        DamagedCheckpoint: The record is not what was written.
        ValueError: The record is of another network, or `entry` is no entry.
    """
    if not _is_entry(entry):
        raise ValueError(f"the entry of {candidate.name!r} is {entry!r}, not [file, offset, length, SHA-256]")
    where = f"{folder / entry[0]}, record of {candidate.name!r},"
    content = _read(folder / entry[0], *entry[1:], where=where)
    try:
        layouts, start = _parse_header(content)
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedCheckpoint(f"{where} is damaged: its header is not that of a record ({error}).") from error
    _check_fits(layouts, candidate, where)
    return _tensors(layouts, content[start:])


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, list)
        and [type(part) for part in entry] == [str, int, int, str]
        and is_plain_name(entry[0])
        and entry[1] >= 0
        and entry[2] >= _HEADER_LENGTH
    )


def _read(path: Path, offset: int, length: int, checksum: str, *, where: str) -> memoryview:
    if not path.is_file():
        raise DamagedCheckpoint(f"{path} is missing; the checkpoint needs it.")
    if offset + length > path.stat().st_size:  # before memory is set aside for it
        raise DamagedCheckpoint(f"{where} is damaged: the file has only {path.stat().st_size} bytes.")
    content = bytearray(length)
    with path.open("rb") as file:
        file.seek(offset)
        file.readinto(content)
    if hashlib.sha256(content).hexdigest() != checksum:
        raise DamagedCheckpoint(f"{where} is damaged: its SHA-256 is not the one in the checkpoint.")
    return memoryview(content)


def _parse_header(content: memoryview) -> tuple[list[_Layout], int]:
    """The layouts, and where the tensors start; ValueError or TypeError if it is no header of this record."""
    start = int.from_bytes(content[:_HEADER_LENGTH], "little") + _HEADER_LENGTH
    if start > len(content):
        raise ValueError("it is longer than the record")
    layouts = [_parse_layout(*fields) for fields in json.loads(bytes(content[_HEADER_LENGTH:start]))]
    if len({(layout.parameter, layout.key) for layout in layouts}) < len(layouts):
        raise ValueError("a tensor is listed twice")
    if start + sum(layout.bytes for layout in layouts) != len(content):
        raise ValueError("its tensors do not fill the record")
    return layouts, start


def _parse_layout(parameter: Any, key: Any, dtype: Any, shape: Any, stride: Any) -> _Layout:
    if not (isinstance(parameter, str) and isinstance(key, str) and isinstance(dtype, str) and dtype in _DTYPES):
        raise ValueError(f"{[parameter, key, dtype]} is no parameter, key and dtype")
    if not _is_dense(shape, stride):
        raise ValueError(f"{[shape, stride]} are no sizes and strides")
    return _Layout(parameter, key, _DTYPES[dtype], shape, stride)


def _is_dense(shape: Any, stride: Any) -> bool:
    """Whether sizes and strides are those of a tensor whose numbers fill its memory, in whatever order."""
    if not (isinstance(shape, list) and isinstance(stride, list) and len(shape) == len(stride)):
        return False
    if not all(type(number) is int and 0 <= number < 2**62 for number in (*shape, *stride)):
        return False
    filled = 1
    for step, size in sorted(zip(stride, shape, strict=True)):
        if size != 1:
            if step != filled:
                return False
            filled *= size
    return True


def _check_fits(layouts: list[_Layout], candidate: CandidateWeights, where: str) -> None:
    """Raise ValueError unless these are the parameters of the candidate: copying would broadcast smaller ones."""
    known = candidate.parameters
    if {layout.parameter for layout in layouts if layout.key == VALUE} != known.keys():
        raise ValueError(f"{where} is of another network: its parameters should be {', '.join(known)}")
    for layout in layouts:
        parameter = known.get(layout.parameter)
        name = f"{layout.parameter} {layout.key}".rstrip()
        if parameter is None or layout.shape != list(parameter.shape):
            expected = "missing" if parameter is None else list(parameter.shape)
            raise ValueError(f"{where} is of another network: {name} is {layout.shape}, and should be {expected}")
        if layout.key == VALUE and layout.dtype != parameter.dtype:
            raise ValueError(
                f"{where} is of another network: {name} is {layout.dtype}, and should be {parameter.dtype}"
            )


def _tensors(layouts: list[_Layout], memory: memoryview) -> list[SavedTensor]:
    saved, start = [], 0
    for layout in layouts:
        tensor = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype)
        _memory(tensor)[:] = memory[start : start + tensor.nbytes]
        start += tensor.nbytes
        saved.append(SavedTensor(layout.parameter, layout.key, tensor))
    return saved


def _describe(tensor: Tensor) -> list[Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise ValueError(
            f"A disk store saves tensors of {', '.join(_DTYPES)}, and one of the candidates' is {dtype}."
        )
    return [dtype, list(tensor.shape), list(tensor.stride())]


def _memory(tensor: Tensor) -> memoryview:
    """The memory of a dense tensor, in the order in which its numbers are there."""
    flat = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
    return memoryview(flat.numpy())  # type: ignore[arg-type]
