import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from advnas import Choice, Search
from advnas.search.device import Device, keep_kernels

KERNELS = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


def test_a_batch_is_placed_with_all_its_tensors():
    batch = {"x": torch.zeros(2), "more": (torch.ones(1), "text")}
    placed = Device("meta").place(batch)
    assert placed["x"].device.type == placed["more"][0].device.type == "meta"
    assert placed["more"][1] == "text"


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
