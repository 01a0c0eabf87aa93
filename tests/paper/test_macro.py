from dataclasses import replace
from pathlib import Path

import pytest
import torch

from advnas import strategies
from advnas.paper.macro import PRESETS, SEEDS, STRATEGIES, Macro, MacroSettings
from advnas.studies.run import read_results, run_search, run_warmup
from advnas.tables import nasbench_macro
from advnas.tasks import cifar10
from advnas.tasks.cifar10 import Images


@pytest.fixture
def study(monkeypatch):
    """The quick study on made-up images."""
    random = torch.Generator().manual_seed(0)
    images = Images(
        torch.randint(256, (50_000, 3, 32, 32), dtype=torch.uint8, generator=random),
        torch.randint(10, (50_000,), generator=random),
    )
    monkeypatch.setattr(cifar10, "read_once", lambda folder, part: images)
    return Macro(PRESETS["quick"], Path("nowhere"))


def test_the_laptop_preset():
    laptop = PRESETS["laptop"]
    assert (laptop.width, laptop.head, laptop.side, laptop.images, laptop.batch) == (8, 128, 16, 12_800, 64)
    assert (laptop.epochs, laptop.warmup, laptop.clip, laptop.theta_rate) == (12, 6, 5.0, 0.05)
    assert (laptop.theta_betas, laptop.theta_decay, SEEDS["laptop"]) == ((0.5, 0.999), 0.0, 10)


def test_the_full_preset_is_the_network_of_the_benchmark_on_all_images():
    full = PRESETS["full"]
    assert (full.width, full.head, full.side, full.images) == (32, 1280, 32, 25_000)


@pytest.mark.parametrize("name", PRESETS)
def test_half_of_every_preset_is_warm_up(name):
    assert PRESETS[name].warmup * 2 == PRESETS[name].epochs


def test_every_sparse_strategy_takes_part():
    sparse = [name for name in strategies.names() if strategies.strategy_type(name).weight_operations == 1]
    assert sorted(STRATEGIES) == sorted(set(sparse) - {"nasp"})


def test_images_are_averages_of_two_by_two_pixels(study):
    sides = []
    search = study.make_search("random", 0)
    search.model.register_forward_pre_hook(lambda model, given: sides.append(given[0].shape[-1]))
    with search.space.running(nasbench_macro.from_string("00000000")):
        study.make_data(0).losses(search)[0](search.model)
    assert sides == [16]


def test_all_strategies_of_a_seed_start_from_the_same_weights(study):
    first, *others = (study.make_search(name, 1).model.state_dict() for name in STRATEGIES)
    for other in others:
        assert all(map(torch.equal, first.values(), other.values()))
    assert not torch.equal(first["stem.0.weight"], study.make_search("random", 2).model.stem[0].weight)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_takes_the_steps_that_are_due(name, study):
    search = study.make_search(name, 0)
    learns, every = search.strategy.takes_architecture_steps, search.strategy.architecture_every
    search.progress.weight_steps = study.length.warmup_turns + every - 1
    phases = [step.phase for step in search.turn(*study.make_data(0).losses(search))]
    assert phases == (["weights", "architecture"] if learns else ["weights"])


def test_a_run_starts_from_the_warm_up_of_its_seed_and_its_answer_is_in_the_table(study, tmp_path):
    tiny = replace(study, settings=replace(study.settings, images=64, epochs=2, warmup=1, records=1))
    run_warmup(tiny, 3, tmp_path)
    run_search(tiny, "advantage", 3, tmp_path)
    (result,) = read_results(tmp_path)
    assert result["warmup_seconds"] > 0
    assert nasbench_macro.to_string(result["argmax"]) in nasbench_macro.all_networks()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width must be a positive integer, got 0"),
        ({"head": 0}, "head must be a positive integer, got 0"),
        ({"side": 8}, "32 pixels, or 16 by averages; got side=8"),
        ({"images": 10}, "minibatch of 64 needs as many images, got images=10"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MacroSettings(**options)


def test_missing_images_stop_a_study_before_it_starts(tmp_path):
    with pytest.raises(FileNotFoundError, match="No CIFAR-10 in"):
        Macro(PRESETS["quick"], tmp_path).check("advantage", 0)
