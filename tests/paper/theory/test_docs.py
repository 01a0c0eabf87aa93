"""The page and the code say the same."""

from pathlib import Path

import pytest

from advnas.paper.theory import TABLES

PAGE = (Path(__file__).parents[3] / "docs" / "theory.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("title", TABLES)
def test_every_figure_of_the_page_is_computed(title):
    assert PAGE.count(TABLES[title]()) == 1, "compare with: python -m advnas.paper.theory"


def test_the_page_has_no_other_tables_of_figures():
    assert PAGE.count("| ---: |\n") == len(TABLES)
