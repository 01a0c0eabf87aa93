import json
import math

import pytest

from advnas.reports.credit import credit_rows
from advnas.reports.study import read_study
from advnas.reports.verdict import undecided, verdict
from advnas.search import CreditCheck, Swap

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


BETTER, WORSE = [97, 97.1, 97.2, 97.3, 97.1, 97.4], [90, 90.1, 90.2, 90.2, 90.3, 90.1]


@pytest.mark.parametrize(
    ("ours", "theirs", "good", "words"),
    [
        (BETTER, WORSE, True, "advantage beats random by test accuracy"),
        ([97, 91, 89, 90, 92, 91], [90, 91, 92, 90, 90, 93], None, "Not significant at 95 %"),
        (WORSE, BETTER, False, "advantage does worse than random by test accuracy"),
    ],
)
def test_a_baseline_is_beaten_only_where_the_pairs_say_so(ours, theirs, good, words, write_study, tmp_path):
    folder = write_study(tmp_path, ("advantage", "random"), seeds=6, experiment="search")
    remarks = judge(folder, {"advantage": ours, "random": theirs})
    text = next(text for text in remarks if words in text)
    assert remarks[text] is good
    assert "over 6 seeds" in text
    assert "95 % interval" in text
    assert "p = " in text
    assert text.count(": ") == 1, "one colon in a sentence"
    assert (", significant at 95 %." in text) is (good is not None)
    assert text.endswith("Do not use this answer.") is (good is False)


def test_a_result_that_is_not_a_number_is_told(folder):
    remarks = judge(folder, {"advantage": [1.0, math.nan, 2.0], "random": [1.0, 2.0, 3.0]})
    text = next(text for text in remarks if "beats random by test accuracy cannot be told" in text)
    assert text.endswith("A result is not a number.")
    assert remarks[text] is False


@pytest.mark.parametrize("seeds", [1, 3, 5])
def test_fewer_than_six_seeds_are_too_few_to_claim_anything(seeds, write_study, tmp_path):
    folder = write_study(tmp_path, ("advantage", "random"), seeds=seeds, experiment="search")
    remarks = judge(folder, {"advantage": BETTER, "random": WORSE})
    text = next(text for text in remarks if "Too few seeds to tell whether advantage beats random" in text)
    assert remarks[text] is None
    assert f"over {seeds} seed" in text
    assert "Run at least 6: --seeds 6." in text
    assert ("interval" in text) is (seeds > 1)


def test_every_baseline_that_was_not_run_is_named(write_study, tmp_path):
    folder = write_study(tmp_path, ("advantage", "random"), seeds=2, experiment="search")
    remarks = judge(folder, {"advantage": [1, 2], "random": [1, 2]})
    assert "ranked_random was not run: whether advantage beats it is not known." in remarks
    assert not any("random was not run" in text and "ranked" not in text for text in remarks)


def test_a_collapse_onto_operations_without_weights_is_told(folder):
    values = {"advantage": [1, 2, 3], "random": [1, 2, 3]}
    assert any("no collapse" in text and good for text, good in judge(folder, values).items())
    names = read_study(folder).runs[0].records[0].argmax
    remarks = judge(folder, values, cell=dict.fromkeys(names, "skip_connect"))
    assert any("may have collapsed" in text and good is False for text, good in remarks.items())


def test_undecided_decisions_are_those_whose_best_two_are_close():
    rows = {"a": {"x": 0.4, "y": 0.35, "z": 0.25}, "b": {"x": 0.9, "y": 0.1}, "c": {"x": 1.0}}
    assert undecided(rows) == ["a"]


def measured(folder, right, wrong):
    """Let every run with advantage have measured swaps, of which the slopes had some right and some wrong."""
    swaps = [Swap("0->1", "a", "b", 1.0, 1.0)] * right + [Swap("0->2", "a", "b", 1.0, -1.0)] * wrong
    for path in folder.glob("runs/advantage-*/result.json"):
        credit = CreditCheck("advantage", False, tuple(swaps)).to_json()
        path.write_text(json.dumps(json.loads(path.read_text()) | {"credit": credit}))


@pytest.mark.parametrize(
    ("right", "wrong", "good", "words", "row"),
    [
        (0, 4, False, "contradict measured swaps at 1 of 1 decisions (cosine -1.00 over 12 swaps", "contradict"),
        (8, 8, False, 'Write strategy="contrast"', "contradict"),
        (20, 2, True, "agree with measured swaps (cosine 0.82 over 66 swaps", "agree"),
        (3, 2, None, "is open (cosine 0.20 over 15 swaps", "open"),
    ],
)
def test_slopes_are_judged_by_the_swaps_of_all_seeds(right, wrong, good, words, row, folder):
    measured(folder, right, wrong)
    remarks = judge(folder, {"advantage": [1, 2, 3], "random": [1, 2, 3]})
    text = next(text for text in remarks if words in text)
    assert remarks[text] is good
    (cells,) = credit_rows(read_study(folder))
    cosine = (right - wrong) / (right + wrong)
    assert cells[:4] == ("advantage", "3", str(3 * (right + wrong)), f"{cosine:.2f} ± 0.00")
    assert cells[-1] == row


def test_nothing_is_said_about_slopes_where_no_swap_was_measured(folder):
    remarks = judge(folder, {"advantage": [1, 2, 3], "random": [1, 2, 3]})
    assert not any("swaps" in text for text in remarks)
    assert credit_rows(read_study(folder)) == []
