import copy
from functools import partial

import pytest
import torch
from torch import nn

from advnas import Choice, Search
from advnas.records.restoring import check_form, check_optimizer

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
    with pytest.raises(ValueError, match=r"weights\.optimizer\.\S+ has no '(betas|momentum|exp_avg|step)"):
        search(ours).restore(search(theirs).state())


def test_a_state_that_is_broadcast_would_be_another_one():
    state = copy.deepcopy(search(SGD).state())
    state["architecture"]["theta"][0] = state["architecture"]["theta"][0][:1]
    with pytest.raises(ValueError, match=r"architecture\.theta\.0 is a tensor float32 \[1\]"):
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


def stepped(optimizer, parameter):
    made = optimizer([parameter])
    parameter.grad = torch.zeros_like(parameter)
    made.step()
    return made


def test_an_optimizer_refuses_the_state_of_other_parameters():
    optimizer = stepped(SGD, nn.Parameter(torch.ones(2)))
    state = optimizer.state_dict()
    with pytest.raises(ValueError, match="no parameter 7"):
        check_optimizer(optimizer, state | {"state": {7: state["state"][0]}}, "it")
    with pytest.raises(ValueError, match="groups of parameters"):
        check_optimizer(optimizer, state | {"param_groups": [state["param_groups"][0] | {"params": [1]}]}, "it")


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize(
    "make", [SGD, ADAM, partial(ADAM, fused=True), torch.optim.RMSprop, torch.optim.AdamW, torch.optim.NAdam]
)
def test_what_an_optimizer_keeps_has_the_shape_of_its_parameter(make, fresh):
    """Also where nothing was kept so far: a fused step would read past the end of a short tensor."""
    saved = stepped(make, nn.Parameter(torch.ones(3, 5))).state_dict()
    optimizer = make([nn.Parameter(torch.ones(3, 5))]) if fresh else stepped(make, nn.Parameter(torch.ones(3, 5)))
    check_optimizer(optimizer, saved, "it")
    key = next(key for key, value in saved["state"][0].items() if value.dim())
    for other in (torch.ones(5), torch.ones(3, 5).double(), "text", None):
        with pytest.raises(ValueError, match=rf"it\.state\.0\.{key} is"):
            check_optimizer(optimizer, {**saved, "state": {0: saved["state"][0] | {key: other}}}, "it")
    with pytest.raises(ValueError, match=f"it.state.0 has no '{key}'"):
        check_optimizer(
            optimizer, {**saved, "state": {0: {k: v for k, v in saved["state"][0].items() if k != key}}}, "it"
        )


def test_an_optimizer_that_keeps_other_shapes_may():
    parameter = nn.Parameter(torch.ones(4, 6))
    saved = stepped(torch.optim.Adafactor, parameter).state_dict()
    check_optimizer(torch.optim.Adafactor([nn.Parameter(torch.ones(4, 6))]), saved, "it")
