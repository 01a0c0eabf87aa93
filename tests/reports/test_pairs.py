import json
import math

import pytest
from scipy import stats

from advnas.reports.contents import Measure
from advnas.reports.judging import judge
from advnas.reports.pairs import all_pairings, badness, compare, difference
from advnas.reports.study import read_study
from advnas.reports.tables import pair_rows, pairs_csv

GAINS = [0.5, 0.1, 0.4, -0.1, 0.3, 0.6]


def test_interval_and_p_are_those_of_scipy():
    found = difference(GAINS)
    interval = stats.ttest_1samp(GAINS, 0).confidence_interval(0.95)
    assert found[:3] == pytest.approx((0.3, interval.low, interval.high))
    assert found.p == stats.wilcoxon(GAINS).pvalue
    assert found.pairs == 6


def test_the_interval_by_hand():
    # Mean 2, standard deviation 1, t of 2 degrees of freedom 4.303: 2 +- 4.303 / sqrt(3).
    assert difference([1, 2, 3])[:3] == pytest.approx((2, 2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), abs=1e-4)


@pytest.mark.parametrize(("pairs", "p"), [(3, 1 / 4), (5, 1 / 16), (6, 1 / 32)])
def test_the_smallest_p_of_signed_ranks_by_hand(pairs, p):
    # All differences have one sign: one of 2^n patterns, and its mirror image.
    assert difference([1.0 + number for number in range(pairs)]).p == pytest.approx(p)


def test_six_pairs_can_be_significant_and_five_cannot():
    assert difference([1.0, 1.1, 1.2, 1.3, 1.4, 1.5]).significant
    assert not difference([1.0, 1.1, 1.2, 1.3, 1.4]).significant
    assert not difference([1.0, 1.1, 1.2, 1.3, 1.4]).enough


def test_interval_and_signed_ranks_must_agree():
    outlier = difference([0.01, 0.02, 0.03, 0.04, 0.05, 100.0])  # all better, but no interval without 0
    assert outlier.p < 0.05
    assert outlier.low < 0
    assert not outlier.significant


def test_equal_runs_differ_by_nothing():
    assert difference([0.0] * 6) == (0, 0, 0, 1, 6)
    assert not difference([0.0] * 6).significant


@pytest.mark.parametrize("gains", [[1.0], [1.0, math.inf], [math.nan] * 8])
def test_one_pair_and_a_diverged_run_have_no_interval(gains):
    found = difference(gains)
    assert (found.low, found.high, found.p) == (-math.inf, math.inf, 1)
    assert not found.significant


@pytest.fixture
def studied(write_study, tmp_path):
    names = ("advantage", "proxyless", "random")
    return write_study(tmp_path, names, seeds=3, experiment="ptb", unfinished=("proxyless-1",))


def test_runs_are_paired_by_seed(studied):
    judged = judge(read_study(studied), None)
    perplexities = {
        name: [
            json.loads((studied / f"runs/{name}-{seed}/result.json").read_text())["evaluation"]["valid_perplexity"]
            for seed in (0, 2)
        ]
        for name in ("proxyless", "random")
    }
    found = compare(judged, "proxyless", "random")
    gains = [theirs - ours for ours, theirs in zip(*perplexities.values(), strict=True)]  # lower is better
    assert found.difference == pytest.approx(difference(gains))
    assert found.difference.pairs == 2  # seed 1 of proxyless is not finished
    assert (found.ours, found.theirs) == pytest.approx([sum(values) / 2 for values in perplexities.values()])


def test_every_strategy_meets_the_baselines_and_the_best_other_one(studied):
    study = read_study(studied)
    pairings = all_pairings(study, judge(study, None))
    assert [(one.strategy, one.other) for one in pairings] == [
        ("advantage", "random"),
        ("advantage", "proxyless"),
        ("proxyless", "random"),
        ("proxyless", "advantage"),
    ]


@pytest.mark.parametrize("more_is_better", [True, False])
def test_a_strategy_without_a_mean_is_the_worst(more_is_better):
    values = {"a": (math.nan, 1.0), "b": (2.0, 1.0)}
    runs = {
        name: {seed: (Measure("loss", value, more_is_better),) for seed, value in enumerate(own)}
        for name, own in values.items()
    }
    assert min(runs, key=lambda name: badness(runs[name])) == "b"


def test_the_table_says_where_there_are_too_few_seeds(studied):
    study = read_study(studied)
    pairings = all_pairings(study, judge(study, None))
    rows = pair_rows(pairings)
    assert rows[0][:3] == ("advantage", "random", "3")
    assert {row[-1] for row in rows} == {"too few seeds"}
    header, first, *_ = pairs_csv(pairings).splitlines()
    assert header == "strategy,other,measure,ours,theirs,mean,low,high,p,pairs,significant"
    assert first.startswith("advantage,random,validation perplexity,")


def test_seeds_that_only_one_strategy_has_are_left_out(studied):
    judged = {"a": {0: judge(read_study(studied), None)["advantage"][0]}, "b": {}}
    assert compare(judged, "a", "b") is None
