from dataclasses import replace
from pathlib import Path

import pytest
import torch

from advnas.paper.cifar10 import PRESETS, STRATEGIES, Cifar10, Cifar10Settings
from advnas.tasks import cifar10
from advnas.tasks.cifar10 import Images


@pytest.fixture
def experiment(monkeypatch):
    """The quick study on made-up images."""
    random = torch.Generator().manual_seed(0)
    images = Images(
        torch.randint(256, (50_000, 3, 32, 32), dtype=torch.uint8, generator=random),
        torch.randint(10, (50_000,), generator=random),
    )
    monkeypatch.setattr(cifar10, "read_once", lambda folder, part: images)
    return Cifar10(PRESETS["quick"], Path("nowhere"))


def test_the_paper_preset_is_the_appendix():
    paper = PRESETS["paper"]
    assert (paper.channels, paper.cells, paper.images, paper.batch) == (16, 5, 25_000, 64)
    assert (paper.epochs, paper.warmup, paper.clip) == (100, 50, 1.0)
    assert (paper.weight_rate, paper.momentum, paper.weight_decay) == (0.1, 0.9, 5e-4)
    assert (paper.theta_rate, paper.theta_betas, paper.theta_decay) == (3e-4, (0.5, 0.999), 3e-3)
    length = Cifar10(paper, Path()).length
    assert (length.turns, length.warmup_turns, length.record_every) == (39_000, 19_500, 390)


@pytest.mark.parametrize("name", PRESETS)
def test_half_of_every_preset_is_warm_up(name):
    assert PRESETS[name].warmup * 2 == PRESETS[name].epochs


def test_all_strategies_of_a_seed_start_from_the_same_weights(experiment):
    first, *others = (experiment.make_search(name, 1).model.state_dict() for name in STRATEGIES)
    for other in others:
        assert all(map(torch.equal, first.values(), other.values()))
    assert not torch.equal(first["stem.0.weight"], experiment.make_search("random", 2).model.stem[0].weight)


def test_minibatches_depend_on_the_seed_and_the_position_alone(experiment):
    def losses(strategy, seed):
        search = experiment.make_search(strategy, seed)
        search.progress.weight_steps = experiment.length.warmup_turns
        architecture = next(search.space.architectures())
        training, validation = experiment.make_data(seed).losses(search)
        with search.space.running(architecture):
            return training(search.model).item(), validation()(search.model).item()

    assert losses("advantage", 1) == losses("darts", 1)
    assert losses("advantage", 1) != losses("advantage", 2)
    assert len(set(losses("advantage", 1))) == 2


def test_the_halves_share_no_image(experiment):
    training, validation = cifar10.parts(experiment.data_folder, 400)
    assert len(set(training.tolist()) | set(validation.tolist())) == 800


def test_the_zero_operation_is_among_the_candidates_only_where_it_is_asked_for(experiment):
    assert experiment.make_search("random", 0).space.sizes == (4,) * 6
    zero = replace(experiment, settings=replace(experiment.settings, zero=True))
    assert zero.make_search("random", 0).space.sizes == (5,) * 6


def test_strategies_are_told_what_they_must_know_of_the_task(experiment):
    assert experiment.make_search("parsec", 0).strategy.examples == experiment.settings.batch
    assert experiment.make_search("enas", 0).strategy.learning_rate == experiment.settings.controller_rate


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_takes_the_steps_that_are_due(name, experiment):
    search = experiment.make_search(name, 0)
    learns, every = search.strategy.takes_architecture_steps, search.strategy.architecture_every
    search.progress.weight_steps = experiment.length.warmup_turns + every - 1
    phases = [step.phase for step in search.turn(*experiment.make_data(0).losses(search))]
    assert phases == (["weights", "architecture"] if learns else ["weights"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": 0}, "channels must be a positive integer, got 0"),
        ({"warmup": -1}, "warmup must be an integer of at least 0, got -1"),
        ({"images": 10}, "minibatch of 64 needs as many images, got images=10"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Cifar10Settings(**options)


def test_more_images_than_there_are_are_refused(experiment):
    greedy = replace(experiment, settings=replace(experiment.settings, images=25_001))
    with pytest.raises(ValueError, match=r"25,000 images, got images=25,001"):
        greedy.check("advantage", 0)


def test_missing_images_stop_a_study_before_it_starts(tmp_path):
    with pytest.raises(FileNotFoundError, match="No CIFAR-10 in"):
        Cifar10(PRESETS["quick"], tmp_path).check("advantage", 0)
