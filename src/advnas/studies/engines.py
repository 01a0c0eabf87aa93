"""Where the runs of a study happen: in processes on this machine, or on a Ray cluster."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, wait
from functools import partial
from typing import Any, Protocol, Self

import torch

from advnas.parallel.launch import die_with

Work = Callable[..., None]

_RETRIES = 3  # of a run whose worker died on the cluster
_SAVING = 60.0  # seconds in which stopped runs finish their steps and save


class Engine(Protocol):
    """A place for runs. Open it before the first one, and close it after the last.

    room: how many runs may be handed over at the same time; None: as many as there are, the engine keeps a queue.
    """

    @property
    def room(self) -> int | None:
        """See above."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def submit(self, work: Work, *arguments: Any) -> Future[None]:
        """Start work(*arguments), which must be something that can be pickled."""

    def stop(self) -> None:
        """Let the runs under way finish their steps and save; start no other."""


class Processes:
    """Processes on this machine, which share its cores."""

    def __init__(self, count: int) -> None:
        self.room: int | None = count
        self._threads = max(1, (os.cpu_count() or 1) // count)
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        keep_freed_memory()
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(self.room, context, _begin_process, (self._threads, os.getpid()))
        return self

    def __exit__(self, *error: object) -> None:
        assert self._pool is not None
        self._pool.shutdown()

    def submit(self, work: Work, *arguments: Any) -> Future[None]:
        """In the next process that is free."""
        assert self._pool is not None
        return self._pool.submit(work, *arguments)

    def stop(self) -> None:
        """By a signal to each, and to no other child of this process."""
        assert self._pool is not None
        for process in list((self._pool._processes or {}).values()):  # Python 3.14 has `terminate_workers`
            process.terminate()
        self.__exit__()


class Ray:
    """A Ray cluster; without an address, the one of RAY_ADDRESS, or else a new one on this machine alone.

    Every run takes one core of a node. A run whose worker or node dies is started again, up to three times, and
    goes on from its checkpoint. All nodes must have advnas, and see the study's folder and the data under the same
    paths.
    """

    def __init__(self, address: str | None = None, room: int | None = None) -> None:
        self.address, self.room = address, room
        self._started: dict[Future[None], Any] = {}
        self._work: Any = None

    def __enter__(self) -> Self:
        try:
            import ray
        except ImportError as error:
            raise ValueError("The engine ray needs Ray. Write pip install 'advnas[ray]'.") from error
        try:
            _knock(self.address)
            ray.init(address=self.address, log_to_driver=False)
        except OSError as error:
            raise ValueError(
                f"There is no Ray cluster at {self.address!r}. Start one with `ray start --head`, or leave out the "
                "address to use this machine alone."
            ) from error
        self._work = ray.remote(num_cpus=1, max_retries=_RETRIES)(_on_a_node)
        return self

    def __exit__(self, *error: object) -> None:
        import ray

        ray.shutdown()  # ends what still runs there

    def submit(self, work: Work, *arguments: Any) -> Future[None]:
        """In the cluster's queue."""
        reference, future = self._work.remote(work, *arguments), Future[None]()
        reference.future().add_done_callback(partial(_pass_on, future))
        self._started[future] = reference
        return future

    def stop(self) -> None:
        """By an interrupt to each, which takes those that still wait out of the queue."""
        import ray

        left = [future for future in self._started if not future.done()]
        for future in left:
            ray.cancel(self._started[future])
        wait(left, _SAVING)


def _knock(address: str | None) -> None:
    """Raise at once where nobody listens; Ray would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.removeprefix("ray://"), int(port)), timeout=10).close()


def _pass_on(future: Future[None], over: Future[None]) -> None:
    """With the run's own error, where Ray has put one of its own around it."""
    error = over.exception()
    if error is None:
        future.set_result(None)
        return
    own = getattr(error, "cause", None)
    if isinstance(own, BaseException):
        own.__cause__ = error  # which knows where on the cluster it happened
    future.set_exception(own if isinstance(own, BaseException) else error)


def _on_a_node(work: Work, *arguments: Any) -> None:
    torch.set_num_threads(1)  # as many as the cores that the run has asked for
    work(*arguments)


def _begin_process(threads: int, parent: int) -> None:
    torch.set_num_threads(threads)
    die_with(parent)


def keep_freed_memory() -> None:
    """Tell glibc in the processes to come not to give memory back between steps: a tenth of a step's time."""
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(2**31 - 1))
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(2**30))
