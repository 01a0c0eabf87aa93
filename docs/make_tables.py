"""Write the result tables of the pages from docs/results/*.json: `make docs`.

A page says where a table goes:

    <!-- table: step_cost -->
    (what stands here is replaced)
    <!-- end -->

`docs/results/step_cost.json` holds the table: `columns` (title, field, optional format), `rows` (field -> cell) and
`source` (command, seed, commit, machine), which is written below the table. `rows_from` names another file whose
rows are merged with these by the field of the first column.

A cell is a text, a number, null ("-"), or one of

    [92.1, 93.4, 91.8]                       one result per seed, written as mean ± sample standard deviation
    {"mean": 92.1, "pstdev": 0.7, "n": 3}    a deviation recorded as divided by n, written as divided by n - 1
    {"mean": 92.1, "std": 0.7}               a deviation or a standard error that is written as it was published
"""

import json
import math
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
PLACE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)
SOURCE = ("seed", "seeds", "commit", "commits", "machine")


def pages() -> list[Path]:
    """Return the pages that may hold tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str) -> str:
    """Return the text of a page with every marked table made anew."""
    return PLACE.sub(lambda place: f"{place[1]}\n{table(place[2])}\n{place[3]}", text)


def table(name: str) -> str:
    """Return a table and the line that says where its numbers come from, as Markdown."""
    data = read(name)
    return f"{markdown(data['columns'], data['rows'])}\n{source(data.get('source', {}))}"


def read(name: str) -> dict[str, Any]:
    """Read a data file, with the rows of the file it is merged with."""
    data: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    if "rows_from" in data:
        other = read(data["rows_from"])
        data["rows"] = merged(data["rows"], other["rows"], key=data["columns"][0]["field"])
        data.setdefault("source", other.get("source", {}))
    return data


def merged(rows: Sequence[Row], others: Sequence[Row], key: str) -> list[Row]:
    """Return each row together with the other row of the same key; both must have the same keys."""
    by_key = {row[key]: row for row in others}
    if {row[key] for row in rows} != by_key.keys():
        raise ValueError(f"The rows to merge differ in their {key}.")
    return [{**by_key[row[key]], **row} for row in rows]


def markdown(columns: Sequence[Mapping[str, str]], rows: Sequence[Row]) -> str:
    """Return a Markdown table; columns with a format are numbers and stand on the right."""
    rules = ["---:" if "format" in column else "---" for column in columns]
    cells = [[cell(row.get(column["field"], ""), column.get("format", "")) for column in columns] for row in rows]
    return "".join(line(one) for one in [[column["title"] for column in columns], rules, *cells])


def line(cells: Sequence[str]) -> str:
    """Return one line of a Markdown table."""
    return "".join(f"| {one} " if one else "| " for one in cells) + "|\n"


def cell(value: Any, form: str) -> str:
    """Return the text of a cell; see the top of this file for what it may hold."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        value = {"mean": statistics.fmean(value), "std": statistics.stdev(value)} if value[1:] else value[0]
    if isinstance(value, dict):
        return f"{value['mean']:{form}} ± {deviation(value):{form.lstrip('+')}}"
    return str(value) if isinstance(value, int) and "f" in form else format(value, form)


def deviation(value: Mapping[str, float]) -> float:
    """Return the deviation to be written behind a mean: divided by n - 1, unless it was published otherwise."""
    if "std" in value:
        return value["std"]
    return value["pstdev"] * math.sqrt(value["n"] / (value["n"] - 1))


def source(facts: Mapping[str, Any]) -> str:
    """Return the line below a table: the command that made the numbers, then seed, commit and machine."""
    commands = facts.get("command", [])
    shown = [f"`{one}`" for one in ([commands] if isinstance(commands, str) else commands)]
    shown += [f"{name} {facts[name]}" if name != "machine" else facts[name] for name in SOURCE if name in facts]
    return f"Source: {', '.join(shown)}.\n" if shown else ""


def main() -> None:
    """Rewrite the pages whose tables are not up to date."""
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = filled(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"{page.relative_to(ROOT)}: tables written", file=sys.stderr)


if __name__ == "__main__":
    main()
