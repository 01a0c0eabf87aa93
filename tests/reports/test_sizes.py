import json

import pytest

from advnas.reports.sizes import draw_sizes
from advnas.reports.study import read_study

pytest.importorskip("matplotlib")


def dots(drawing):
    """Where every run stands: {label: (parameters, measure)}."""
    lines = drawing.figure.axes[0].lines
    return {line.get_label(): (line.get_xdata()[0], line.get_ydata()[0]) for line in lines}


def test_every_retrained_answer_is_a_dot_over_its_parameters(ptb_folder):
    study = read_study(ptb_folder)
    (drawing,) = draw_sizes(study, None)
    assert dots(drawing) == {
        f"{run.strategy}, seed {run.seed}": (run.evaluation.parameters / 1e6, run.evaluation.measures[0].value)
        for run in study.runs
        if run.evaluation
    }
    axes = drawing.figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("parameters [millions]", "validation perplexity")
    assert "further down is better" in drawing.caption
    (legend,) = drawing.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(study.strategies)


def test_answers_of_a_table_are_drawn_too(study_folder, accuracies):
    study = read_study(study_folder)
    (drawing,) = draw_sizes(study, accuracies)
    found = dots(drawing)
    assert len(found) == sum(run.finished for run in study.runs)
    cell = study.runs[0].answer(study.runs[0].latest)
    assert found["advantage, seed 0"] == (
        pytest.approx(
            accuracies.entry(cell).params * (1 if "millions" in drawing.figure.axes[0].get_xlabel() else 1e3)
        ),
        accuracies.accuracy(cell),
    )
    assert "further up is better" in drawing.caption


def test_small_networks_are_counted_in_thousands(write_study, tmp_path):
    folder = write_study(tmp_path, ("advantage",), experiment="ptb")
    resize(folder, [4321, 1234])
    (drawing,) = draw_sizes(read_study(folder), None)
    assert [place for place, _ in dots(drawing).values()] == [4.321, 1.234]
    assert drawing.figure.axes[0].get_xlabel() == "parameters [thousands]"


def test_answers_of_one_size_are_not_drawn_and_neither_are_those_that_nobody_judged(write_study, tmp_path):
    folder = write_study(tmp_path, ("advantage",), experiment="ptb")
    resize(folder, [4321, 4321])
    assert list(draw_sizes(read_study(folder), None)) == []
    table_needed = write_study(tmp_path / "table", ("advantage",))
    assert list(draw_sizes(read_study(table_needed), None)) == []


def test_a_diverged_answer_is_not_drawn(write_study, tmp_path):
    folder = write_study(tmp_path, ("advantage",), seeds=3, experiment="ptb")
    resize(folder, [1, 2, 3])
    path = folder / "runs/advantage-1/result.json"
    result = json.loads(path.read_text())
    result["evaluation"]["valid_perplexity"] = float("inf")
    path.write_text(json.dumps(result))
    (drawing,) = draw_sizes(read_study(folder), None)
    assert list(dots(drawing)) == ["advantage, seed 0", "advantage, seed 2"]


def resize(folder, parameters):
    """Let the answers of the seeds have that many."""
    for seed, number in enumerate(parameters):
        path = folder / f"runs/advantage-{seed}/result.json"
        result = json.loads(path.read_text())
        result["evaluation"]["parameters"] = number
        path.write_text(json.dumps(result))
