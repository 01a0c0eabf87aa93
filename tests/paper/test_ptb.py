import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from advnas import Architecture
from advnas.paper.ptb import PRESETS, STRATEGIES, Ptb, PtbSettings, comparison
from advnas.records.checkpoints import Checkpoints
from advnas.studies.run import read_results, run_search
from advnas.studies.study import Found
from advnas.tasks import penn_treebank


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Made-up texts of 40 words, in which some words follow others more often."""
    place = tmp_path_factory.mktemp("texts")
    random = torch.Generator().manual_seed(0)
    for name, lines in {"train": 1200, "valid": 40, "test": 40}.items():
        numbers = torch.randint(40, (lines, 11), generator=random).cumsum(1) % 40
        text = "\n".join(" ".join(f"w{number}" for number in line) for line in numbers.tolist())
        (place / f"{name}.txt").write_text(text + "\n")
    return place


@pytest.fixture
def experiment(folder):
    return Ptb(PRESETS["quick"], folder)


def test_the_paper_preset_is_the_appendix():
    paper = PRESETS["paper"]
    assert (paper.hidden, paper.nodes, paper.batch, paper.length, paper.dropout) == (300, 3, 256, 35, 0.5)
    assert (paper.epochs, paper.retrain_epochs, paper.tokens) == (30, 100, None)
    assert (paper.weight_rate, paper.weight_clip) == (20, 0.25)
    assert (paper.theta_rate, paper.theta_betas, paper.theta_clip) == (3e-3, (0.9, 0.999), 1)


def test_nodes_are_normalised_in_the_search_alone(folder, tmp_path):
    study = comparison("quick", folder, normalise=True).study
    search = study.make_search("contrast", 0)
    assert isinstance(search.model.cell.norm, nn.BatchNorm1d)
    assert isinstance(study.make_network(0).cell.norm, nn.Identity)  # what is retrained
    plain = Ptb(PRESETS["quick"], folder).make_search("contrast", 0).model.state_dict()
    assert all(torch.equal(weight, plain[name]) for name, weight in search.model.state_dict().items())


def test_theta_may_wait_for_half_of_the_search(folder):
    study = comparison("laptop", folder, half_warmup=True).study
    assert (study.settings.epochs, study.settings.warmup) == (4, 2)
    assert study.length.warmup_turns == study.length.turns // 2


def test_the_answer_is_taken_as_in_the_paper(experiment):
    operations = ("relu", "tanh", "sigmoid")
    found = Found(*(Architecture({"0->1": operation}) for operation in operations))
    answers = {name: found.taken(experiment.answer_of(name))[0] for name in STRATEGIES}
    assert answers == {
        "reinforce": "process best",
        "parsec": "argmax",
        "proxyless": "argmax",
        "gdas": "process best",
        "advantage": "argmax",
        "contrast": "argmax",
        "random": "process best",
        "ranked_random": "ranked",
    }
    assert [found.taken(by) for by in ("ranked", "refined")] == [
        ("ranked", found.staged),
        ("refined", found.staged),
    ]
    assert replace(found, process_best=None).taken("process_best") == ("argmax", found.argmax)


def test_the_weights_and_theta_carry_hidden_states_of_their_own(experiment):
    search, text = experiment.make_search("advantage", 0), experiment.make_data(0)
    search.turn(*text.losses(search))
    weights, theta = text.carried["weights"], text.carried["theta"]
    assert weights.shape == theta.shape == (16, 16)
    assert not torch.equal(weights, theta)
    assert not weights.requires_grad


def test_only_the_first_pass_of_a_step_carries_its_state_on(experiment):
    search, text = experiment.make_search("advantage", 0), experiment.make_data(0)
    loss_of, _ = text.losses(search)
    first, second = itertools.islice(search.space.architectures(), 2)
    with search.space.running(first):
        loss_of(search.model)
    carried = text.carried["weights"]
    with search.space.running(second):
        loss_of(search.model)
    assert text.carried["weights"] is carried


def test_every_epoch_starts_with_an_empty_state(experiment):
    search, text = experiment.make_search("random", 0), experiment.make_data(0)
    text.carried = dict.fromkeys(("weights", "theta"), torch.full((16, 16), torch.nan))
    search.progress.weight_steps = search.progress.architecture_steps = experiment.length.per_epoch
    assert all(step.loss == step.loss for step in search.turn(*text.losses(search)))


def test_theta_can_read_the_text_that_follows_that_of_the_weights(experiment):
    apart = replace(experiment, settings=replace(experiment.settings, theta_tokens=1_000))
    text, corpus = apart.make_data(0), penn_treebank.read(apart.data_folder)
    assert text.segments.at(0)[0][0, 0] == corpus.train[0]
    assert text.theta_segments.at(0)[0][0, 0] == corpus.train[apart.settings.tokens]
    assert len(text.theta_segments) < len(text.segments)
    assert "reads 1,000 tokens that the weights do not" in apart.procedure()["in turn"]
    together = experiment.make_data(0)
    assert together.theta_segments is together.segments


def test_a_text_that_is_too_short_for_both_is_refused(experiment):
    greedy = replace(experiment, settings=replace(experiment.settings, theta_tokens=12_000))
    with pytest.raises(ValueError, match=r"2,400 more, and theta is to read 12,000\. Give fewer tokens"):
        greedy.check("advantage", 0)


def test_theta_is_fixed_while_the_weights_warm_up(experiment):
    warm = replace(experiment, settings=replace(experiment.settings, warmup=1))
    search, text = warm.begin("advantage", 0)
    assert warm.length.warmup_turns == warm.length.per_epoch
    search.turn(*text.losses(search))
    assert (search.weight_steps, search.architecture_steps) == (1, 0)


class Crash(Exception):
    pass


def crash_at_checkpoint(number, monkeypatch):
    """The power fails right after the checkpoint of this number, counted over search and retraining."""
    save, saved = Checkpoints.save, itertools.count(1)

    def crashing(self, state, step):
        save(self, state, step)
        if next(saved) == number:
            raise Crash

    monkeypatch.setattr(Checkpoints, "save", crashing)


def outcome(folder):
    (result,) = read_results(folder)
    records = (folder / "runs/advantage-0/records.jsonl").read_bytes()
    return result["evaluation"], result["argmax"], result["process_best"], records


@pytest.fixture(scope="module")
def uninterrupted(folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("uninterrupted")
    run_search(Ptb(PRESETS["quick"], folder), "advantage", 0, place)
    return outcome(place)


@pytest.mark.parametrize("number", [1, 3, 5, 6], ids=["search", "second epoch", "end of search", "retraining"])
def test_a_killed_search_or_retraining_ends_with_the_same_perplexity(
    number, experiment, uninterrupted, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        crash_at_checkpoint(number, patch)
        with pytest.raises(Crash):
            run_search(experiment, "advantage", 0, tmp_path)
    run_search(experiment, "advantage", 0, tmp_path)
    assert outcome(tmp_path) == uninterrupted


def test_retraining_learns_something(uninterrupted):
    evaluation = uninterrupted[0]
    assert evaluation["valid_perplexity"] < 41  # there are 41 words, with <eos>
    assert evaluation["test_perplexity"] < 41
    assert evaluation["by"] == "argmax"


def test_strategies_are_told_what_they_must_know_of_the_task(experiment):
    assert experiment.make_search("parsec", 0).strategy.examples == 16 * 20
    assert experiment.make_search("enas", 0).strategy.learning_rate == experiment.settings.controller_rate


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 0}, "hidden must be a positive integer, got 0"),
        ({"tokens": 100}, "tokens must be an integer of at least 9216, got 100"),
        ({"theta_tokens": 100}, "theta_tokens must be an integer of at least 9216, got 100"),
        ({"theta_tokens": 10_000}, "whole training text, none is left for theta. Give tokens too"),
        ({"epochs": 4, "warmup": 4}, "warmup must leave epochs for theta: it is 4 of 4"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        PtbSettings(**options)


def test_missing_texts_stop_a_study_before_it_starts(tmp_path):
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        Ptb(PRESETS["quick"], tmp_path).check("advantage", 0)


def test_the_texts_are_read_once(experiment, folder):
    assert experiment._corpus is penn_treebank.read_once(Path(folder))
