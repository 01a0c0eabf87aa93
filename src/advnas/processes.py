"""Several processes at work on one search: how they find each other, and what they tell each other."""

import atexit
import hashlib
import multiprocessing
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.context import SpawnProcess
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore, rendezvous  # type: ignore[attr-defined]

from advnas.checkpoint import StopSignals

_BUCKET = 25 * 2**20  # bytes; large enough for the wire to be busy, small beside a network
_PATIENCE = timedelta(minutes=5)  # with a process that is alive and silent; a dead one is noticed at once
_ROLL_CALL = 2.0  # seconds in which the living answer when somebody is gone
_LOOK = 0.05  # seconds between two looks at something that others may have changed


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
            with self._noticing_the_dead():
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
            with self._noticing_the_dead():
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

    def first_does(self, work: Callable[[], object]) -> None:
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
                time.sleep(_LOOK)
            word = self._store.get(name)
        except RuntimeError as error:  # rank 0 may be the one who keeps the store
            raise RankGone(f"Rank 0 of {self.size} is gone ({_reason(error)}).") from error
        if word != b"done":
            raise RankGone(f"Rank 0 of {self.size} failed; its own message says why.")

    @contextmanager
    def _noticing_the_dead(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            missing = self._missing()
            who = f"Rank {' and rank '.join(map(str, missing))} of {self.size}" if missing else "The connection"
            raise RankGone(f"{who} is gone ({_reason(error)}).") from error

    def _missing(self) -> list[int]:
        """Who does not answer. Everybody who notices the loss comes here, and leaves a sign for the others."""
        assert self._store is not None
        deadline = time.monotonic() + _ROLL_CALL
        missing = [rank for rank in range(self.size) if rank != self.rank]
        try:
            self._store.set(f"alive {self.rank}", "")
            while missing and time.monotonic() < deadline:
                time.sleep(_LOOK)
                missing = [rank for rank in missing if not self._store.check([f"alive {rank}"])]
        except RuntimeError:
            return [0]  # who keeps the store
        return missing


_joined: list[Group] = []


def current() -> Group:
    """The group that this process has joined, or one of its own."""
    return _joined[-1] if _joined else Group()


def launched() -> bool:
    """Whether torchrun, or `spawn`, started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def restarts() -> int:
    """How often torchrun has started these processes again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


@contextmanager
def joined() -> Iterator[Group]:
    """Meet the processes that torchrun or `spawn` started beside this one: gloo for the CPU, nccl for CUDA."""
    shared, rank, size = next(rendezvous("env://", timeout=_PATIENCE))
    # torchrun may keep its store when it starts everybody again: what the dead left there must not be read.
    store = PrefixStore(f"attempt {restarts()}", shared)
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"  # theta is small and lives on the CPU
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_PATIENCE)
    _joined.append(Group(rank, size, PrefixStore("advnas", store)))
    try:
        yield _joined[-1]
    finally:
        _joined.pop()
        dist.destroy_process_group()


def spawn(work: Callable[..., object], arguments: tuple[Any, ...], count: int) -> None:
    """Run work(*arguments) in `count` processes on this machine, as torchrun would; they call `joined`.

    If one of them dies, the others get a few seconds to notice and to say so, and are ended.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    ranks = [
        context.Process(target=_begin, args=(work, arguments, _environment(rank, count, store.port), os.getpid()))
        for rank in range(count)
    ]
    for process in ranks:
        process.start()
    try:
        with StopSignals() as signals:
            _watch(ranks, signals)
    finally:
        for process in ranks:
            process.kill()
            process.join()
    if signals.requested:
        raise KeyboardInterrupt("The processes were stopped.")
    failed = {rank: process.exitcode for rank, process in enumerate(ranks) if process.exitcode}
    if failed:
        first = min(failed, key=lambda rank: (failed[rank] or 0, rank))  # who was killed, rather than who noticed
        raise RankGone(f"Rank {first} of {count} ended {_how(failed[first])}, and the others with it.")


def _watch(ranks: list[SpawnProcess], signals: StopSignals) -> None:
    """Until all are done, or one has failed and the others had time to notice. A signal is passed on to them."""
    told, deadline = False, None
    while any(process.is_alive() for process in ranks):
        if signals.requested and not told:
            told = True
            for process in ranks:
                process.terminate()
        if deadline is None and any(process.exitcode for process in ranks):
            deadline = time.monotonic() + 3 * _ROLL_CALL
        if deadline is not None and time.monotonic() > deadline:
            return
        time.sleep(_LOOK)


def _environment(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun tells a process."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store outlives any rank
    }


def _begin(
    work: Callable[..., object], arguments: tuple[Any, ...], environment: dict[str, str], parent: int
) -> None:
    os.environ.update(environment)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(environment["LOCAL_WORLD_SIZE"])))
    die_with(parent)
    code = 0
    try:
        work(*arguments)
    except (ValueError, OSError) as error:
        print(f"advnas, rank {environment['RANK']}: {error}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        code = 130
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: threads of torch that are still there when the interpreter is taken down may block or abort it.
    os._exit(code)


def die_with(parent: int) -> None:
    """End this process when its parent does.

    A study that was killed may be started again at once: nobody else may still be writing into its folder.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _how(code: int | None) -> str:
    return f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"


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
