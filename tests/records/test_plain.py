import enum
import io
import itertools
import os
import signal
from collections import OrderedDict, namedtuple
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advnas import Choice, Search, SearchStopped, Task
from advnas.records.checkpoints import load_state, save_state
from advnas.records.plain import plain

Pair = namedtuple("Pair", "one other")


class Mode(str, enum.Enum):  # noqa: UP042
    FAST = "fast"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (np.bool_(True), True),
        (np.int64(3), 3),
        (np.uint8(3), 3),
        (enum.IntEnum("Number", {"THREE": 3}).THREE, 3),
        (np.float64(0.1), 0.1),
        (np.float32(0.5), 0.5),
        (np.longdouble(0.5), 0.5),
        (np.str_("text"), "text"),
        (Mode.FAST, "fast"),
        (np.bytes_(b"ab"), b"ab"),
        (Path("a/b"), "a/b"),
        (OrderedDict(a=OrderedDict(b=np.int64(1))), {"a": {"b": 1}}),
        ({np.int64(1): 2, ("a", np.int64(2)): 3}, {1: 2, ("a", 2): 3}),
        ([np.float64(1), (np.int64(2),)], [1.0, (2,)]),
        (Pair(1, 2), (1, 2)),
        (torch.Size([1, 2]), (1, 2)),
        ({np.int64(1)}, {1}),
        (torch.float32, torch.float32),
    ],
)
def test_values_become_plain_ones(value, expected):
    found = plain(value, "it")
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    "array",
    [np.arange(6).reshape(2, 3), np.array([0.5, 1.5]), np.array(2.5), np.arange(3, dtype=">i4"), np.array([True])],
)
def test_arrays_become_tensors(array):
    found = plain({"a": array}, "it")["a"]
    assert isinstance(found, torch.Tensor)
    assert found.tolist() == array.tolist()


def test_tensors_lose_what_is_not_their_values():
    parameter = nn.Parameter(torch.ones(2))
    parameter.note = object()
    found = plain([parameter], "it")[0]
    assert type(found) is torch.Tensor
    assert not found.requires_grad
    assert found.data_ptr() == parameter.data_ptr()
    assert not hasattr(found, "note")


def test_a_state_dict_keeps_the_versions_of_its_modules(tmp_path):
    state = nn.Sequential(nn.BatchNorm1d(2)).state_dict()
    save_state(tmp_path / "state.pt", {"model": state})
    loaded = load_state(tmp_path / "state.pt")["model"]
    assert loaded._metadata == dict(state._metadata)
    assert loaded._metadata["0"] == {"version": 2}


@pytest.mark.parametrize(
    ("state", "name", "kind"),
    [
        ({"weights": {"groups": [{"lr": lambda: 1}]}}, r"weights\.groups\.0\.lr", "builtins.function"),
        ({"a": [0, (1, io.BytesIO())]}, r"a\.1\.1", "_io.BytesIO"),
        ({"a": np.array(["text"])}, "a", "numpy array of <U4"),
        ({"a": np.array([None])}, "a", "numpy array of object"),
        ({"a": torch.Generator()}, "a", "torch._C.Generator"),
        ({"a": np.datetime64("2020-01-01")}, "a", "numpy.datetime64"),
        ({"a": nn.UninitializedParameter()}, "a", "torch.nn.parameter.UninitializedParameter"),
        ({Pair: 1}, r".*Pair.*", "builtins.type"),
    ],
)
def test_what_a_checkpoint_cannot_hold_is_named_and_nothing_is_written(tmp_path, state, name, kind):
    with pytest.raises(ValueError, match=rf"^{name} is a {kind}, which a checkpoint cannot hold.*torch\.tensor"):
        save_state(tmp_path / "state.pt", state)
    assert not list(tmp_path.iterdir())


def test_what_contains_itself_is_refused():
    endless = []
    endless.append(endless)
    with pytest.raises(ValueError, match="it is nested too deeply, or contains itself"):
        plain(endless, "it")


# A search whose settings bring numpy into its state


def numpy_annealing(progress):
    return 0.5 * (1 + np.cos(np.pi * progress))


def search():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), Choice({"linear": nn.Linear(2, 2), "skip": nn.Identity()}, name="edge"))
    optimizer = partial(torch.optim.SGD, lr=np.float64(0.1), momentum=0.9)
    return Search(model, annealing=numpy_annealing, weight_optimizer=optimizer)


def run(made, folder, on_step=None):
    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
    task = Task([x[:4], x[4:8], x[8:]], [x], lambda model, batch: F.mse_loss(model(batch), batch.flip(1)))
    made.run(task, epochs=4, folder=folder, resume=True, on_step=on_step)
    return made


def test_a_search_with_numpy_annealing_is_stopped_and_resumed_bit_for_bit(tmp_path):
    steps = itertools.count(1)
    whole = run(search(), tmp_path / "whole")
    with pytest.raises(SearchStopped):
        run(
            search(),
            tmp_path / "stopped",
            on_step=lambda step: next(steps) == 7 and os.kill(os.getpid(), signal.SIGTERM),
        )
    resumed = run(search(), tmp_path / "stopped")
    for name in ("metrics.jsonl", "result.json"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert all(map(torch.equal, resumed.model.state_dict().values(), whole.model.state_dict().values()))
    assert torch.equal(resumed.distribution.logits, whole.distribution.logits)
