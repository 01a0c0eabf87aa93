"""Several processes at work on one search: how they find each other, and what they tell each other."""

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

_BUCKET = 25 * 2**20  # bytes; large enough for the wire to be busy, small beside a network
PATIENCE = timedelta(minutes=5)  # with a process that is alive and silent; a dead one is noticed at once
HEARTBEAT_TIMEOUT = 2.0  # seconds in which the living answer when somebody is gone
POLL = 0.05  # seconds between two looks at something that others may have changed


class RankGone(ConnectionError):
    """Another process of the search died or does not answer; this one cannot go on alone."""


class Group:
    """The processes of one search. This one is number `rank` of `size`; by default it is alone and sends nothing.

    All processes must make the same calls in the same order.
    sent, calls: bytes handed over to be reduced and how often, by purpose. What travels on the wire is up to
        2 (size - 1) / size times that, for a ring.
    """

    def __init__(self, rank: int = 0, size: int = 1, store: Store | None = None) -> None:
        self.rank, self.size = rank, size
        self.sent: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._store = store
        self._errands = 0

    def count_anew(self) -> None:
        """Forget what was sent so far."""
        self.sent.clear()
        self.calls.clear()

    def bytes_a_step(self) -> dict[str, float]:
        """By purpose, the mean over the calls since the counting began."""
        return {purpose: sent / self.calls[purpose] for purpose, sent in self.sent.items()}

    def sum_(self, tensors: Sequence[Tensor], purpose: str) -> None:
        """Replace every tensor by its sum over the processes; bit for bit the same on all of them."""
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
        """Replace every tensor by its mean over the processes; bit for bit the same on all of them."""
        self.sum_(tensors, purpose)
        if self.size > 1:
            for tensor in tensors:
                tensor.detach().div_(self.size)

    def copy_from_first_(self, tensors: Iterable[Tensor]) -> None:
        """Give every process the values that rank 0 has."""
        for tensor in tensors if self.size > 1 else ():
            value = tensor.detach().contiguous()
            with self._detect_lost_ranks():
                dist.broadcast(value, src=0)
            tensor.detach().copy_(value)

    def any(self, flag: bool) -> bool:
        """Whether it holds in any process."""
        if self.size == 1:
            return flag
        count = torch.tensor(float(flag))
        self.sum_([count], "signals")
        return bool(count.item())

    def wait(self) -> None:
        """Until all processes have come here."""
        self.any(False)

    def agree(self, what: str, value: str) -> None:
        """Raise in every process if they do not all have the same value."""
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
        """Rank 0 does something alone, and the others wait for as long as it takes."""
        self._errands += 1
        name = f"errand {self._errands}"
        if self.rank > 0:
            self._await_errand(name)
            return
        try:
            work()
        except BaseException:
            self._tell(name, "failed")
            raise
        self._tell(name, "done")

    def _tell(self, name: str, word: str) -> None:
        if self._store is not None:
            self._store.set(name, word)

    def _await_errand(self, name: str) -> None:
        assert self._store is not None
        try:
            while not self._store.check([name]):
                time.sleep(POLL)
            word = self._store.get(name)
        except RuntimeError as error:  # rank 0 may be the one who keeps the store
            raise RankGone(f"Rank 0 of {self.size} is gone ({_reason(error)}).") from error
        if word != b"done":
            raise RankGone(f"Rank 0 of {self.size} failed; its own message says why.")

    @contextmanager
    def _detect_lost_ranks(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            missing = self._missing()
            who = f"Rank {' and rank '.join(map(str, missing))} of {self.size}" if missing else "The connection"
            raise RankGone(f"{who} is gone ({_reason(error)}).") from error

    def _missing(self) -> list[int]:
        """Who does not answer. Everybody who notices the loss comes here, and leaves a sign for the others."""
        assert self._store is not None
        deadline = time.monotonic() + HEARTBEAT_TIMEOUT
        missing = [rank for rank in range(self.size) if rank != self.rank]
        try:
            self._store.set(f"alive {self.rank}", "")
            while missing and time.monotonic() < deadline:
                time.sleep(POLL)
                missing = [rank for rank in missing if not self._store.check([f"alive {rank}"])]
        except RuntimeError:
            return [0]  # who keeps the store
        return missing


def _reason(error: BaseException) -> str:
    """What gloo or nccl say, without the place in their source before it and the advice after it."""
    line = str(error).partition("\n")[0]
    return (re.sub(r"^.*\.cc:\d+\] ", "", line).partition(". ")[0])[:200]


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """The tensors in groups of one kind and a limited size, in an order that all processes share."""
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
