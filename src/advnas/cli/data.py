"""`advnas data` and `advnas query`: datasets, and tables of known results."""

import json
from pathlib import Path

from advnas.cli.commands import DataGet, Query
from advnas.cli.console import console, description


def query_benchmark(query: Query) -> None:
    """Accuracies, rank among all architectures, parameters and multiply-adds of one of them."""
    from rich.table import Table

    from advnas import tables
    from advnas.tasks.data_folder import data_folder

    benchmark = tables.get(query.benchmark)
    table = benchmark.load(benchmark.find(data_folder(query.data_folder)))
    found = benchmark.query(table, query.cell, query.dataset)
    if query.json:
        print(json.dumps(found, indent=1))
        return
    shown = Table("dataset", "test", "valid", "rank by test", "better than", title=found["cell"])
    for name, row in found["datasets"].items():
        better = f"{row['percentile_test']:.2f} %"
        valid = f"{row['valid']:.2f}" if "valid" in row else "-"
        shown.add_row(name, f"{row['test']:.2f}", valid, f"{row['rank_test']:,}", better)
    terminal = console()
    terminal.print(shown)
    terminal.print(f"{found['params']:.6f} M parameters, {found['flops']:.5f} M multiply-adds")


def show_data(folder: Path | None) -> None:
    """What is there, what is missing, what is damaged."""
    from rich.table import Table

    from advnas.tasks.data_folder import data_folder
    from advnas.tasks.downloads import status

    where = data_folder(folder)
    table = Table("data", "state", "what", title=f"Data in {where}")
    for name, state, detail in status(where):
        table.add_row(name, state, detail)
    console().print(table)


def get_data(wanted: DataGet) -> None:
    """Download, with a bar on a terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    from advnas.tasks.data_folder import data_folder
    from advnas.tasks.downloads import get

    columns = (description(), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(wanted.name, total=None)
        path = get(
            wanted.name,
            data_folder(wanted.data_folder),
            on_progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    print(path)
