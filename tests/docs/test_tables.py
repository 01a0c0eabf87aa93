"""The result tables of the pages are those of the data files, so that no number is typed twice."""

import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKE = runpy.run_path(str(ROOT / "docs" / "make_tables.py"))
FILES = sorted(path.stem for path in (ROOT / "docs" / "results").glob("*.json"))


def test_the_tables_of_a_page_are_up_to_date(page):
    text = page.read_text(encoding="utf-8")
    assert MAKE["filled"](text) == text, "run: make docs"


def test_result_pages_have_no_numbers_of_their_own():
    """Except for the settings of a study next to the paper's, which have no ± and no command."""
    for page in (ROOT / "docs" / "results").glob("*.md"):
        by_hand = MAKE["PLACE"].sub("", page.read_text(encoding="utf-8"))
        assert not re.findall(r"^\|.*±.*$", by_hand, flags=re.MULTILINE)


@pytest.mark.parametrize("name", FILES)
def test_every_data_file_is_shown_with_the_command_that_made_it(name):
    marked = "".join(page.read_text(encoding="utf-8") for page in MAKE["pages"]())
    assert f"<!-- table: {name} -->" in marked
    assert MAKE["read"](name)["source"]["command"]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ([1.0, 2.0, 3.0], "2.00 ± 1.00"),  # the sample deviation: n - 1
        ({"mean": 2.0, "pstdev": 1.0, "n": 2}, "2.00 ± 1.41"),
        ({"mean": 2.0, "std": 0.5}, "2.00 ± 0.50"),
        (0.125, "0.12"),
        (0, "0"),
        (None, "-"),
        ("all", "all"),
    ],
)
def test_cells(cell, text):
    assert MAKE["cell"](cell, ".2f") == text


def test_rows_of_two_files_are_merged_by_their_first_column():
    merged = MAKE["merged"]([{"name": "a", "x": 1}], [{"name": "a", "x": 0, "y": 2}], key="name")
    assert merged == [{"name": "a", "x": 1, "y": 2}]
    with pytest.raises(ValueError, match="differ in their name"):
        MAKE["merged"]([{"name": "a"}], [{"name": "b"}], key="name")


def test_the_means_of_a_row_are_numbers():
    """A number written as a text would escape the formats."""
    for name in FILES:
        data = json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8"))
        texts = [cell for row in data["rows"] for cell in row.values() if isinstance(cell, str)]
        assert not [text for text in texts if re.fullmatch(r"[\d.]+ ± [\d.]+", text)]
