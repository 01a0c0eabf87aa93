import os
import subprocess
import sys
from collections import UserDict
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from advnas import Choice, Search, Task
from advnas.answers import finalists, rank_architectures, refine
from advnas.search.device import Device, keep_kernels, on_device
from advnas.task import mean_over

KERNELS = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


def test_a_batch_is_placed_with_all_its_tensors():
    batch = {"x": torch.zeros(2), "more": (torch.ones(1), "text")}
    placed = Device("meta").place(batch)
    assert placed["x"].device.type == placed["more"][0].device.type == "meta"
    assert placed["more"][1] == "text"


@dataclass(frozen=True)
class Pair:
    x: torch.Tensor
    names: tuple[str, ...]


class Graph:
    """Moves itself, in place, as the data of torch_geometric do."""

    def __init__(self):
        self.nodes = torch.ones(3)

    def to(self, device):
        self.nodes = self.nodes.to(device)
        return self


class Forgetful(Graph):
    def to(self, device):
        self.nodes = self.nodes.to(device)


class Encoding(UserDict):
    """As the BatchEncoding of transformers."""

    def to(self, device):
        self.data = {name: value.to(device) for name, value in self.data.items()}
        return self


@pytest.mark.parametrize(
    ("batch", "tensor_of"),
    [
        (Pair(torch.ones(2), ("a", "b")), lambda batch: batch.x),
        ([Pair(torch.ones(2), ())], lambda batch: batch[0].x),
        (UserDict(x=torch.ones(2), more=[1]), lambda batch: batch["x"]),
        (Encoding(x=torch.ones(2)), lambda batch: batch["x"]),
        ((Graph(), "text"), lambda batch: batch[0].nodes),
        (Forgetful(), lambda batch: batch.nodes),
        (pack_sequence([torch.ones(3), torch.ones(2)]), lambda batch: batch.data),
    ],
)
def test_batches_of_many_kinds_are_placed_and_those_of_the_user_left_as_they_are(batch, tensor_of):
    placed = Device("meta").place(batch)
    assert type(placed) is type(batch)
    assert tensor_of(placed).device.type == "meta"
    assert tensor_of(batch).device.type == "cpu"


def test_what_has_no_tensors_is_placed_as_it_is():
    batch = [Graph, "text", 1, None, range(3), nn.Linear]
    assert Device("meta").place(batch) == batch


def test_a_task_on_a_device_has_its_batches_there():
    seen = []

    def loss(model, batch):
        seen.append(batch.device.type)
        return torch.zeros(())

    def accuracy(model, batch):
        return float(batch.device.type == "meta")

    data = [torch.ones(2)]
    task = on_device(Task(data, data, loss, data, accuracy, examples=2), "meta")
    model = nn.Identity()
    assert (mean_over(model, task.validation, task.loss), seen) == (0.0, ["meta"])
    assert mean_over(model, task.test, task.metric) == 1.0
    assert (task.metric.__name__, task.examples) == ("accuracy", 2), "tables show the name"
    assert on_device(Task(data, data, loss), "meta").metric is None


def test_what_comes_after_a_run_takes_the_task_on_the_device():
    placed = []

    def loss(model, batch):
        placed.append(batch.device == next(model.parameters()).device)
        return torch.tensor(float(len(placed)))

    data = [torch.ones(2, 2)]
    search = Search(nn.Sequential(nn.Linear(2, 2), Choice({"a": nn.Linear(2, 2), "b": nn.Identity()})))
    search.model.to("meta")
    task = on_device(Task(data, data, loss), "meta")
    finalists(search, task, draws=2)
    rank_architectures(search, task.validation, task.loss, count=2)
    refine(search, task.validation, task.loss)
    assert len(placed) == 5
    assert all(placed)


def test_a_device_that_is_not_there_is_told():
    with pytest.raises(ValueError, match="device 'abacus' cannot be used here"):
        on_device(Task([], [], lambda model, batch: model(batch)), "abacus")


def test_operations_run_in_the_precision():
    matrix = torch.ones(2, 2)
    with Device("cpu", "bfloat16").computing():
        assert (matrix @ matrix).dtype == torch.bfloat16
    with Device("cpu").computing():
        assert (matrix @ matrix).dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "precision", "message"),
    [("abacus", "float32", "device 'abacus' cannot be used here"), ("cpu", "int8", "precision must be one of")],
)
def test_what_cannot_be_used_is_told(name, precision, message):
    with pytest.raises(ValueError, match=message):
        Device(name, precision)


@pytest.fixture
def untold(monkeypatch):
    """An environment that does not say how many kernels to keep."""
    monkeypatch.setenv(KERNELS, "")  # put back at the end, whatever happens in between
    monkeypatch.delenv(KERNELS)
    monkeypatch.delenv("DNNL_PRIMITIVE_CACHE_CAPACITY", raising=False)
    return monkeypatch


def test_the_kernels_of_many_candidates_are_kept_for_who_asks(untold):
    Search(nn.Sequential(Choice({"a": nn.Linear(2, 2), "b": nn.Identity()})))
    assert KERNELS not in os.environ, "a constructor leaves the environment alone"
    keep_kernels()
    assert int(os.environ[KERNELS]) > 1024


@pytest.mark.parametrize("name", [KERNELS, "DNNL_PRIMITIVE_CACHE_CAPACITY"])
def test_how_many_kernels_are_kept_is_for_the_environment_to_say(untold, name):
    untold.setenv(name, "7")
    keep_kernels()
    assert os.environ[name] == "7"
    assert name == KERNELS or KERNELS not in os.environ


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of address space there")
def test_where_address_space_is_rationed_kernels_reserve_no_more_of_it(untold):
    program = (
        "import os, resource; resource.setrlimit(resource.RLIMIT_DATA, (2**34, 2**34)); "
        f"from advnas.search.device import keep_kernels; keep_kernels(); print({KERNELS!r} in os.environ)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout == "False\n"
