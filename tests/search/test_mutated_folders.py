"""A folder that anything has happened to is resumed with the right result, or refused by name."""

import os
import random
import shutil
import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advnas import Choice, Search, SearchStopped, Task, Zero
from advnas.reports.study import read_study

STORES = ("resident", "host", "disk")
FOLDERS = 1000  # per store


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    """What is on it after a power cut is not the question here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def network():
    torch.manual_seed(0)
    normed = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    middle = Choice({"normed": normed, "linear": nn.Linear(2, 2), "zero": Zero()}, name="middle")
    return nn.Sequential(nn.Linear(2, 2), middle, nn.Linear(2, 2))


def task():
    x = torch.linspace(-1, 1, 8).reshape(4, 2)
    batches = [(x, torch.tensor([0, 1, 0, 1])), (x.flip(0), torch.tensor([1, 1, 0, 0]))]
    return Task(batches, batches, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))


def run(store, folder, *, stop=None):
    """Run a search of four epochs to its end, or until a step."""
    search = Search(network(), "advantage", weights=store, memory_budget="2MB" if store == "disk" else None)

    def on_step(step):
        if stop is not None and (step.phase, step.number) == ("architecture", stop):
            raise SearchStopped

    try:
        search.run(task(), epochs=4, folder=folder, resume=True, on_step=on_step)
    except SearchStopped:
        assert stop is not None
    return search


@pytest.fixture(scope="module", params=STORES)
def begun(request, tmp_path_factory):
    """A store, a folder with a search that was stopped in its third epoch, and what its end should be."""
    folder = tmp_path_factory.mktemp(request.param)
    run(request.param, folder / "stopped", stop=5)
    whole = run(request.param, folder / "whole")
    return request.param, folder / "stopped", folder / "whole", whole.state()


# What can happen to a folder


def flip(content, randomly):
    changed = bytearray(content)
    changed[randomly.randrange(len(changed))] ^= 1 << randomly.randrange(8)
    return bytes(changed)


def cut(content, randomly):
    return content[: randomly.randrange(len(content))]


def insert(content, randomly):
    place = randomly.randrange(len(content) + 1)
    return content[:place] + randomly.randbytes(randomly.choice([1, 7, 512])) + content[place:]


def blank(content, randomly):
    start, end = sorted(randomly.choices(range(len(content) + 1), k=2))
    return content[:start] + bytes(end - start) + content[end:]


def drop_lines(content, randomly):
    lines = content.splitlines(keepends=True)
    del lines[randomly.randrange(len(lines))]
    return b"".join(lines)


def repeat(content, randomly):
    return content + content


def empty(content, randomly):
    return b""


CHANGES = (flip, cut, insert, blank, drop_lines, repeat, empty)


def change(folder, randomly):
    path = randomly.choice([path for path in sorted(folder.iterdir()) if path.stat().st_size])
    path.write_bytes(randomly.choice(CHANGES)(path.read_bytes(), randomly))


def remove(folder, randomly):
    randomly.choice(sorted(folder.iterdir())).unlink()


def exchange(folder, randomly):
    one, other = randomly.sample(sorted(folder.iterdir()), 2)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def rename(folder, randomly):
    path = randomly.choice(sorted(folder.iterdir()))
    path.rename(path.with_name(path.name.replace("00000000", f"0000000{randomly.randint(1, 9)}", 1)))


def leave_behind(folder, randomly):
    (folder / f".checkpoint-000000004.pt.{randomly.randint(1, 999)}.tmp").write_bytes(randomly.randbytes(100))


WAYS = (change, change, change, remove, exchange, rename, leave_behind)


def mutate(folder, randomly):
    for way in randomly.choices(WAYS, k=randomly.choice((1, 1, 2, 3))):
        if len(list(folder.iterdir())) > 2:
            way(folder, randomly)


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def outcome(call):
    """The result and the warnings, or the words of a refusal; foreign errors are let through."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "The search is undecided")  # as all of these short ones are
        try:
            return call(), [str(warning.message) for warning in told]
        except ValueError as error:
            return None, [str(error)]


def assert_right_or_refused(begun, folder):
    store, _, whole, end = begun
    search, told = outcome(partial(run, store, folder))
    if search is None:
        assert str(folder) in told[0]
        return "refused"
    assert same(search.state(), end), "another result"
    assert (folder / "result.json").read_bytes() == (whole / "result.json").read_bytes()
    for name in ("metrics.jsonl", "records.jsonl"):
        if (folder / name).read_bytes() != (whole / name).read_bytes():
            assert any(name in words for words in told), f"{name} is not right, and nobody says so"
    _, words = outcome(partial(read_study, folder))
    assert all(str(folder) in word for word in words)
    return "told" if told else "as before"


def try_folders(begun, tmp_path, numbers):
    seen = {"refused": 0, "told": 0, "as before": 0}
    for number in numbers:
        folder = tmp_path / str(number)
        shutil.copytree(begun[1], folder)
        mutate(folder, random.Random(number))
        try:
            seen[assert_right_or_refused(begun, folder)] += 1
        except BaseException as error:
            error.add_note(f"folder {number}")
            raise
        shutil.rmtree(folder)
    return seen


def test_mutated_folders_are_resumed_rightly_or_refused(begun, tmp_path):
    seen = try_folders(begun, tmp_path, range(30))
    assert min(seen.values()) > 1, "the changes show nothing"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_a_thousand_mutated_folders_per_store_are_resumed_rightly_or_refused(begun, tmp_path, part):
    each = FOLDERS // 4
    try_folders(begun, tmp_path, range(100 + part * each, 100 + (part + 1) * each))
