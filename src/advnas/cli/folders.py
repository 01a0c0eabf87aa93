"""Which folder `advnas search` writes, and which one it goes on with."""

from collections.abc import Iterator
from pathlib import Path

from advnas.cli.asked import STRATEGY, TASK, default_seeds
from advnas.cli.commands import Search
from advnas.cli.config import completed
from advnas.cli.console import console

ASKED = "search.toml"  # in a search's folder: what it was asked for
_BELOW = Path("runs")


def folder_of(asked: Search) -> Path:
    """The one that was asked for, or the next below runs/; with --resume, the newest that was stopped."""
    from advnas.parallel.launch import launched, restarts
    from advnas.studies.folder import numbered_folder

    if asked.folder is None and launched():
        raise ValueError("torchrun's processes must know where to meet. Add --folder F.")
    if asked.folder is None and asked.resume:
        return _newest(asked)
    if asked.folder is None:
        name = asked.task or TASK if asked.entry is None else asked.entry.rpartition(":")[2]
        return numbered_folder(_BELOW / f"{name}-{asked.strategy or STRATEGY}")
    begun = (asked.folder / "study.json").exists()
    if begun and not (asked.resume or restarts()):
        raise ValueError(f"{asked.folder} already holds a search. Add --resume to go on, or give another --folder.")
    if asked.resume and not (begun or restarts()):
        raise ValueError(
            f"There is no search in {asked.folder} to go on with. Leave out --resume to start one there."
        )
    return asked.folder


def _newest(asked: Search) -> Path:
    """Of the searches below runs/ like the one asked for, the newest that is not over, or else the newest."""
    found = sorted(_begun(asked), key=lambda folder: (not _is_over(folder), (folder / ASKED).stat().st_mtime))
    if not found:
        what = "such search" if asked.entry or asked.task or asked.strategy else "search"
        raise ValueError(
            f"There is no {what} below {_BELOW.resolve()} to go on with. Leave out --resume to start one, or add "
            "--folder F."
        )
    console(stderr=True).print(f"Going on with {found[-1]}")
    return found[-1]


def _begun(asked: Search) -> Iterator[Path]:
    for file in _BELOW.glob(f"*/{ASKED}"):
        before = _asked_in(file.parent)
        task = before.task or TASK if before.entry is None else None
        pairs = ((asked.entry, before.entry), (asked.task, task), (asked.strategy, before.strategy or STRATEGY))
        if all(wanted in (None, was) for wanted, was in pairs):
            yield file.parent


def _is_over(folder: Path) -> bool:
    """Whether all runs that were asked for have a result."""
    from advnas import strategies
    from advnas.studies.run import run_folder

    before = _asked_in(folder)
    first = before.seed or 0
    seeds = range(first, first + (before.seeds or default_seeds(before)))
    names = dict.fromkeys((before.strategy or STRATEGY, *strategies.baselines()))
    return all((run_folder(folder, name, seed) / "result.json").exists() for name in names for seed in seeds)


def _asked_in(folder: Path) -> Search:
    return completed(Search(), folder / ASKED, {})[0]
