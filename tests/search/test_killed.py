"""SIGKILL at any moment costs a search no more than the steps since its last checkpoint, and changes nothing."""

import json
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from advnas.records.checkpoints import load_state

PROGRAM = Path(__file__).with_name("search_to_kill.py")
STRATEGIES = ("advantage", "parsec", "enas")  # the last two carry more from step to step
KILLED = -signal.SIGKILL

# What a record and a checkpoint are made of; before each of these the folder looks different.
WRITING = ("note", "write", "flush", "_write", "open", "fsync", "replace", "unlink")


@pytest.fixture(scope="module")
def carry_out():
    """Carries out an order to the program; see there. Returns how the search ended."""
    command = [sys.executable, str(PROGRAM)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:

        def order(folder, strategy, moment=None, store="resident"):
            program.stdin.write(json.dumps([str(folder), strategy, store, moment]) + "\n")
            program.stdin.flush()
            code, seconds = json.loads(program.stdout.readline())
            assert code in (0, KILLED), "the search failed"
            return code, seconds

        yield order
        program.stdin.close()


@pytest.fixture(scope="module")
def uninterrupted(carry_out, tmp_path_factory):
    """Folder and seconds of a search of every strategy that nobody killed."""
    folders = {name: tmp_path_factory.mktemp(name) for name in STRATEGIES}
    return {name: (folder, carry_out(folder, name)[1]) for name, folder in folders.items()}


def calls(folder):
    return json.loads((folder / "calls.json").read_text())


def steps_saved(folder):
    """The weight steps of the checkpoints that are there, all of which must be readable."""
    return [
        load_state(path)["work"]["search"]["weights"]["steps"] for path in sorted(folder.glob("checkpoint-*.pt"))
    ]


def tear(folder):
    """A process that dies while it writes a line may leave a part of it."""
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"phase":"weights","numb')


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def assert_same_outcome(folder, expected):
    for file in ("metrics.jsonl", "result.json"):
        assert (folder / file).read_bytes() == (expected / file).read_bytes(), file
    # Weights, theta, the state of both optimisers and of the strategy, the generator and the process best.
    assert same(load_state(folder / "end.pt"), load_state(expected / "end.pt"))
    assert not list(folder.glob(".*")), "a half-written file is left"


def test_a_search_that_is_killed_twenty_times_ends_as_if_nothing_had_been(carry_out, uninterrupted, tmp_path):
    expected, _ = uninterrupted["advantage"]
    moments, farthest = random.Random(0), [0]
    while len(farthest) <= 20:
        place = ["", moments.randint(1, calls(expected)[""] * 3 // 8)]
        code, _ = carry_out(tmp_path, "advantage", place)
        if code == KILLED:  # otherwise it was over before, and the kills go on after its end
            farthest.append(max(steps_saved(tmp_path), default=0))
        if len(farthest) % 4 == 0 and (tmp_path / "metrics.jsonl").exists():
            tear(tmp_path)
    assert farthest == sorted(farthest), "steps were lost"
    assert len(set(farthest)) > 3, "the kills came at one and the same place"
    assert carry_out(tmp_path, "advantage")[0] == 0
    assert_same_outcome(tmp_path, expected)


def moments_of_a_life(expected, seconds):
    """Everywhere: any call, the calls that write, and any time, from before the first step to after the end."""
    made, moments = calls(expected), random.Random(1)
    yield from (["", 1], ["", made[""]], ["seconds", 0.0], ["seconds", 1.5 * seconds])
    yield from (["", moments.randint(1, made[""])] for _ in range(4))
    yield from (["seconds", moments.uniform(0, seconds)] for _ in range(4))
    yield from ([name, moments.randint(1, made[name])] for name in WRITING)


@pytest.mark.parametrize("number", range(20))
def test_a_search_that_is_killed_once_ends_as_if_nothing_had_been(carry_out, uninterrupted, tmp_path, number):
    strategy = STRATEGIES[number % len(STRATEGIES)]
    expected, seconds = uninterrupted[strategy]
    moment = list(moments_of_a_life(expected, seconds))[number]
    carry_out(tmp_path, strategy, moment)
    steps_saved(tmp_path)
    assert carry_out(tmp_path, strategy)[0] == 0
    assert_same_outcome(tmp_path, expected)


# The same at length: 3 stores x 17 searches x 10 kills


@pytest.fixture(scope="module")
def undisturbed(carry_out, tmp_path_factory):
    """Folder and seconds of a search of every strategy with every store, made when it is asked for."""
    made = {}

    def get(strategy, store):
        if (strategy, store) not in made:
            folder = tmp_path_factory.mktemp(f"{strategy}-{store}")
            made[strategy, store] = folder, carry_out(folder, strategy, store=store)[1]
        return made[strategy, store]

    return get


def any_moment(made, seconds, randomly):
    """Any call of a third of a life, a call that writes, or any time."""
    writing = randomly.choice([name for name in WRITING if made.get(name)])
    return randomly.choice(
        (
            ["", randomly.randint(1, made[""] // 3)],
            [writing, randomly.randint(1, 1 + made[writing] // 3)],
            ["seconds", randomly.uniform(0, seconds / 2)],
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", range(17))
@pytest.mark.parametrize("store", ["resident", "host", "disk"])
def test_a_search_that_is_killed_ten_times_ends_as_if_nothing_had_been(
    carry_out, undisturbed, tmp_path, store, number
):
    strategy, randomly = STRATEGIES[number % len(STRATEGIES)], random.Random(number)
    expected, seconds = undisturbed(strategy, store)
    kills = 0
    while kills < 10:
        code, _ = carry_out(tmp_path, strategy, any_moment(calls(expected), seconds, randomly), store)
        kills += code == KILLED
        if code == 0:  # it was over before: the next life begins anew
            assert_same_outcome(tmp_path, expected)
            shutil.rmtree(tmp_path)
            tmp_path.mkdir()
        elif kills % 4 == 0 and (tmp_path / "metrics.jsonl").exists():
            tear(tmp_path)
    assert carry_out(tmp_path, strategy, store=store)[0] == 0
    assert_same_outcome(tmp_path, expected)
