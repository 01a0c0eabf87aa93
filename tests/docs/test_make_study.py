"""The data of a result page from the folder of a study."""

import json
import runpy
from pathlib import Path

import pytest

from advnas.reports.study import read_study

ROOT = Path(__file__).parents[2]
MAKE = runpy.run_path(str(ROOT / "docs" / "make_study.py"))
TABLES = runpy.run_path(str(ROOT / "docs" / "make_tables.py"))


@pytest.fixture
def study():
    return read_study(ROOT / "tests" / "reports" / "folder_0_1")


def test_a_row_has_one_number_per_finished_run(study):
    table = MAKE["results_table"](study, None)
    assert [row["strategy"] for row in table["rows"]] == list(study.strategies)
    for row in table["rows"]:
        finished = [run for run in study.of(row["strategy"]) if run.finished]
        shown = [column["field"] for column in table["columns"][2:]]
        assert shown
        assert all(row[field] is None or len(row[field]) == len(finished) for field in shown)


def test_the_tables_can_be_written_into_a_page(study):
    for make in ("results_table", "pairs_table"):
        table = json.loads(json.dumps(MAKE[make](study, None)))
        text = TABLES["markdown"](table["columns"], table["rows"])
        assert all(name in text for name in study.strategies)


def test_the_source_names_no_folder_of_this_machine(study):
    assert "--folder /" not in MAKE["source"](study)["command"]
