"""Arena: tensors in a memory-mapped scratch file."""

import mmap
import os
import tempfile
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

_ALIGNMENT = 64  # that of torch's own memory, which vectorised kernels need to be fast
_NEIGHBOURHOOD = 2**16  # bytes that Linux maps at once around a page that is read
_SMALLEST, _LARGEST = 2**22, 2**30  # sizes of mappings; each is as large as all before it, so there are few


@dataclass
class _Mapping:
    """A part of the file in memory, filled from its start."""

    pages: mmap.mmap
    address: int
    used: int = 0

    @property
    def end(self) -> int:
        return self.address + len(self.pages)


class Arena:
    """A file that grows as tensors are placed in it. Its pages are read into memory when they are used.

    The file has no name: the kernel deletes it when the process ends, however that happens. Releasing pages loses
    nothing: the kernel writes them to the file, and keeps a copy for as long as nobody else needs the memory.

    Args:
        folder: On a disk with enough room; None for the system's temporary folder.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file, path = tempfile.mkstemp(dir=folder, prefix="advnas-")
        Path(path).unlink()
        weakref.finalize(self, os.close, self._file)
        self._process = os.getpid()
        self._size = 0
        self._mappings: list[_Mapping] = []  # by address
        self._last: _Mapping | None = None

    def place(self, tensor: Tensor) -> Tensor:
        """Copy a tensor into the file, with its layout, and into a storage of exactly its size."""
        memory = self._allocate(tensor.nbytes)
        return memory.view(tensor.dtype).as_strided(tensor.shape, tensor.stride()).copy_(tensor)

    def check_process(self) -> None:
        """Raise RuntimeError in a process that was forked: it has the file in common with its parent."""
        if os.getpid() != self._process:
            raise RuntimeError(
                "This process was forked from one that searches with weights='disk', and both would write into the "
                "same scratch file: a step here would change the weights there. Make the Search in this process or "
                "start it with the 'spawn' method."
            )

    def holds(self, tensor: Tensor) -> bool:
        """Tell whether a tensor is in the file."""
        return tensor.device.type == "cpu" and self._find(tensor.data_ptr()) is not None

    def fetch(self, tensors: Iterable[Tensor]) -> None:
        """Start reading those tensors that are not in memory, without waiting for them."""
        self._advise(_ranges(tensors, mmap.PAGESIZE), mmap.MADV_WILLNEED)

    def footprint(self, tensors: Iterable[Tensor]) -> int:
        """Return the memory that tensors may need in use: their pages, and those mapped together with them."""
        return sum(end - start for start, end in _ranges(tensors, _NEIGHBOURHOOD))

    def release(self, tensors: Iterable[Tensor]) -> None:
        """Release the pages of tensors, and those mapped together with them."""
        self._advise(_ranges(tensors, _NEIGHBOURHOOD), mmap.MADV_DONTNEED)

    def release_all(self) -> None:
        """Release all pages."""
        for mapping in self._mappings:
            mapping.pages.madvise(mmap.MADV_DONTNEED)

    def drop(self) -> None:
        """Release all pages, write them to the disk, and ask the kernel to keep no copies either."""
        self.release_all()
        os.fsync(self._file)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)

    def _allocate(self, size: int) -> Tensor:
        mapping = self._last
        if mapping is None or mapping.used + size > len(mapping.pages):
            mapping = self._last = self._grow(size)
        memory = torch.frombuffer(mapping.pages, dtype=torch.uint8, count=size, offset=mapping.used)
        mapping.used += -(-size // _ALIGNMENT) * _ALIGNMENT
        return memory

    def _grow(self, size: int) -> _Mapping:
        length = max(size, _SMALLEST, min(self._size, _LARGEST))
        length = -(-length // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        _reserve(self._file, self._size, length)
        pages = mmap.mmap(self._file, length, offset=self._size)
        pages.madvise(mmap.MADV_RANDOM)  # otherwise the kernel also reads the candidates around the drawn one
        address = torch.frombuffer(pages, dtype=torch.uint8, count=1).data_ptr()
        mapping = _Mapping(pages, address)
        self._mappings = sorted([*self._mappings, mapping], key=lambda one: one.address)
        self._size += length
        return mapping

    def _find(self, address: int) -> _Mapping | None:
        index = bisect_right(self._mappings, address, key=lambda mapping: mapping.address) - 1
        mapping = self._mappings[index] if index >= 0 else None
        return mapping if mapping is not None and address < mapping.end else None

    def _advise(self, ranges: Iterable[tuple[int, int]], advice: int) -> None:
        for start, end in ranges:
            for mapping in self._mappings:
                first, last = max(start, mapping.address), min(end, mapping.end)
                if first < last:
                    mapping.pages.madvise(advice, first - mapping.address, last - first)


def _reserve(file: int, start: int, length: int) -> None:
    """Make sure that the disk has the room: a mapped page that cannot be written would end the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, start, length)
    else:
        os.truncate(file, start + length)


def _ranges(tensors: Iterable[Tensor], grain: int) -> Iterator[tuple[int, int]]:
    """The addresses of all blocks of `grain` bytes that hold a part of a tensor, adjacent ones joined."""
    spans = sorted(
        (tensor.data_ptr() // grain * grain, -(-(tensor.data_ptr() + tensor.nbytes) // grain) * grain)
        for tensor in tensors
    )
    current: tuple[int, int] | None = None
    for start, end in spans:
        if current is not None and start <= current[1]:
            current = current[0], max(current[1], end)
            continue
        if current is not None:
            yield current
        current = start, end
    if current is not None:
        yield current
