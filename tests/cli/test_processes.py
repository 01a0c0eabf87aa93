"""`advnas search` by several processes, as a person starts it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from advnas.cli import main

MINE = """
import time
import torch, advnas
from torch import nn
from torch.nn import functional as F


def make_search(strategy, seed, pause=0.0):
    torch.manual_seed(seed)
    x = torch.randn(256, 4)
    pairs = list(zip(x.split(8), x.prod(1, keepdim=True).split(8)))
    edge = advnas.Choice({"skip": nn.Identity(), "deep": nn.Linear(8, 8)}, name="edge")
    model = nn.Sequential(nn.Linear(4, 8), edge, nn.Linear(8, 1))

    def loss(model, batch):
        time.sleep(pause)
        return F.mse_loss(model(batch[0]), batch[1])

    return advnas.Search(model, strategy, seed=seed), advnas.Task(pairs[:16], pairs[16:], loss)
"""
SEARCH = ["search", "mine:make_search", "--epochs", "3", "--warmup", "1", "--retrain-epochs", "1", "--seeds", "1"]


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "slow.toml").write_text("[options]\npause = 0.05\n")
    return tmp_path


def start(where, *arguments, launcher=()):
    command = [sys.executable, "-m", *launcher, "advnas", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=where, text=True, **pipes)


def records(folder):
    return {path.parent.name: path.read_bytes() for path in sorted(folder.glob("runs/*/records.jsonl"))}


def wait_for(pattern, folder):
    deadline = time.monotonic() + 90
    while not list(folder.glob(pattern)):
        assert time.monotonic() < deadline, f"no {pattern} in {folder}"
        time.sleep(0.01)


def rank_among(children_of, rank):
    """The process that was told to be of this rank, among the descendants of another."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"RANK={rank}".encode() in environment and str(children_of).encode() in command:
            return int(process.name)
    raise AssertionError("no such process")


def test_two_processes_search_and_tell_what_they_sent(mine):
    program = start(mine, *SEARCH, "--processes", "2", "--folder", mine / "both", "--json")
    output, errors = program.communicate(timeout=120)
    assert program.returncode == 0, errors
    assert json.loads(output)["answer"]["run"] == "contrast-0"
    assert "Bytes that each of 2 processes handed over per step:" in errors
    traffic = json.loads((mine / "both/runs/contrast-0/result.json").read_text())["traffic"]
    assert traffic["bytes"]["architecture step"] == 4 * (
        2 + 1 + 1
    )  # theta, the decision that was reached, the loss
    shared, deep = 4 * (4 * 8 + 8 + 8 + 1), 4 * (8 * 8 + 8)
    weights = traffic["bytes"]["weight step: gradients and running statistics"]
    assert shared < weights < shared + deep == traffic["network"]
    settings = json.loads((mine / "both/study.json").read_text())["settings"]
    assert (settings["processes"], settings["draws"]) == (2, "shared")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_torchrun_starts_again_after_a_death_and_the_search_goes_on(mine):
    whole, broken = mine / "whole", mine / "broken"
    for folder in (whole, broken):
        launcher = ("torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1", "-m")
        program = start(mine, *SEARCH, "--config", "slow.toml", "--folder", folder, launcher=launcher)
        if folder == broken:
            wait_for("runs/contrast-0/checkpoint-*.json", folder)
            os.kill(rank_among(folder, 1), signal.SIGKILL)
        _, errors = program.communicate(timeout=180)
        assert program.returncode == 0, errors
    assert "Rank 1 of 2 is gone" in errors
    assert "runs are done already" in errors
    assert records(broken) == records(whole)


@pytest.mark.slow
def test_a_signal_lets_all_processes_save_and_the_search_goes_on(mine):
    command = [*SEARCH, "--processes", "2", "--config", "slow.toml"]
    whole = start(mine, *command, "--folder", mine / "whole")
    _, errors = whole.communicate(timeout=180)
    assert whole.returncode == 0, errors
    stopped = start(mine, *command, "--folder", mine / "stopped")
    wait_for("runs/contrast-0/metrics.jsonl", mine / "stopped")
    stopped.send_signal(signal.SIGTERM)
    _, errors = stopped.communicate(timeout=30)
    assert stopped.returncode == 130
    assert f"Go on with: advnas search --resume --folder {mine / 'stopped'}" in errors
    again = start(mine, "search", "--resume", "--folder", mine / "stopped")
    _, errors = again.communicate(timeout=180)
    assert again.returncode == 0, errors
    assert records(mine / "stopped") == records(mine / "whole")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--processes", "0"], "--processes must be a positive integer, got 0."),
        (
            ["--processes", "2", "--jobs", "2"],
            "2 processes do one run after the other, got --jobs 2. Leave it out.",
        ),
        (["--draws", "shared"], "--draws is for searches by several processes."),
        (["--processes", "2", "--draws", "mine"], "--draws must be shared or independent, got 'mine'."),
        (
            ["--processes", "2", "--draws", "independent", "--strategy", "enas"],
            "Enas cannot learn from several draws",
        ),
        (["--task", "digits", "--processes", "99"], "has 21 minibatches, which is not one for each of 99 "),
        (["--task", "penn_treebank", "--processes", "2"], "penn_treebank is searched by one process."),
    ],
)
def test_what_cannot_be_shared_is_refused_before_anything_starts(arguments, message, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["advnas", "search", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_a_process_of_torchrun_must_know_the_folder_and_the_number(monkeypatch, capsys):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    for arguments, message in (
        ([], "Add --folder F."),
        (["--folder", "f", "--processes", "3"], "started 2 processes, got --processes 3"),
    ):
        monkeypatch.setattr(sys, "argv", ["advnas", "search", *arguments])
        with pytest.raises(SystemExit):
            main()
        assert message in capsys.readouterr().err
