"""Progress of a search on standard error: a live line on a terminal or in a notebook, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

from advnas.notebook import table
from advnas.search.callbacks import Callback, RunView
from advnas.search.step import Step
from advnas.search.verdict import initial_entropy

if TYPE_CHECKING:
    from advnas.search.search import Search

_SHOWN = 12  # decisions whose most likely operation is told
_LINES = 10  # about so many where nothing can be overwritten
_EVERY = 0.2  # seconds between two looks of a live display


class Display(Protocol):
    """Where progress is shown."""

    def show(self, run: RunView, text: str, share: float) -> None:
        """Show where the search stands; share: of all its turns."""

    def close(self) -> None:
        """Leave what was shown last."""


class ShowProgress(Callback):
    """Show epoch, loss, entropy, the most likely operations and the time that is left."""

    def __init__(self) -> None:
        self._started, self._shown, self._begun = 0.0, 0.0, 0.0
        self._loss: float | None = None
        self._display: Display | None = None

    def start(self, run: RunView) -> None:
        """Find out where to show it."""
        self._started, self._begun = time.monotonic(), run.epoch / run.length.epochs
        self._display = _find_display(run)

    def step(self, run: RunView, step: Step) -> None:
        """Follow the training loss; look again where the display is live."""
        if run.trains_weights(step):
            self._loss = step.loss if self._loss is None else 0.9 * self._loss + 0.1 * step.loss
        if not isinstance(self._display, PlainLines) and time.monotonic() - self._shown > _EVERY:
            self._show(run)

    def epoch(self, run: RunView) -> None:
        """Show the epoch."""
        self._show(run)

    def end(self, run: RunView) -> None:
        """Show the last state and leave it."""
        if self._display is not None:
            if not isinstance(self._display, PlainLines):
                self._show(run)
            self._display.close()
            self._display = None

    def _show(self, run: RunView) -> None:
        self._shown, share = time.monotonic(), run.epoch / run.length.epochs
        spent, done = self._shown - self._started, share - self._begun
        left = f", about {_duration(spent * (1 - share) / done)} left" if done > 0 and share < 1 else ""
        loss = "" if self._loss is None else f"loss {self._loss:.3g}, "
        metric = None if run.record is None else run.record["metric"]
        measured = "" if metric is None else f"metric {metric:.3g}, "
        text = f"epoch {run.epoch:.3g} of {run.length.epochs}: {loss}{measured}{_belief(run)}{left}"
        if self._display is not None:
            self._display.show(run, text, share)


class PlainLines:
    """About ten lines in all: for logs."""

    def __init__(self, epochs: int) -> None:
        self._every, self._next = max(1, epochs // _LINES), 0.0

    def show(self, run: RunView, text: str, share: float) -> None:
        """Print a line if one is due."""
        if run.epoch >= self._next or share >= 1:
            self._next = run.epoch + self._every
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """The lines stay."""


class Terminal:
    """A bar that overwrites itself."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(stderr=True)
        text = TextColumn("{task.description}", markup=False)  # names are the user's
        self._open = ExitStack()
        self._bar = self._open.enter_context(Progress(BarColumn(bar_width=20), text, console=console))
        self._task = self._bar.add_task("", total=1.0)

    def show(self, run: RunView, text: str, share: float) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=share, description=text)

    def close(self) -> None:
        """Stop moving."""
        self._open.close()


class NotebookCell:
    """One table below the cell, written anew."""

    def __init__(self) -> None:
        from IPython.display import display  # type: ignore[import-not-found,unused-ignore]

        self._handle: Any = display({"text/plain": ""}, raw=True, display_id=True)

    def show(self, run: RunView, text: str, share: float) -> None:
        """Write the table."""
        rows = [(name, *_best(row)) for name, row in run.search.probabilities().items()]
        page = table(text, rows[:_SHOWN], ("decision", "most likely", "probability"))
        self._handle.update({"text/plain": text, "text/html": page}, raw=True)

    def close(self) -> None:
        """It stays."""


def _find_display(run: RunView) -> Display:
    if _in_notebook():
        return NotebookCell()
    return Terminal() if sys.stderr.isatty() else PlainLines(run.length.epochs)


def _in_notebook() -> bool:
    """Whether IPython runs this with a kernel, and not on a terminal."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def _belief(run: RunView) -> str:
    if not run.search.architecture_steps:
        return "warm-up" if 0 < run.epoch <= run.length.warmup else "theta has not moved"
    entropy = f"entropy {run.search.distribution.entropy().mean().item():.3g} of {initial_entropy(run.search):.3g}"
    return f"{entropy}, {likely(run.search.probabilities())}"


def likely(probabilities: Mapping[str, Mapping[str, float]]) -> str:
    """The most likely operation of every decision, in words."""
    told = [f"{name} {' '.join(_best(row))}" for name, row in probabilities.items()]
    return "most likely: " + ", ".join(told[:_SHOWN]) + (f" and {len(told) - _SHOWN} more" if told[_SHOWN:] else "")


def _best(row: Mapping[str, float]) -> tuple[str, str]:
    operation, chance = max(row.items(), key=lambda pair: pair[1])
    return operation, f"{100 * chance:.0f} %"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def describe(search: "Search") -> str:
    """A search in one line."""
    taken, total = search.weight_steps, search.progress.steps
    steps = f"{taken:,} weight steps" if total is None else f"{taken:,} of {total:,} weight steps"
    entropy = f"entropy {search.distribution.entropy().mean().item():.3g} of {initial_entropy(search):.3g}"
    return f"Search({type(search.strategy).__name__}, {search.space!r}, {steps}, {entropy})"


def describe_html(search: "Search") -> str:
    """A search as a table: what it believes at every decision."""
    rows = [
        (name, ", ".join(f"{operation} {100 * chance:.0f} %" for operation, chance in row.items()))
        for name, row in search.probabilities().items()
    ]
    return table(describe(search), rows, ("decision", "probabilities"))
