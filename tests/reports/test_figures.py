import json

import numpy as np
import pytest

from advnas.reports.figures import draw_probabilities, draw_study, is_dense
from advnas.reports.study import read_study

pytest.importorskip("matplotlib")


def drawings(folder, table):
    return {drawing.name: drawing for drawing in draw_study(read_study(folder), table)}


def line(figure, label, panel=0):
    (found,) = (found for found in figure.axes[panel].lines if found.get_label() == label)
    return found


def labels(figure):
    return {found.get_label() for found in figure.axes[0].lines}


def test_a_study_has_curves_over_epochs_over_seconds_and_of_entropy(study_folder, accuracies):
    found = drawings(study_folder, accuracies)
    assert list(found) == ["accuracy-over-epochs", "accuracy-over-seconds", "size", "entropy"]
    assert all(drawing.title and drawing.caption for drawing in found.values())


def test_without_a_table_there_is_the_entropy(study_folder):
    assert list(drawings(study_folder, None)) == ["entropy"]


def test_without_dense_strategies_nothing_is_drawn_over_seconds(write_study, accuracies, tmp_path):
    assert "accuracy-over-seconds" not in drawings(write_study(tmp_path), accuracies)


def test_sparse_strategies_are_compared_by_epochs_and_dense_ones_by_seconds(study_folder, accuracies):
    found = drawings(study_folder, accuracies)
    epochs, seconds = found["accuracy-over-epochs"].figure, found["accuracy-over-seconds"].figure
    assert labels(epochs) == {"best of all cells", "advantage", "proxyless", "random"}
    assert labels(seconds) == {"best of all cells", "advantage", "random", "darts"}
    assert is_dense("darts")
    assert not is_dense("a strategy of somebody else")


def test_the_line_is_the_median_over_the_seeds(write_study, accuracies, tmp_path):
    folder = write_study(tmp_path, ("advantage",), seeds=3)
    curve = line(drawings(folder, accuracies)["accuracy-over-epochs"].figure, "advantage")
    runs = read_study(folder).runs
    last = [accuracies.accuracy(run.records[-1].argmax) for run in runs]
    assert curve.get_xdata().tolist() == [8.0, 12.0, 16.0]
    assert curve.get_ydata()[-1] == np.median(last)


def test_seconds_are_the_median_over_the_seeds(study_folder, accuracies):
    curve = line(drawings(study_folder, accuracies)["accuracy-over-seconds"].figure, "darts")
    runs = read_study(study_folder).of("darts")
    assert curve.get_xdata()[-1] == np.median([run.seconds[16.0] for run in runs])


def test_random_search_is_drawn_from_its_first_process_best_on(study_folder, accuracies):
    curve = line(drawings(study_folder, accuracies)["accuracy-over-epochs"].figure, "random")
    assert curve.get_xdata().tolist() == [12.0, 16.0]


def test_measurements_without_a_time_are_not_drawn_over_seconds(write_study, accuracies, tmp_path):
    folder = write_study(tmp_path, ("darts",), seeds=1)
    (folder / "runs/darts-0/timing.jsonl").unlink()
    assert len(line(drawings(folder, accuracies)["accuracy-over-seconds"].figure, "darts").get_xdata()) == 0


def test_a_collapse_gets_a_panel_of_its_own(write_study, accuracies, tmp_path):
    folder = write_study(tmp_path, ("advantage", "proxyless"), zero=True, records=9)
    close, whole = drawings(folder, accuracies)["accuracy-over-epochs"].figure.axes
    assert close.get_ylim()[0] > 80
    assert whole.get_ylim()[0] < 20


def test_the_entropy_is_the_mean_over_the_seeds_in_nats(study_folder, accuracies):
    figure = drawings(study_folder, accuracies)["entropy"].figure
    assert labels(figure) == {"advantage", "proxyless", "darts", "random"}
    assert line(figure, "random").get_ydata() == pytest.approx([np.log(4)] * 3)
    assert figure.axes[0].get_ylabel().endswith("[nats]")


def test_markers_of_a_level_entropy_have_room(write_study, tmp_path):
    figure = drawings(write_study(tmp_path, ("random",)), None)["entropy"].figure
    assert figure.axes[0].get_ylim() == (0, pytest.approx(1.02 * np.log(4), rel=0.1))
    assert figure.axes[0].get_ylim()[1] > 1.015 * np.log(4)


def test_no_two_lines_of_a_figure_look_the_same(study_folder, accuracies):
    found = drawings(study_folder, accuracies)
    del found["size"]  # it has dots: those of one strategy shall look the same
    for drawing in found.values():
        lines = [found for found in drawing.figure.axes[0].lines if found.get_label() != "best of all cells"]
        assert len({(found.get_color(), found.get_marker()) for found in lines}) == len(lines)
        assert len({found.get_markersize() for found in lines}) == len(lines)


def test_legends_stand_beside_the_panels(study_folder, accuracies):
    for drawing in drawings(study_folder, accuracies).values():
        drawing.figure.draw_without_rendering()
        (legend,) = drawing.figure.legends
        assert not any(legend.get_window_extent().overlaps(axes.bbox) for axes in drawing.figure.axes)


