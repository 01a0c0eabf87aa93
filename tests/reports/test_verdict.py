import json

import pytest

from advnas.reports.study import read_study
from advnas.reports.verdict import gain, t_quantile, undecided, verdict

MEASURE = {"name": "test accuracy", "more_is_better": True}


def judge(folder, values, **changes):
    """Give every run of a made-up study an evaluation with a value of our own; then what the verdict says."""
    for path in folder.glob("runs/*/result.json"):
        result = json.loads(path.read_text())
        strategy, _, seed = path.parent.name.rpartition("-")
        cell = dict.fromkeys(result["argmax"], "nor_conv_3x3") | changes.get("cell", {})
        result["operation_sizes"] = {
            name: {"none": 0, "skip_connect": 0, "nor_conv_3x3": 9, "nor_conv_1x1": 1, "avg_pool_3x3": 0}
            for name in cell
        }
        result["evaluation"] = {
            "by": "argmax",
            "architecture": cell,
            "measures": [MEASURE | {"value": values[strategy][int(seed)]}],
            "validation_score": 1.0,
            "parameters": 1,
            "best_epoch": 1,
        }
        path.write_text(json.dumps(result))
    return {remark.text: remark.good for remark in verdict(read_study(folder))}


@pytest.fixture
def folder(write_study, tmp_path):
    return write_study(tmp_path, ("advantage", "random"), seeds=3, experiment="search")


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.706), (2, 4.303), (4, 2.776), (10, 2.228), (100, 1.984)])
def test_students_quantiles_are_those_of_the_tables(freedom, quantile):
    assert t_quantile(freedom) == pytest.approx(quantile, abs=6e-4)


def test_the_interval_is_welchs():
    # By hand: variances 1 and 4 over 3 values each: 5/3 in all, (5/3)^2 / ((1/3)^2 / 2 + (4/3)^2 / 2) = 50/17
    # degrees of freedom.
    found = gain([11, 12, 13], [8, 10, 12], more_is_better=True)
    margin = t_quantile(50 / 17) * (5 / 3) ** 0.5
    assert found == pytest.approx((2, 2 - margin, 2 + margin))
    assert gain([11, 12, 13], [8, 10, 12], more_is_better=False).mean == -2
    assert gain([1.0], [2.0, 3.0], more_is_better=True).high == float("inf")
    assert gain([2.0, 2.0], [1.0, 1.0], more_is_better=True) == (1, 1, 1)


@pytest.mark.parametrize(
    ("ours", "theirs", "good", "words"),
    [
        ([97, 97.1, 97.2], [90, 90.1, 90.2], True, "significant at 95 %"),
        ([97, 91, 89], [90, 91, 92], None, "Not significant: the interval includes 0"),
        ([90, 90.1, 90.2], [97, 97.1, 97.2], False, "does not beat"),
    ],
)
def test_chance_is_beaten_only_where_the_interval_says_so(ours, theirs, good, words, folder):
    remarks = judge(folder, {"advantage": ours, "random": theirs})
    text = next(text for text in remarks if "random search" in text)
    assert remarks[text] is good
    assert words in text


def test_one_seed_has_no_interval(write_study, tmp_path):
    folder = write_study(tmp_path, ("advantage", "random"), seeds=1, experiment="search")
    remarks = judge(folder, {"advantage": [99], "random": [10]})
    assert any("one seed has no interval" in text for text in remarks)


def test_without_random_search_chance_cannot_be_judged(write_study, tmp_path):
    folder = write_study(tmp_path, ("advantage",), seeds=2, experiment="search")
    assert any("Random search was not run" in text for text in judge(folder, {"advantage": [1, 2]}))


def test_a_collapse_onto_operations_without_weights_is_told(folder):
    values = {"advantage": [1, 2, 3], "random": [1, 2, 3]}
    assert any("no collapse" in text and good for text, good in judge(folder, values).items())
    names = read_study(folder).runs[0].records[0].argmax
    remarks = judge(folder, values, cell=dict.fromkeys(names, "skip_connect"))
    assert any("may have collapsed" in text and good is False for text, good in remarks.items())


def test_undecided_decisions_are_those_whose_best_two_are_close():
    rows = {"a": {"x": 0.4, "y": 0.35, "z": 0.25}, "b": {"x": 0.9, "y": 0.1}, "c": {"x": 1.0}}
    assert undecided(rows) == ["a"]


def test_the_noise_of_the_signal_comes_from_the_steps(folder):
    values = {"advantage": [1, 2, 3], "random": [1, 2, 3]}
    lines = [{"advantages": {"0->1": value, "0->2": 1.0}} for value in (-1.0, 2.0) * 50]
    path = folder / "runs/advantage-1/metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = next(text for text in judge(folder, values) if "noisiest" in text)
    assert "0->1 of seed 1" in text
    assert "scatters 3.0 times" in text
    assert "over 100 steps" in text
