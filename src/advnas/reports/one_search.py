"""The report of one search that was run in Python."""

import json
import shutil
from pathlib import Path

from advnas.records.files import parse_json, write_atomically
from advnas.records.journal import Journal
from advnas.records.provenance import provenance
from advnas.search import Search, SearchRun
from advnas.search.recorder import FILES_OF_A_RUN, FORMAT

_COPY = "copied"  # says in run.json that the records are those of a report, which the next one replaces


def report(search: Search, folder: Path | str) -> Path:
    """Write the report of the latest `Search.run`: FOLDER/report/index.html and its parts.

    Args:
        search: what was run.
        folder: the folder of the run, or another, which then gets the records too. A report that was written there
            before, of this search or another, is replaced; the records of a run are not. A run without a folder
            has kept a record per epoch and not its steps, so its report says less about noise.

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
        if (target / "study.json").exists() or not _is_free(target):
            raise ValueError(f"{target} already holds the records of a search. Give another folder.")
        target.mkdir(parents=True, exist_ok=True)
        _write_records(run, target)
    try:
        from advnas.reports.page import write_report

        return write_report(target, None)[0]
    except ImportError as error:
        raise ValueError("A report needs matplotlib and jinja2. Write pip install 'advnas[reports]'.") from error


def _is_free(folder: Path) -> bool:
    """Whether no file of a run stands there, or those that an earlier report has copied."""
    asked = folder / "run.json"
    if asked.exists():
        return _COPY in parse_json(asked.read_bytes(), str(asked))
    return not any((folder / name).exists() for name in FILES_OF_A_RUN)


def _write_records(run: SearchRun, target: Path) -> None:
    asked = {"format": FORMAT, **run.asked(), "provenance": provenance()}
    if run.folder is not None:
        source = run.folder / "run.json"
        asked = parse_json(source.read_bytes(), str(source))
    write_atomically(target / "run.json", json.dumps({**asked, _COPY: True}, indent=1) + "\n")
    for name in FILES_OF_A_RUN[1:]:  # run.json, the first, is there
        (target / name).unlink(missing_ok=True)
        if run.folder is not None and (run.folder / name).exists():
            shutil.copyfile(run.folder / name, target / name)
    if run.folder is not None:
        return
    write_atomically(target / "result.json", json.dumps(run.result(), indent=1) + "\n")
    journal = Journal(target / "records.jsonl", keep=0)
    for record in run.records:
        journal.append(record)
    journal.close()
