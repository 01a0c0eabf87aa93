"""The page and the code say the same."""

from pathlib import Path

import pytest

from advnas.testing.theory_report import tables

PAGE = Path(__file__).parents[2] / "docs" / "theory.md"
TABLES = tables()


@pytest.mark.parametrize("title", TABLES)
def test_every_figure_of_the_page_is_computed(title):
    assert PAGE.read_text(encoding="utf-8").count(TABLES[title]) == 1, (
        f"docs/theory.md and the table {title!r} differ: run python -m advnas.testing.theory_report."
    )


def test_the_page_has_no_other_tables_of_figures():
    page = PAGE.read_text(encoding="utf-8")
    assert page.count("---:") == sum(table.count("---:") for table in TABLES.values())
