"""Built-in spaces on built-in tasks; tests/cli/test_search.py runs whole searches."""

import pytest
import torch

from advnas.studies.built_in import make_search


def test_all_strategies_of_a_seed_start_from_the_same_weights():
    searches = [make_search(strategy, 3, task="digits")[0] for strategy in ("advantage", "parsec", "enas")]
    first, *others = (list(search.model.state_dict().values()) for search in searches)
    for other in others:
        assert all(map(torch.equal, first, other))


def test_strategies_are_told_what_they_must_know_of_the_task():
    assert make_search("parsec", 0, task="digits")[0].strategy.examples == 32
    assert make_search("parsec", 0, task="digits", batch=50, processes=2)[0].strategy.examples == 100
    assert make_search("enas", 0, task="digits", theta_rate=0.2)[0].strategy.learning_rate == 0.02


@pytest.mark.parametrize(
    ("space", "decisions"), [("small_cells", 6), ("nasbench201", 6), ("darts", 28), ("mobile", 21)]
)
def test_every_space_for_images_takes_digits(space, decisions):
    search, task = make_search("random", 0, task="digits", space=space, channels=8, batch=4)
    assert len(search.space.decisions) == decisions
    assert search.weight_step(lambda model: task.loss(model, next(iter(task.training)))).loss > 0


def test_options_go_to_the_space_and_to_the_task():
    search, task = make_search("random", 0, task="digits", channels=4, zero=False, batch=100)
    assert search.space.sizes == (4,) * 6
    assert search.model.stem[0].out_channels == 4
    assert len(task.training) == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"space": "darts201"}, r"no space 'darts201' \(did you mean 'darts'"),
        ({"space": "recurrent_cell"}, "'recurrent_cell' is not for the task 'digits': it does not take inputs"),
        ({"chanels": 3}, r"small_cells on digits has no option 'chanels' \(did you mean 'channels'\?\)"),
        ({"cells": 3}, "small_cells on digits has no option 'cells'"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_search("random", 0, task="digits", **options)
