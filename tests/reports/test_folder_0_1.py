"""A folder that `advnas search` of version 0.1 left, without its large files, is still read and reported."""

import shutil
from pathlib import Path

import pytest

from advnas.reports.page import write_report
from advnas.reports.study import read_study
from advnas.reports.verdict import verdict

FOLDER = Path(__file__).parent / "folder_0_1"


def test_all_runs_are_read():
    study = read_study(FOLDER)
    assert [run.name for run in study.runs] == ["advantage-0", "advantage-1", "random-0", "random-1"]
    assert all(run.finished and run.evaluation and len(run.records) == 4 for run in study.runs)
    assert {run.evaluation.by for run in study.of("random")} == {"process best"}
    assert [measure.name for measure in study.measures] == ["test accuracy", "test loss"]
    assert study.title == "digits"


def test_the_verdict_is_told():
    texts = [remark.text for remark in verdict(read_study(FOLDER))]
    assert texts[0].startswith("Too few seeds to tell whether advantage beats random by test accuracy")
    assert any("The direction of advantage is known at 0 of 12 decisions" in text for text in texts)


def test_the_report_is_written(tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    folder = shutil.copytree(FOLDER, tmp_path / "study")
    page = write_report(folder, None)[0].read_text()
    assert "advantage" in page
    assert "test accuracy" in page
