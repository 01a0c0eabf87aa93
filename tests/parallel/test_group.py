"""Searches by several processes on this machine, over gloo."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from advnas import Search, strategies
from advnas.parallel.group import Group, _buckets
from advnas.parallel.launch import current
from advnas.parallel.reductions import PRESENCE, THETA, WEIGHTS

PROGRAM = Path(__file__).with_name("ranks.py")
SPEC = importlib.util.spec_from_file_location("ranks", PROGRAM)
ranks = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(ranks)

TOLERANCE = 1e-5  # of weights, theta and losses of order 1, after 24 weight and 18 architecture steps


def start(work, folder, processes=2):
    command = [sys.executable, str(PROGRAM), work, str(processes), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def load(path):
    return torch.load(path, weights_only=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    program = start("every_strategy", folder)
    output = program.communicate(timeout=180)[0]
    assert program.returncode == 0, output
    return folder


@pytest.fixture(scope="module")
def found(folder):
    return [load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.fixture(scope="module")
def details(folder):
    return [load(folder / f"details-{rank}.pt") for rank in range(2)]


def assert_same(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0)


KINDS = [*strategies.names(), "second order", "joint", "norm"]


@pytest.mark.parametrize(
    "kind",
    [f"shared {kind}" for kind in [*KINDS, "measured"]] + [f"independent {k}" for k in ranks.INDEPENDENT],
)
def test_all_processes_end_with_the_same_bits(found, kind):
    draws, _, name = kind.partition(" ")
    assert_same(*(each[draws][name] for each in found))


ALONE = {
    "second order": lambda: ranks.run(strategies.get("darts", second_order=True), batch=16),
    "joint": lambda: ranks.run("advantage", batch=16, schedule="joint"),
}


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_two_processes_do_what_one_does_with_twice_the_minibatch(found, kind):
    _, alone = ALONE.get(kind, lambda: ranks.run(kind, batch=16))()
    both = found[0]["shared"][kind]
    assert len(alone["losses"]) > 20
    torch.testing.assert_close(both["model"], alone["model"], rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(both["theta"], alone["theta"], rtol=0, atol=TOLERANCE)
    assert both["losses"] == pytest.approx(alone["losses"], abs=TOLERANCE)
    assert (both["best"] is None) == (alone["best"] is None)
    if alone["best"] is not None:
        assert torch.equal(both["best"][0], alone["best"][0])


def test_the_steps_are_steps(found):
    """The comparisons above would hold for searches that do nothing."""
    started, ended = ranks.network().state_dict(), found[0]["shared"]["advantage"]
    assert (ended["theta"][0] - 1).abs().max() > 0.01
    assert (ended["model"]["0.weight"] - started["0.weight"]).abs().max() > 0.01


@pytest.mark.parametrize("name", sorted(set(ranks.INDEPENDENT) - {"darts", "nasp", "random", "ranked_random"}))
def test_independent_draws_are_other_samples(found, name):
    theta = [found[0][draws][name]["theta"] for draws in ("shared", "independent")]
    assert not torch.equal(*theta)


def test_the_process_best_is_the_best_of_all_processes(found):
    shared, independent = (found[0][draws]["random"]["best"][1] for draws in ("shared", "independent"))
    assert independent <= shared  # of twice as many minibatch losses, none of them a mean over two


def test_running_statistics_are_means_over_the_processes(found):
    norm = found[0]["shared"]["norm"]["model"]
    alone = ranks.run("advantage", batch=16, norm=nn.BatchNorm1d)[1]["model"]
    assert norm["3.num_batches_tracked"] == alone["3.num_batches_tracked"]
    assert not torch.equal(norm["3.running_mean"], torch.zeros(8))
    assert_same(norm["3.running_mean"], found[1]["shared"]["norm"]["model"]["3.running_mean"])


def test_a_weight_step_sends_one_architecture_and_an_architecture_step_theta(details):
    rows = details[0]["bytes"]
    assert len({row["gradients"] for row in rows}) > 1, "all draws have the same size, which shows nothing"
    for row in rows:
        assert row["sent"][WEIGHTS] == row["gradients"] + row["statistics"]
        assert row["sent"][PRESENCE] <= 8 * 20
        assert row["sent"][THETA] == row["theta"] + 4 * (1 + 2)  # the loss, and which decisions were reached


def test_what_one_process_finds_wrong_stops_all_of_them(details):
    for each in details:
        errors = each["errors"]
        assert errors["one bad minibatch"].startswith("NonFiniteLoss: The loss is ")
        assert errors["one bad draw"].startswith("NonFiniteLoss: The loss is ")
        assert "do not have the same search" in errors["another seed"]


@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_dead_process_ends_the_others_and_the_search_goes_on_later(folder, tmp_path, victim):
    program = start("slow_run", tmp_path)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("checkpoint-*.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(int((tmp_path / f"pid-{victim}").read_text()), signal.SIGKILL)
    killed = time.monotonic()
    output = program.communicate(timeout=30)[0]
    assert time.monotonic() - killed < 15
    assert program.returncode != 0
    assert f"Rank {victim} of 2 is gone" in output
    assert f"The last checkpoint is in {tmp_path}" in output
    assert f"Rank {victim} of 2 ended by signal 9, and the others with it." in output
    again = start("slow_run", tmp_path)
    output = again.communicate(timeout=60)[0]
    assert again.returncode == 0, output
    for name in ("0.pt", "1.pt"):
        one, other = load(tmp_path / name), load(folder / "kept" / name)
        assert 0 < len(one.pop("losses")) < len(other.pop("losses"))
        assert_same(one, other)
    assert (tmp_path / "metrics.jsonl").read_bytes() == (folder / "kept" / "metrics.jsonl").read_bytes()


def test_a_rank_that_hangs_is_ended_and_named(tmp_path):
    program = start("hang", tmp_path)
    output = program.communicate(timeout=90)[0]
    assert program.returncode != 0
    assert "Rank 1 of 2 is gone" in output
    assert "Rank 1 of 2 was alive, did not answer for" in output


def test_the_rank_that_failed_first_is_named_and_not_one_that_was_ended_for_it(tmp_path):
    program = start("fail", tmp_path)
    output = program.communicate(timeout=90)[0]
    assert "advnas, rank 1: rank 1 has seen a bad file." in output
    assert "Rank 1 of 2 ended with exit code 2, and the others with it." in output


# One process


def test_alone_nothing_is_sent():
    group = Group()
    value = torch.ones(3)
    group.average_([value], "anything")
    group.wait()
    group.agree("anything", "value")
    assert torch.equal(value, torch.ones(3))
    assert (group.any(True), group.any(False)) == (True, False)
    assert not group.sent
    assert current().size == 1


def test_buckets_are_of_one_kind_and_of_limited_size(monkeypatch):
    monkeypatch.setattr("advnas.parallel.group._BUCKET", 100)
    tensors = [
        torch.zeros(10),
        torch.zeros(2, dtype=torch.float64),
        torch.zeros(10),
        torch.zeros(10),
        torch.zeros(99),
    ]
    sizes = [[tensor.numel() for tensor in bucket] for bucket in _buckets(tensors)]
    assert sizes == [[10, 10], [10], [99], [2]]


@pytest.mark.parametrize("name", sorted(set(strategies.names()) - set(ranks.INDEPENDENT)))
def test_strategies_that_need_one_draw_say_so(name):
    with pytest.raises(ValueError, match=r"draws='independent' works with contrast, .*Write draws='shared'"):
        Search(ranks.network(), name, draws="independent")


def test_draws_and_schedules_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="draws must be 'shared' or 'independent', got 'own'"):
        Search(ranks.network(), draws="own")
    with pytest.raises(ValueError, match="A joint step trains the weights too"):
        Search(ranks.network(), draws="independent", schedule="joint")
