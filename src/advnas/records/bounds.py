"""Files from elsewhere take no more memory than they may: sizes are known before anything is unpacked."""

import gzip
import pickletools
import zipfile
from pathlib import Path
from typing import IO, Any, cast

from advnas.arguments import format_size

_LARGEST_PICKLE = 2**28  # bytes; the tensors of a file of torch's are not in its pickle
_PICKLE = "/data.pkl"

# What the pickle of a plain state names. torch allows more, and some of that makes gigabytes of one number.
_NAMES = {
    "_codecs encode",
    "builtins complex",
    "builtins set",
    "collections OrderedDict",
    "torch Size",
    "torch device",
    "torch._utils _rebuild_meta_tensor_no_storage",
    "torch._utils _rebuild_parameter",
    "torch._utils _rebuild_qtensor",
    "torch._utils _rebuild_sparse_tensor",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_tensor_v3",
    "torch.serialization _get_layout",
    "torch.storage UntypedStorage",
}


def read_at_most(file: IO[bytes], most: int) -> bytes:
    """Read a file that is being unpacked to its end.

    Args:
        file: such as a GzipFile.
        most: how many bytes it may have.

    Raises:
        ValueError: there are more.
    """
    content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it unpacks to more than {format_size(most)}")
    return content


def unpacked(path: Path, most: int) -> bytes:
    """The content of a file, unpacked if its name ends in .gz; ValueError if it has more than so many bytes."""
    if path.suffix == ".gz":
        with gzip.open(path) as zipped:
            return read_at_most(cast("IO[bytes]", zipped), most)
    with path.open("rb") as file:
        return read_at_most(file, most)


def load_torch_file(source: Path | IO[bytes]) -> Any:
    """Read tensors, numbers, texts and containers of them from what `torch.save` has written, to the CPU.

    Nothing in the file can run code, or take more memory than the file has bytes: its parts must not be compressed,
    and the pickle among them may only name what such values need.

    Raises:
        ValueError: it may not be read. What torch cannot read raises errors of many kinds.
    """
    import torch  # here, so that tables can be read without it

    _check_parts(source)
    if not isinstance(source, Path):
        source.seek(0)
    return torch.load(source, map_location="cpu", weights_only=True)


def _check_parts(source: Path | IO[bytes]) -> None:
    with zipfile.ZipFile(source) as archive:
        parts = archive.infolist()
        if any(part.compress_type != zipfile.ZIP_STORED or part.file_size != part.compress_size for part in parts):
            raise ValueError("a part of it is compressed, which torch does not do")
        for part in parts:
            if part.filename.endswith(_PICKLE):
                with archive.open(part) as file:
                    _check_names(read_at_most(file, _LARGEST_PICKLE))


def _check_names(pickled: bytes) -> None:
    for operation, argument, _ in pickletools.genops(pickled):
        if operation.name in ("GLOBAL", "INST", "STACK_GLOBAL") and not _is_known(str(argument)):
            raise ValueError(f"it names {argument}, which no state needs")


def _is_known(name: str) -> bool:
    """Whether it is in the list above, or a dtype or a kind of storage."""
    name = name.replace("__builtin__", "builtins")  # as Python 2 called it
    module, _, own = name.partition(" ")
    return name in _NAMES or (module == "torch" and (own.endswith("Storage") or own[:1].islower()))
