import importlib.util
import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from advnas import Search
from advnas.answers.shared_loss import SharedLoss
from advnas.answers.uniform import Halving
from advnas.records.checkpoints import load_state
from advnas.records.signals import StopSignals
from advnas.search import SearchStopped
from advnas.spaces.nasbench201 import ConvolutionCellNetwork
from advnas.studies.cost import passes_per_turn
from advnas.studies.execute import execute, plan
from advnas.studies.run import read_results, run_search, run_warmup, warmup_file

SEED = 3


@pytest.fixture(scope="module")
def study():
    """The quick CIFAR-10 study on made-up images: 8 architecture steps, 4 minibatches for theta."""
    path = Path(__file__).with_name("study_to_kill.py")
    spec = importlib.util.spec_from_file_location("study_to_kill", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MadeUp(module.PRESETS["quick"], Path())


@pytest.fixture(scope="module")
def folder(study, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    names = ["contrast", "advantage", "random", "ranked_random"]
    execute(study, plan(study, names, [SEED]), folder)
    return folder


def result(folder, strategy):
    return next(one for one in read_results(folder) if one["strategy"] == strategy)


def test_every_run_tells_what_it_spent_on_theta_and_its_answer(folder):
    spent = {one["strategy"]: one["passes"] for one in read_results(folder)}
    assert spent == pytest.approx({"contrast": 8 * 3.4, "advantage": 8 * 2.5, "random": 8, "ranked_random": 28})


def test_the_baseline_is_given_at_least_what_the_dearest_strategy_spends(folder):
    ranked = result(folder, "ranked_random")["ranked"]
    assert ranked["passes"] == Halving(ranked["architectures"], 1, 4).passes == 28 >= 8 * 3.4
    assert Halving(ranked["architectures"] - 1, 1, 4).passes < 8 * 3.4


def test_a_dearer_strategy_in_the_study_raises_the_limit():
    search = Search(ConvolutionCellNetwork(channels=4, cells=1), "ranked_random")
    assert passes_per_turn(search) == pytest.approx(3.4)
    assert passes_per_turn(search, ["reinforce", "parsec", "advantage", "random"]) == pytest.approx(3.4)
    assert passes_per_turn(search, ["advantage", "darts"]) == 2.5 * 4
    assert passes_per_turn(search, ["exact_advantage"]) == 7


def test_no_architecture_step_is_taken_and_the_weights_are_those_of_uniform_draws(folder):
    run = folder / f"runs/ranked_random-{SEED}"
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [step["phase"] for step in steps] == ["weights"] * 8
    assert result(folder, "ranked_random")["process_best"] is None


def test_every_architecture_that_was_ranked_is_written_down_and_the_first_is_the_answer(folder):
    lines = (folder / f"runs/ranked_random-{SEED}/ranking.jsonl").read_text().splitlines()
    ranking, ranked = [json.loads(line) for line in lines], result(folder, "ranked_random")["ranked"]
    assert len({json.dumps(one["architecture"]) for one in ranking}) == ranked["architectures"] == len(ranking)
    assert {key: ranked[key] for key in ranking[0]} == ranking[0]
    best = [one["loss"] for one in ranking if one["minibatches"] == ranking[0]["minibatches"]]
    assert min(best) == ranking[0]["loss"]


def test_a_run_that_is_stopped_while_it_ranks_ends_with_the_same_answer(study, folder, tmp_path, monkeypatch):
    run_warmup(study, SEED, tmp_path)
    checks = 0

    def requested(signals):
        nonlocal checks
        checks += 1
        return checks == 10  # 8 turns, then the second minibatch of the ranking

    with monkeypatch.context() as patched:
        patched.setattr(StopSignals, "requested", property(requested, lambda signals, value: None), raising=False)
        with pytest.raises(SearchStopped, match="stopped after 16 turns and saved"):
            run_search(study, "ranked_random", SEED, tmp_path, ["contrast"])
    assert not read_results(tmp_path)
    run_search(study, "ranked_random", SEED, tmp_path, ["contrast"])
    assert result(tmp_path, "ranked_random")["ranked"] == result(folder, "ranked_random")["ranked"]
    for name in ("records.jsonl", "ranking.jsonl"):
        own, whole = (root / f"runs/ranked_random-{SEED}/{name}" for root in (tmp_path, folder))
        assert own.read_bytes() == whole.read_bytes()


@pytest.fixture(scope="module")
def refining(study):
    return replace(study, settings=replace(study.settings, answer="refined"))


@pytest.fixture(scope="module")
def refined_folder(refining, tmp_path_factory):
    folder = tmp_path_factory.mktemp("refined")
    execute(refining, plan(refining, ["contrast", "random", "ranked_random"], [SEED]), folder)
    return folder


def test_a_refined_answer_is_told_with_its_cost(refining, refined_folder):
    found = result(refined_folder, "contrast")
    refined, decisions = found["refined"], 6
    assert refined["minibatches"] == 4
    assert refined["passes"] == 4 * refined["architectures"] >= 4 * (1 + decisions * 3)
    assert found["passes"] == pytest.approx(8 * 3.4 + refined["passes"])
    search, _ = refining.begin("contrast", SEED)
    assert search.space.one_hot(refined["architecture"]).shape == (decisions, 4)


def test_baselines_answer_as_they_say_and_are_given_what_refining_may_cost(refined_folder):
    assert "refined" not in result(refined_folder, "random")
    most = 4 * (1 + 2 * 6 * 3)
    assert result(refined_folder, "ranked_random")["ranked"]["passes"] >= 8 * 3.4 + most


def test_no_neighbour_of_a_refined_answer_has_a_lower_loss(refining, refined_folder):
    """By the weights at the end of the same search, on the minibatches that the run was given."""
    search, data = refining.begin("contrast", SEED)
    warm = load_state(warmup_file(refined_folder, SEED))
    search.load_weights(warm["weights"])
    data.restore(warm["data"])
    while search.weight_steps < refining.length.turns:
        search.turn(*data.losses(search))
    judged = SharedLoss(search, list(islice(data.validation_pass(4)[1], 4)), lambda model, loss_of: loss_of(model))
    refined = result(refined_folder, "contrast")["refined"]
    assert judged.mean(refined["architecture"]) == refined["loss"]
    neighbours = [
        {**refined["architecture"], decision.name: operation}
        for decision in search.space.decisions
        for operation in decision.operations
    ]
    assert min(map(judged.mean, neighbours)) == refined["loss"]


def test_a_run_that_is_stopped_while_it_refines_ends_with_the_same_answer(
    refining, refined_folder, tmp_path, monkeypatch
):
    run_warmup(refining, SEED, tmp_path)
    checks = 0

    def requested(signals):
        nonlocal checks
        checks += 1
        return checks == 20  # 8 turns, then in the third architecture

    with monkeypatch.context() as patched:
        patched.setattr(StopSignals, "requested", property(requested, lambda signals, value: None), raising=False)
        with pytest.raises(SearchStopped, match="stopped after 16 turns and saved"):
            run_search(refining, "contrast", SEED, tmp_path, ["contrast"])
    run_search(refining, "contrast", SEED, tmp_path, ["contrast"])
    assert result(tmp_path, "contrast")["refined"] == result(refined_folder, "contrast")["refined"]
