"""Groups of processes that others have connected, and of one alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from advnas.parallel.launch import current, joined


def test_a_process_that_nobody_started_with_others_is_alone():
    with joined() as group:
        assert group.size == 1
        assert current() is group
    assert not dist.is_initialized()


def test_processes_that_are_connected_already_are_taken_and_all_stop_where_one_does(tmp_path):
    program = Path(__file__).with_name("connected.py")
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert found == [{"size": 2, "steps": 3, "connected": True}] * 2
    assert json.loads((tmp_path / "run/result.json").read_text())["stopped"] == "another process asked for it"
    assert done.stderr.count("epoch ") <= 1, "rank 0 alone shows progress, and no epoch was over"


def test_processes_without_gloo_are_refused(monkeypatch):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cuda:nccl")
    with pytest.raises(ValueError, match=r"initialised with cuda:nccl.*cpu:gloo,cuda:nccl"), joined():
        pass
