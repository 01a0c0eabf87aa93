"""The report of one search that was run in Python."""

import json
import shutil
from pathlib import Path

from advnas.records.files import write_atomically
from advnas.records.journal import Journal
from advnas.records.provenance import provenance
from advnas.search import Search, SearchRun
from advnas.search.recorder import FORMAT

_FILES = ("run.json", "result.json", "metrics.jsonl", "records.jsonl", "timing.jsonl")


def report(search: Search, folder: Path | str) -> Path:
    """Write the report of the latest `Search.run`: FOLDER/report/index.html and its parts.

    Args:
        search: what was run.
        folder: the folder of the run, or a new one, which then gets the records too. A run without a folder has
            kept a record per epoch and not its steps, so its report says less about noise.

    Returns:
        The page; it needs nothing beside it.

    Raises:
        ValueError: nothing was run, the folder holds something else, or a package is missing.
    """
    run, target = search.latest_run, Path(folder)
    if run is None:
        raise ValueError(
            "There is nothing to report before search.run(...) has ended. Steps that you take are yours."
        )
    if run.folder is None or target.resolve() != run.folder.resolve():
        if (target / "run.json").exists() or (target / "study.json").exists():
            raise ValueError(f"{target} already holds the records of a search. Give another folder.")
        target.mkdir(parents=True, exist_ok=True)
        _write_records(run, target)
    try:
        from advnas.reports.page import write_report
    except ImportError as error:
        raise ValueError("A report needs matplotlib and jinja2. Write pip install 'advnas[reports]'.") from error
    return write_report(target, None)[0]


def _write_records(run: SearchRun, target: Path) -> None:
    if run.folder is not None:
        for name in _FILES:
            if (run.folder / name).exists():
                shutil.copyfile(run.folder / name, target / name)
        return
    asked = {"format": FORMAT, **run.asked(), "provenance": provenance()}
    write_atomically(target / "run.json", json.dumps(asked, indent=1) + "\n")
    write_atomically(target / "result.json", json.dumps(run.result(), indent=1) + "\n")
    journal = Journal(target / "records.jsonl", keep=0)
    for record in run.records:
        journal.append(record)
    journal.close()
