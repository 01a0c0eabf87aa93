import json
import math

import pytest

from advnas.reports.judging import best_run, named
from advnas.reports.study import read_study


def scored(folder, scores):
    """The study after its runs got these validation scores, by seed."""
    for seed, score in enumerate(scores):
        path = folder / f"runs/advantage-{seed}/result.json"
        result = json.loads(path.read_text())
        result["evaluation"]["valid_perplexity"] = score
        path.write_text(json.dumps(result))
    return read_study(folder)


@pytest.fixture
def folder(write_study, tmp_path):
    return write_study(tmp_path, ("advantage", "random"), seeds=3, records=2, experiment="ptb")


@pytest.mark.parametrize("scores", [(math.nan, 90.0, 80.0), (math.nan, math.inf, 80.0), (90.0, math.nan, 80.0)])
def test_the_run_with_the_lowest_validation_score_is_best_and_one_without_a_score_never(folder, scores):
    assert best_run(scored(folder, scores)).seed == 2


def test_of_all_strategies_that_learn_the_best_run_is_chosen_and_named(write_study, tmp_path):
    study = scored(write_study(tmp_path, ("advantage", "gdas", "random"), seeds=2, experiment="ptb"), [90.0, 80.0])
    scores = {run.name: run.evaluation.validation_score for run in study.runs if run.learns}
    assert best_run(study).name == min(scores, key=scores.get)
    assert named(study, best_run(study)) == f" --run {best_run(study).name}"


def test_the_run_of_the_only_strategy_that_learns_needs_no_name(folder):
    study = scored(folder, [90.0, 80.0, 85.0])
    assert named(study, best_run(study)) == ""


def test_there_is_no_best_run_where_all_have_diverged(folder):
    with pytest.raises(ValueError, match="No run of advantage has an answer whose validation score is a number"):
        best_run(scored(folder, [math.nan] * 3))


def test_there_is_no_best_run_where_no_answer_was_retrained(write_study, tmp_path):
    study = read_study(write_study(tmp_path, ("advantage",), seeds=1, records=2))
    with pytest.raises(ValueError, match="No run of advantage has an answer that was retrained"):
        best_run(study)
