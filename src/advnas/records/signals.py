"""Ctrl-C and SIGTERM as requests."""

import signal
import threading
from typing import Any, Self


class StopSignals:
    """While this is open, Ctrl-C and SIGTERM ask to stop instead of stopping: whoever works can save first.

    A second Ctrl-C interrupts at once. Python lets only the main thread listen; elsewhere nothing is changed.
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
        # Ctrl-C reaches every process of a terminal, and one of them may tell the others again.
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
