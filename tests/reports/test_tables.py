import csv
import io

import pytest

from advnas import strategies
from advnas.reports.tables import markdown, propagation, toy_csv, toy_header, toy_rows

CURVES = {
    "advantage": {
        "iterations": [0, 100, 300],
        "median": [2.0, 1.0, 0.25],
        "q25": [1.0, 0.5, 0.0],
        "q75": [3.0, 1.5, 0.5],
        "final": [0.0, 0.0, 0.25, 1e-9, 4.0],
    },
    "darts": {"iterations": [0], "median": [2.0], "q25": [1.0], "q75": [1 / 3], "final": [0.0005]},
}


def test_a_row_has_the_medians_on_the_way_and_how_often_the_teacher_was_found():
    rows = toy_rows(CURVES)
    assert rows[0] == ("advantage", "1", "1.000", "0.250", "0.000", "2 of 5")
    assert rows[1] == ("darts", "all", "-", "-", "0.001", "0 of 1")
    assert toy_header(CURVES) == ("strategy", "runs", "at 100", "at 300", "end", "found")  # nobody came to 600


def test_the_spreadsheet_has_one_line_a_measurement_in_full_precision():
    lines = list(csv.reader(io.StringIO(toy_csv(CURVES))))
    assert lines[0] == ["strategy", "iteration", "median", "q25", "q75"]
    assert [line[:2] for line in lines[1:]] == [
        ["advantage", "0"],
        ["advantage", "100"],
        ["advantage", "300"],
        ["darts", "0"],
    ]
    assert [float(value) for value in lines[-1][2:]] == [2.0, 1.0, 1 / 3]
    assert "\r" not in toy_csv(CURVES)


@pytest.mark.parametrize(
    ("name", "operations"),
    [("advantage", "1"), ("proxyless", "1 / 2"), ("nasp", "1 / all"), ("darts", "all"), ("snas", "all")],
)
def test_propagation_tells_what_is_executed(name, operations):
    assert propagation(name) == operations


def test_every_strategy_has_a_propagation():
    assert all(propagation(name) for name in strategies.names())


def test_markdown():
    assert markdown(["a", "b"], [["1", "2"], ["3", "4"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n| 3 | 4 |\n"
