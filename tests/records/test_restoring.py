import copy
from functools import partial

import pytest
import torch
from torch import nn

from advnas import Choice, Search
from advnas.records.restoring import blank_step, check_form, put_optimizer

ZEROS = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("saved", "examples"),
    [
        (0.5, [1]),  # a learning rate of 1, annealed
        ({"a": 1, "later": None}, [{"a": 0}]),
        ({}, [{}, {"a": 0}]),  # a name that comes with the first step
        ({"a": None}, [{"a": ZEROS}, {"a": None}]),
        ([1, 2], [[0, 0]]),
        ([1, 2, 3], [[], [0]]),  # a list that grows
        (torch.ones(2, 3), [ZEROS]),
        (torch.ones(7, 3), [ZEROS, ZEROS[:0]]),  # draws that are being gathered
    ],
)
def test_values_of_one_form(saved, examples):
    check_form(saved, examples, "it")


@pytest.mark.parametrize(
    ("saved", "examples", "message"),
    [
        (True, [1], "it is of type bool, and should be of type int"),
        (None, [1], "it is nothing, and should be of type int"),
        ({}, [{"a": 0}], "it has no 'a'"),
        ({"a": {"b": "text"}}, [{"a": {"b": 0.5}}], r"it\.a\.b is of type str, and should be of type float"),
        ([1], [[0, 0]], "it has 1 entries, and should have 2"),
        ([1, "text"], [[], [0]], r"it\.1 is of type str"),
        ((1,), [[1]], "it is of type tuple, and should be of type list"),
        (torch.ones(1, 3), [ZEROS], r"it is a tensor float32 \[1, 3\], and should be a tensor float32 \[2, 3\]"),
        (torch.ones(3), [ZEROS], "it is a tensor"),
        (ZEROS.double(), [ZEROS], "it is a tensor float64"),
        (ZEROS.to_sparse(), [ZEROS], "it is a tensor"),
        (torch.ones(7, 2), [ZEROS, ZEROS[:0]], r"it is a tensor float32 \[7, 2\]"),
    ],
)
def test_values_of_different_forms(saved, examples, message):
    with pytest.raises(ValueError, match=message):
        check_form(saved, examples, "it")


def search(optimizer):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), Choice({"linear": nn.Linear(2, 2), "skip": nn.Identity()}, name="edge"))
    made = Search(model, weight_optimizer=optimizer)
    for _ in range(3):
        made.weight_step(lambda model: model(torch.ones(1, 2)).square().sum())
        made.architecture_step(lambda model: model(torch.ones(1, 2)).square().sum())
    return made


SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ADAM = partial(torch.optim.Adam, lr=0.1)


@pytest.mark.parametrize(("theirs", "ours"), [(SGD, ADAM), (ADAM, SGD)])
def test_a_search_with_another_optimizer_is_refused(theirs, ours):
    with pytest.raises(ValueError, match=r"state\.weights\.optimizer\.\S+ has no '(betas|momentum|exp_avg|step)"):
        search(ours).restore(search(theirs).state())


def test_a_state_that_is_broadcast_would_be_another_one():
    state = copy.deepcopy(search(SGD).state())
    state["architecture"]["theta"][0] = state["architecture"]["theta"][0][:1]
    with pytest.raises(ValueError, match=r"state\.architecture\.theta\.0 is a tensor float32 \[1\]"):
        search(SGD).restore(state)


def test_a_search_may_take_over_its_own_state():
    made = search(SGD)
    before = copy.deepcopy(made.state())
    made.restore(made.state())
    for part in ("weights", "architecture"):
        now = made.state()[part]["optimizer"]["state"]
        for number, buffers in before[part]["optimizer"]["state"].items():
            assert all(torch.equal(value, now[number][name]) for name, value in buffers.items())
    assert all(map(torch.equal, made.model.state_dict().values(), before["weights"]["model"].values()))


def test_an_optimizer_refuses_the_state_of_other_parameters():
    optimizer = SGD([nn.Parameter(torch.ones(2))])
    blank_step(optimizer)
    state = optimizer.state_dict()
    with pytest.raises(ValueError, match="no parameters"):
        put_optimizer(optimizer, state | {"state": {7: state["state"][0]}})
    with pytest.raises(ValueError, match="groups of parameters"):
        put_optimizer(optimizer, state | {"param_groups": [state["param_groups"][0] | {"params": [1]}]})
