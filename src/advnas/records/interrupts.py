"""Ctrl-C held back while a state changes, so that it never stops half-way."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Hold:
    """The handler that stands in for another, and whether a signal has come."""

    def __init__(self) -> None:
        self.pending = False
        self.before: Any = signal.getsignal(signal.SIGINT)

    def note(self, number: int, frame: object) -> None:
        self.pending = True

    def deliver(self) -> None:
        if self.pending:
            self.pending = False
            signal.raise_signal(signal.SIGINT)


_holds: list[_Hold] = []  # at most one: a hold inside another changes nothing


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back while the block runs; it takes effect when the block is left.

    Only the main thread is ever interrupted; in others nothing is changed.
    """
    hold = _Hold() if _can_hold() else None
    if hold is None:
        yield
        return
    try:
        signal.signal(signal.SIGINT, hold.note)
        _holds.append(hold)
        yield
    finally:
        _holds.clear()
        signal.signal(signal.SIGINT, hold.before)
        hold.deliver()


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C through in a part of a block that holds it back: long work that changes nothing."""
    hold = _holds[0] if _holds and _in_main_thread() else None
    if hold is None:
        yield
        return
    try:
        signal.signal(signal.SIGINT, hold.before)
        hold.deliver()
        yield
    finally:
        hold.before = signal.signal(signal.SIGINT, hold.note)  # whoever stood there may have left it to another


def _can_hold() -> bool:
    return not _holds and _in_main_thread() and signal.getsignal(signal.SIGINT) is not None


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
