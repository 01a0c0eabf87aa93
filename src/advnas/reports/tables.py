"""Tables: for the terminal, for a spreadsheet and for the documentation, from the same rows."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from advnas import strategies

Curves = Mapping[str, Mapping[str, Sequence[Any]]]

TOY_HEADER = ("strategy", "runs", "at 100", "at 300", "at 600", "end", "found")


def toy_rows(curves: Curves) -> list[tuple[str, ...]]:
    """One row a strategy: median test loss x 100 on the way and at the end, and in how many trials it is 0."""
    return [
        (
            name,
            propagation(name),
            *(_median_at(curve, iteration) for iteration in (100, 300, 600)),
            f"{statistics.median(curve['final']):.3f}",
            f"{sum(loss == 0 for loss in curve['final'])} of {len(curve['final'])}",
        )
        for name, curve in curves.items()
    ]


def propagation(name: str) -> str:
    """What a strategy executes a decision: "1", "2", or "all", for the weights and for theta where they differ."""
    kind = strategies.strategy_type(name)
    counts = [
        "all" if count is None else str(count) for count in (kind.weight_operations, kind.architecture_operations)
    ]
    return counts[0] if counts[0] == counts[1] else " / ".join(counts)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for the documentation."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def toy_csv(curves: Curves) -> str:
    """Long form: strategy, iteration, median, q25, q75."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["strategy", "iteration", "median", "q25", "q75"])
    for name, curve in curves.items():
        columns = (curve[key] for key in ("iterations", "median", "q25", "q75"))
        writer.writerows([name, *row] for row in zip(*columns, strict=True))
    return text.getvalue()


def _median_at(curve: Mapping[str, Sequence[Any]], iteration: int) -> str:
    if iteration not in curve["iterations"]:
        return "-"
    return f"{curve['median'][curve['iterations'].index(iteration)]:.3f}"
