from dataclasses import replace

import pytest
import torch

from advnas.experiments.digits import PRESETS, STRATEGIES, DigitsExperiment, DigitsSettings, _parts
from advnas.studies.execute import execute, plan
from advnas.studies.runs import read_results

QUICK = DigitsExperiment(PRESETS["quick"])


def test_no_digit_is_used_for_two_purposes():
    training, validation, test = _parts()
    assert (len(training), len(validation), len(test)) == (700, 500, 597)


def test_a_study_ends_with_the_accuracy_of_what_was_found_and_of_the_baseline(tmp_path):
    execute(QUICK, plan(QUICK, STRATEGIES, [0]), tmp_path)
    advantage, random = read_results(tmp_path)
    assert advantage["evaluation"]["by"] == "argmax"
    assert random["evaluation"]["by"] == "process best"
    assert random["evaluation"]["architecture"] == random["process_best"]["architecture"]
    for result in (advantage, random):
        assert 10 < result["evaluation"]["test_accuracy"] <= 100
        assert result["evaluation"]["parameters"] > 3000


def test_all_strategies_of_a_seed_start_from_the_same_weights_and_minibatches():
    searches = [QUICK.make_search(name, 3) for name in STRATEGIES]
    assert all(map(torch.equal, *(search.model.state_dict().values() for search in searches)))
    first, second = searches
    with first.space.running(first.argmax()):
        losses = {QUICK.make_data(3).losses(search)[0](first.model).item() for search in (first, second)}
    assert len(losses) == 1


def test_a_retrained_network_keeps_running_statistics():
    assert any("running_mean" in name for name in QUICK._network(0, affine=True).state_dict())


@pytest.mark.parametrize("change", [{"epochs": 0}, {"warmup": -1}, {"batch": 1.5}])
def test_settings_that_cannot_work_are_refused(change):
    (name,) = change
    with pytest.raises(ValueError, match=f"{name} must be"):
        replace(DigitsSettings(), **change)
