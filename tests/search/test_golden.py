"""Golden journals: short searches whose every step, theta and weights are known.

A change that is meant to leave results alone must leave these alone: to the last bit on the machine that wrote
golden.json, and to 1e-6 on any other. Two machines are the same if torch, its kernels and the processor are
(`golden_runs.machine`). A change that is meant to alter results writes the file anew:

    .venv/bin/python tests/search/golden_runs.py write tests/search/golden.json
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAM = Path(__file__).with_name("golden_runs.py")
SPEC = importlib.util.spec_from_file_location("golden_runs", PROGRAM)
golden_runs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(golden_runs)

GOLDEN = json.loads(golden_runs.GOLDEN.read_text())
SAME_MACHINE = GOLDEN["machine"] == golden_runs.machine()


@pytest.fixture(autouse=True)
def _as_when_it_was_written(monkeypatch):
    monkeypatch.setattr("advnas.gates.gate._SMALL", 0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def assert_golden(name, found):
    expected = GOLDEN["runs"][name]
    for key, numbers in expected["numbers"].items():
        torch.testing.assert_close(
            torch.tensor(found["numbers"][key]), torch.tensor(numbers), rtol=1e-6, atol=1e-6, msg=f"{name}: {key}"
        )
    if SAME_MACHINE:
        assert found["digests"] == expected["digests"], name


@pytest.mark.parametrize("store", golden_runs.STORES)
@pytest.mark.parametrize("schedule", golden_runs.SCHEDULES)
@pytest.mark.parametrize("variant", golden_runs.VARIANTS)
def test_a_search_is_what_it_was(variant, schedule, store):
    assert_golden(f"{variant}, {schedule}", golden_runs.run(variant, schedule, store))


@pytest.mark.parametrize("store", golden_runs.STORES)
@pytest.mark.parametrize("schedule", golden_runs.SCHEDULES)
@pytest.mark.parametrize("variant", golden_runs.RESUMED)
def test_a_search_that_was_cut_off_ends_the_same(variant, schedule, store):
    assert_golden(f"{variant}, {schedule}", golden_runs.run(variant, schedule, store, stop_after=17))


def test_two_processes_are_what_they_were(tmp_path):
    found = tmp_path / "pair.json"
    subprocess.run([sys.executable, str(PROGRAM), "pair", str(found)], check=True, timeout=120)
    for variant, outcome in json.loads(found.read_text()).items():
        assert_golden(f"{variant}, two processes", outcome)


def test_another_search_is_not_golden():
    """The comparison can fail."""
    other = golden_runs.run("reinforce")
    with pytest.raises(AssertionError):
        assert_golden("advantage, alternate", other)
