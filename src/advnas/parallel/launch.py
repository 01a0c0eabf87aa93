"""How the processes of one search are started and connected."""

import atexit
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnProcess
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore, rendezvous  # type: ignore[attr-defined]

from advnas.parallel.group import HEARTBEAT_TIMEOUT, PATIENCE, POLL, Group, RankGone
from advnas.records.signals import StopSignals

_OTHER_GONE = 3  # exit code of a rank that ends because another one has
_joined: list[Group] = []


def current() -> Group:
    """Return the group that this process has joined, or one of this process alone."""
    return _joined[-1] if _joined else Group()


def launched() -> bool:
    """Tell whether torchrun, or `spawn`, started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def restarts() -> int:
    """Return how often torchrun has restarted these processes."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


@contextmanager
def joined() -> Iterator[Group]:
    """Connect to the other processes that torchrun or `spawn` started: gloo for the CPU, nccl for CUDA.

    Where torch.distributed is initialised already, its processes are taken, and left connected. A process that
    nobody started together with others is alone.

    Yields:
        The group.

    Raises:
        ValueError: torch.distributed is initialised without gloo, which the tensors of theta need.
    """
    if dist.is_initialized():
        with _held(_connected()) as group:
            yield group
        return
    if not launched():
        with _held(Group()) as group:
            yield group
        return
    shared, rank, size = next(rendezvous("env://", timeout=PATIENCE))
    # torchrun may keep its store when it restarts all processes: old entries must not be read.
    store = PrefixStore(f"attempt {restarts()}", shared)
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"  # theta is small and lives on the CPU
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    try:
        with _held(Group(rank, size, PrefixStore("advnas", store))) as group:
            yield group
    finally:
        dist.destroy_process_group()


@contextmanager
def _held(group: Group) -> Iterator[Group]:
    """While this is open, `current` returns the group."""
    _joined.append(group)
    try:
        yield group
    finally:
        _joined.pop()


def _connected() -> Group:
    """The processes that somebody else has connected."""
    devices = dist.get_backend_config()
    if "cpu:gloo" not in devices:
        raise ValueError(
            f"torch.distributed is initialised with {devices}, and theta's tensors on the CPU need gloo. Write "
            'torch.distributed.init_process_group("cpu:gloo,cuda:nccl").'
        )
    store = dist.distributed_c10d._get_default_store()
    return Group(dist.get_rank(), dist.get_world_size(), PrefixStore("advnas", store))


def spawn(work: Callable[..., object], arguments: tuple[Any, ...], count: int) -> None:
    """Run a function in several processes on this machine, as torchrun would.

    If one of them dies, the others get a few seconds to report it, and are ended.

    Args:
        work: The function; it calls `joined`.
        arguments: Its arguments.
        count: How many processes to start.

    Raises:
        RankGone: One of them failed.
        KeyboardInterrupt: The processes were stopped by a signal.
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
            ended = _watch(ranks, signals)
    finally:
        for process in ranks:
            process.kill()
            process.join()
    if signals.requested:
        raise KeyboardInterrupt("The processes were stopped.")
    if any(ended.values()):
        raise RankGone(f"{_culprit(ended, count)}, and the others with it.")


def _culprit(ended: dict[int, int], count: int) -> str:
    """Who failed first of its own, or did not answer, and not those who only noticed. ended: codes, in order."""
    own = {rank: code for rank, code in ended.items() if code not in (0, _OTHER_GONE)}
    silent = [rank for rank in range(count) if rank not in ended]
    if own:
        first = next(iter(own))
        return f"Rank {first} of {count} ended {_how(own[first])}"
    if silent:
        return f"Rank {silent[0]} of {count} was alive, did not answer for {PATIENCE} and was ended"
    return f"The connection between the {count} ranks was lost, all of them ended"


def _watch(ranks: list[SpawnProcess], signals: StopSignals) -> dict[int, int]:
    """Wait until all are done, or one has failed and the others had time to report it. Pass a signal on to them.

    Returns:
        The exit codes of those that have ended, in this order.
    """
    forwarded, deadline = False, None
    ended: dict[int, int] = {}
    while True:
        for rank, process in enumerate(ranks):
            if rank not in ended and process.exitcode is not None:
                ended[rank] = process.exitcode
        if len(ended) == len(ranks):
            return ended
        if signals.requested and not forwarded:
            forwarded = True
            for process in ranks:
                process.terminate()
        if deadline is None and any(ended.values()):
            deadline = time.monotonic() + 3 * HEARTBEAT_TIMEOUT
        if deadline is not None and time.monotonic() > deadline:
            return ended
        time.sleep(POLL)


def _environment(rank: int, size: int, port: int) -> dict[str, str]:
    """The environment variables that torchrun sets for a process."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store runs in the parent, so it survives any rank
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
        code = _OTHER_GONE if isinstance(error, RankGone) else 2
    except KeyboardInterrupt:
        code = 130
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: threads of torch that still run while the interpreter shuts down may block or abort it.
    os._exit(code)


def die_with(parent: int) -> None:
    """End this process when its parent ends.

    A study that was killed may be restarted at once: nobody else may still be writing to its folder.

    Args:
        parent: The process id of the parent.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _how(code: int | None) -> str:
    return f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
