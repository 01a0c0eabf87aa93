"""Ctrl-C and SIGTERM as requests to stop."""

import signal
import threading
from typing import Any, Self


class StopSignals:
    """Turn Ctrl-C and SIGTERM into a request while the block runs, so that a run can save before it stops.

    A second Ctrl-C interrupts at once. Only the main thread can handle signals; in others nothing is changed.

    Attributes:
        requested: Whether a signal came.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: object) -> None:
        # Ctrl-C reaches every process of a terminal, and one of them may send SIGTERM to the others.
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
