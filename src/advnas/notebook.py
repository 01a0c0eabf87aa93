"""How objects look in a notebook: one small table each."""

from collections.abc import Iterable
from html import escape


def table(title: str, rows: Iterable[tuple[object, ...]], header: tuple[str, ...] = ()) -> str:
    """Return an HTML table. Everything is escaped: names of decisions and operations are the user's.

    Args:
        title: a line above the rows.
        rows: the cells of every row.
        header: the names of the columns, if they need any.
    """
    head = f"<thead><tr>{_cells('th', header)}</tr></thead>" if header else ""
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption>{head}<tbody>{body}</tbody></table>"


def _cells(tag: str, row: tuple[object, ...]) -> str:
    return "".join(f"<{tag} style='text-align:left'>{escape(str(cell))}</{tag}>" for cell in row)