def test_probabilities_have_a_panel_a_decision_and_a_line_an_operation(study_folder):
    found = list(draw_probabilities(read_study(study_folder)))
    assert [drawing.name for drawing in found] == [
        "probabilities-advantage",
        "probabilities-proxyless",
        "probabilities-darts",
    ]
    axes = found[0].figure.axes
    assert [panel.get_title() for panel in axes] == ["0->1", "0->2", "1->2", "0->3", "1->3", "2->3"]
    assert {len(panel.lines) for panel in axes} == {4}
    assert sum(found.get_ydata()[-1] for found in axes[0].lines) == pytest.approx(1)


def test_probabilities_of_many_decisions_have_room_and_one_legend(write_study, tmp_path):
    folder = write_study(tmp_path, ("advantage",), seeds=1, records=2)
    path = folder / "runs/advantage-0/records.jsonl"
    records = [json.loads(text) for text in path.read_text().splitlines()]
    rows = {f"layer {number}": ("attention", "recurrence", "$x") for number in range(15)} | {"width": ("16", "32")}
    for record in records:
        record["probabilities"] = {name: dict.fromkeys(row, 1 / len(row)) for name, row in rows.items()}
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    ((drawing),) = draw_probabilities(read_study(folder))
    (legend,) = drawing.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["attention", "recurrence", r"\$x", "16", "32"]
    panels = [axes for axes in drawing.figure.axes if axes.get_visible()]
    assert len(panels) == 16
    drawing.figure.draw_without_rendering()
    assert min(axes.bbox.height / drawing.figure.dpi for axes in panels) > 0.6
    assert len({line.get_color() for axes in panels for line in axes.lines}) == 5
    labelled = [axes.get_title() for axes in panels if any(text.get_visible() for text in axes.get_xticklabels())]
    assert labelled == ["layer 13", "layer 14", "width"]


def test_a_strategy_of_somebody_else_is_drawn_too(write_study, accuracies, tmp_path):
    folder = write_study(tmp_path, ("advantage", "theirs"), seeds=1)
    assert "theirs" in labels(drawings(folder, accuracies)["accuracy-over-epochs"].figure)


def test_a_study_that_retrains_has_perplexities_entropy_and_loss_with_or_without_a_table(ptb_folder, accuracies):
    for table in (None, accuracies):
        found = drawings(ptb_folder, table)
        assert list(found) == ["retrained", "size", "entropy", "loss"]
        assert all(drawing.title and drawing.caption for drawing in found.values())


def test_perplexities_are_a_dot_a_seed_and_a_bar_at_the_mean(ptb_folder):
    (axes,) = drawings(ptb_folder, None)["retrained"].figure.axes
    study = read_study(ptb_folder)
    assert [label.get_text() for label in axes.get_yticklabels()] == list(study.strategies)
    assert axes.yaxis_inverted()  # the first strategy on top
    for place, name in enumerate(study.strategies):
        values = [run.evaluation.measures[0].value for run in study.of(name) if run.evaluation]
        seeds = [run.seed for run in study.of(name) if run.evaluation]
        dots = [line(axes.figure, f"{name}, seed {seed}") for seed in seeds]
        assert [dot.get_xdata()[0] for dot in dots] == values
        heights = [dot.get_ydata()[0] for dot in dots]
        assert np.round(heights).tolist() == [place] * len(values)
        assert len(set(heights)) == len(values)
        assert set(line(axes.figure, f"{name}, mean").get_xdata()) == {np.mean(values)}


def test_a_diverged_retraining_is_told_and_not_drawn(write_study, tmp_path):
    folder = write_study(tmp_path, ("advantage",), experiment="ptb")
    result = json.loads((folder / "runs/advantage-0/result.json").read_text())
    result["evaluation"]["valid_perplexity"] = float("inf")
    (folder / "runs/advantage-0/result.json").write_text(json.dumps(result))
    drawing = drawings(folder, None)["retrained"]
    assert drawing.caption.endswith("not drawn: 1.")
    (dot,) = (found for found in drawing.figure.axes[0].lines if "seed" in found.get_label())
    assert dot.get_label() == "advantage, seed 1"


def test_what_was_not_measured_is_not_drawn(write_study, tmp_path):
    unfinished = ("advantage-0", "random-0")
    folder = write_study(tmp_path, seeds=1, records=1, unfinished=unfinished, experiment="ptb")
    assert list(drawings(folder, None)) == ["entropy"]


def test_the_loss_is_the_median_over_the_seeds_from_the_first_step_on(ptb_folder):
    figure = drawings(ptb_folder, None)["loss"].figure
    runs = read_study(ptb_folder).of("proxyless")
    curve = line(figure, "proxyless")
    assert curve.get_xdata().tolist() == [4.0, 8.0, 12.0]
    assert curve.get_ydata()[-1] == np.median([run.records[-1].loss for run in runs])


def test_a_warm_up_is_spoken_of_where_there_was_one(ptb_folder, study_folder):
    def label(folder):
        return drawings(folder, None)["entropy"].figure.axes[0].get_xlabel()

    assert (label(ptb_folder), label(study_folder)) == ("epoch", "epoch, warm-up included")
