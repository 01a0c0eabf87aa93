"""Group: the processes that run one search together, and their collective operations."""

import hashlib
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

_BUCKET = 25 * 2**20  # bytes; large enough to use the network well, small compared to a model
PATIENCE = timedelta(minutes=5)  # for a process that is alive and does not answer; a dead one is noticed at once
HEARTBEAT_TIMEOUT = 2.0  # seconds in which the other ranks answer after one was lost
POLL = 0.05  # seconds between two checks of what other processes do


class RankGone(ConnectionError):
    """Another process of the search died or does not answer; this one cannot continue alone."""


class Group:
    """The processes of one search. All of them must make the same calls in the same order.

    Args:
        rank: The number of this process, from 0.
        size: How many processes there are. One process alone, the default, sends nothing.
        store: Shared by the processes; needed if there are several.

    Attributes:
        sent: Bytes that were reduced, by purpose. A ring sends up to 2 (size - 1) / size times that.
        calls: How often, by purpose.
    """

    def __init__(self, rank: int = 0, size: int = 1, store: Store | None = None) -> None:
        self.rank, self.size = rank, size
        self.sent: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._store = store
        self._tasks = 0  # done by rank 0 alone

    def count_anew(self) -> None:
        """Set `sent` and `calls` back to 0."""
        self.sent.clear()
        self.calls.clear()

    def bytes_a_step(self) -> dict[str, float]:
        """Return the mean of `sent` per call, by purpose."""
        return {purpose: sent / self.calls[purpose] for purpose, sent in self.sent.items()}

    def sum_(self, tensors: Sequence[Tensor], purpose: str) -> None:
        """Replace every tensor by its sum over the processes; the result is bit for bit the same on all of them.

        Args:
            tensors: Of the same shapes and dtypes in every process.
            purpose: What to count the bytes under.

        Raises:
            RankGone: Another process died or does not answer.
        """
        if self.size == 1:
            return
        self.calls[purpose] += 1
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.detach().reshape(-1) for tensor in bucket])
            self.sent[purpose] += flat.nbytes
            with self._detect_lost_ranks():
                dist.all_reduce(flat)
            pieces = torch.split(flat, [tensor.numel() for tensor in bucket])
            for tensor, piece in zip(bucket, pieces, strict=True):
                tensor.detach().copy_(piece.view(tensor.shape))

    def average_(self, tensors: Sequence[Tensor], purpose: str) -> None:
        """Replace every tensor by its mean over the processes; see `sum_`."""
        self.sum_(tensors, purpose)
        if self.size > 1:
            for tensor in tensors:
                tensor.detach().div_(self.size)

    def copy_from_first_(self, tensors: Iterable[Tensor]) -> None:
        """Copy the values of rank 0 to every process."""
        for tensor in tensors if self.size > 1 else ():
            value = tensor.detach().contiguous()
            with self._detect_lost_ranks():
                dist.broadcast(value, src=0)
            tensor.detach().copy_(value)

    def any(self, flag: bool) -> bool:
        """Tell whether the flag is set in any process."""
        if self.size == 1:
            return flag
        count = torch.tensor(float(flag))
        self.sum_([count], "signals")
        return bool(count.item())

    def wait(self) -> None:
        """Wait until all processes have called this."""
        self.any(False)

    def agree(self, what: str, value: str) -> None:
        """Make sure that all processes have the same value.

        Args:
            what: The name of the value, for the error.
            value: What this process has.

        Raises:
            ValueError: They differ; raised in every process.
        """
        digest = int.from_bytes(hashlib.sha256(value.encode()).digest()[:4], "big")
        seen = torch.zeros(self.size, dtype=torch.float64)
        seen[self.rank] = digest
        self.sum_([seen], "agreement")
        if len(set(seen.tolist())) > 1:
            raise ValueError(
                f"The {self.size} processes of this search do not have the same {what}; rank {self.rank} has "
                f"{value[:200]}. Make it depend on the seed alone, not on the process."
            )

    def on_rank_zero(self, work: Callable[[], object]) -> None:
        """Call a function on rank 0 only; the others wait for as long as it takes.

        Args:
            work: The function.

        Raises:
            RankGone: On the other ranks, if rank 0 failed.
        """
        self._tasks += 1
        key = f"task {self._tasks}"
        if self.rank > 0:
            self._wait_for_rank_zero(key)
            return
        try:
            work()
        except BaseException:
            self._publish(key, "failed")
            raise
        self._publish(key, "done")

    def text_of_first(self, text: str) -> str:
        """Return the text that rank 0 has."""
        if self._store is None:
            return text
        self._tasks += 1
        key = f"text {self._tasks}"
        if self.rank == 0:
            self._store.set(key, text)
        with self._detect_lost_ranks():
            found: str = self._store.get(key).decode()
        return found

    def _publish(self, key: str, status: str) -> None:
        if self._store is not None:
            self._store.set(key, status)

    def _wait_for_rank_zero(self, key: str) -> None:
        assert self._store is not None
        try:
            while not self._store.check([key]):
                time.sleep(POLL)
            status = self._store.get(key)
        except RuntimeError as error:  # rank 0 may be the process that runs the store
            raise RankGone(f"Rank 0 of {self.size} is gone ({_reason(error)}).") from error
        if status != b"done":
            raise RankGone(f"Rank 0 of {self.size} failed; its own message says why.")

    @contextmanager
    def _detect_lost_ranks(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            lost = self._lost_ranks()
            who = f"Rank {' and rank '.join(map(str, lost))} of {self.size}" if lost else "The connection"
            raise RankGone(f"{who} is gone ({_reason(error)}).") from error

    def _lost_ranks(self) -> list[int]:
        """Find out who does not answer. Every rank that notices the loss calls this, and so tells the others."""
        assert self._store is not None
        deadline = time.monotonic() + HEARTBEAT_TIMEOUT
        silent = [rank for rank in range(self.size) if rank != self.rank]
        try:
            self._store.set(f"alive {self.rank}", "")
            while silent and time.monotonic() < deadline:
                time.sleep(POLL)
                silent = [rank for rank in silent if not self._store.check([f"alive {rank}"])]
        except RuntimeError:
            return [0]  # the process that runs the store
        return silent


def _reason(error: BaseException) -> str:
    """The message of gloo or nccl without the line of their source before it and the advice after it."""
    line = str(error).partition("\n")[0]
    return (re.sub(r"^.*\.cc:\d+\] ", "", line).partition(". ")[0])[:200]


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Split tensors into groups of one dtype and device and of limited size, in the same order in all processes."""
    bucket: list[Tensor] = []
    kinds = dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors)
    for kind in kinds:
        for tensor in tensors:
            if (tensor.dtype, tensor.device) != kind:
                continue
            if bucket and sum(each.nbytes for each in bucket) + tensor.nbytes > _BUCKET:
                yield bucket
                bucket = []
            bucket.append(tensor)
        if bucket:
            yield bucket
        bucket = []
