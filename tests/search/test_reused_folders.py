"""What a run finds in its folder is of this run and whole, or it is told."""

import json
import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advnas import Choice, Search, SearchStopped, Task
from advnas.records.checkpoints import Checkpoints
from advnas.retrain import Recipe, retrain
from advnas.studies.built_in import MAKE_SEARCH
from advnas.studies.folder import claim_folder
from advnas.studies.own_network import OwnNetworkSettings, OwnNetworkStudy

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
JOURNALS = ("metrics.jsonl", "records.jsonl", "timing.jsonl")


class Counting(nn.Module):
    """Counts its calls in a buffer that is not part of the state_dict."""

    def __init__(self, counts):
        super().__init__()
        self.counts = counts
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.calls += self.counts
        return x


def network(*more):
    torch.manual_seed(0)
    middle = Choice({"linear": nn.Linear(2, 2), "skip": nn.Identity()}, name="middle")
    return nn.Sequential(nn.Linear(2, 2), middle, *more)


def task():
    x = torch.linspace(-1, 1, 8).reshape(4, 2)
    batches = [(x, torch.tensor([0, 1, 0, 1]))] * 4
    return Task(batches, batches, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))


def run(folder, *more, stop_after=None, resume=True, **options):
    """Run a search of four epochs; stop it after some epochs, as a signal would."""
    search = Search(network(*more), "advantage", **options)
    turns = 0

    def on_step(step):
        nonlocal turns
        turns += step.phase == "weights"
        if stop_after is not None and turns > 4 * stop_after:
            raise SearchStopped

    try:
        search.run(task(), epochs=4, folder=folder, resume=resume, on_step=on_step)
    except SearchStopped:
        assert stop_after is not None
    return search


def lines(path):
    return path.read_bytes().splitlines(keepends=True)


# Journals


@pytest.mark.parametrize("name", JOURNALS)
@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda own: own[:1], "has 1 of the "),
        (lambda own: [], "has 0 of the "),
        (lambda own: [own[0].replace(b"e", b"f", 1), *own[1:]], "was changed"),
        (lambda own: [own[0][:5] + b"\n", *own[1:]], "was changed"),
    ],
)
def test_a_journal_that_was_shortened_or_changed_is_told_once(tmp_path, name, damage, told):
    run(tmp_path, stop_after=2)
    path = tmp_path / name
    path.write_bytes(b"".join(damage(lines(path))))
    with pytest.warns(UserWarning, match=rf"{name} {told}.*goes on from its checkpoint.*from a copy"):
        run(tmp_path, stop_after=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(tmp_path)


def test_a_journal_that_was_shortened_gets_no_line_twice(tmp_path):
    run(tmp_path / "whole")
    run(tmp_path / "cut", stop_after=2)
    path = tmp_path / "cut" / "metrics.jsonl"
    path.write_bytes(b"".join(lines(path)[:13]))
    with pytest.warns(UserWarning, match="has 13 of the 16 lines"):
        run(tmp_path / "cut", stop_after=3)
    run(tmp_path / "cut")
    whole = lines(tmp_path / "whole" / "metrics.jsonl")
    assert lines(path) == whole[:13] + whole[16:]


def test_a_missing_journal_is_told(tmp_path):
    run(tmp_path, stop_after=2)
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.warns(UserWarning, match="has 0 of the 16 lines"):
        run(tmp_path)


# Checkpoints of an earlier run


@pytest.mark.parametrize("left", ["checkpoint-*", "run.json", "metrics.jsonl", "records.jsonl", "result.json"])
def test_a_new_run_is_refused_where_anything_of_an_earlier_one_is_left(tmp_path, left):
    run(tmp_path)
    kept = set(tmp_path.glob(left))
    for path in set(tmp_path.iterdir()) - kept:
        path.unlink()
    with pytest.raises(FileExistsError, match="already holds"):
        run(tmp_path, resume=False)
    assert set(tmp_path.iterdir()) == kept


def test_a_save_outlives_states_of_later_steps(tmp_path):
    """They are of another run, or of a future that was given up."""
    states = Checkpoints(tmp_path)
    for step in (100, 120):
        states.save({"step": step}, step)
    for step in (20, 40, 60):
        states.save({"step": step}, step)
        found = []
        assert states.resume(found.append)
        assert found == [{"step": step}]
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == [
        "checkpoint-000000040.pt",
        "checkpoint-000000060.pt",
    ]


def test_runs_without_the_study_that_they_are_of_are_not_taken_over(tmp_path):
    study = OwnNetworkStudy(OwnNetworkSettings(MAKE_SEARCH, {"task": "digits"}))
    (tmp_path / "runs" / "contrast-0").mkdir(parents=True)
    (tmp_path / "runs" / "contrast-0" / "run.json").write_text("{}")
    with pytest.raises(ValueError, match=r"holds runs, and no study.json.*Give another --folder"):
        claim_folder(tmp_path, study)
    assert not (tmp_path / "study.json").exists()


# Optimisers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight_optimizer": partial(torch.optim.SGD, lr=0.2, momentum=0.9)}, "weight_optimizer is SGD.*lr=0.2"),
        ({"weight_optimizer": partial(torch.optim.SGD, lr=0.1)}, "momentum=0, .*now and was SGD.*momentum=0.9"),
        ({"weight_optimizer": partial(torch.optim.AdamW, lr=0.1)}, "weight_optimizer is AdamW"),
        ({"architecture_optimizer": partial(torch.optim.Adam, lr=1.0)}, "architecture_optimizer is Adam.*lr=1.0"),
        ({"weight_clip": 5.0}, "weight_clip is 5.0 now and was 1.0"),
        ({"architecture_clip": None}, "architecture_clip is None now and was 1.0"),
    ],
)
def test_other_settings_of_an_optimiser_are_refused(tmp_path, options, message):
    usual = {"weight_optimizer": SGD, "architecture_optimizer": partial(torch.optim.Adam, lr=0.1)}
    run(tmp_path, stop_after=2, **usual)
    with pytest.raises(ValueError, match=message):
        run(tmp_path, **usual | options)
    run(tmp_path, **usual)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 4}, "epochs is 4 now and was 3"),
        ({"seed": 1}, "seed is 1 now and was 0"),
        ({"recipe": Recipe(partial(torch.optim.SGD, lr=0.2))}, "optimizer is SGD.*lr=0.2"),
    ],
)
def test_other_settings_of_a_retraining_are_refused(tmp_path, change, message):
    usual = {"epochs": 3, "seed": 0, "recipe": Recipe(SGD), "folder": tmp_path}
    first = retrain(nn.Linear(2, 2), task(), **usual)
    with pytest.raises(ValueError, match=message):
        retrain(nn.Linear(2, 2), task(), **usual | change)
    assert retrain(nn.Linear(2, 2), task(), **usual).history == first.history


# Buffers that no checkpoint has


def test_buffers_that_change_and_are_not_saved_are_told_once(tmp_path):
    with pytest.warns(UserWarning, match=r"2\.calls.*not saved.*persistent=True") as told:
        run(tmp_path, Counting(1))
    assert len(told) == 1


def test_buffers_that_never_change_are_not_worth_a_word(tmp_path):
    class Shifting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("shift", torch.ones(2), persistent=False)

        def forward(self, x):
            return x + self.shift

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(tmp_path, Shifting())


def test_a_retraining_tells_of_its_buffers_too(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), Counting(1))
    with pytest.warns(UserWarning, match=r"1\.calls.*not saved") as told:
        retrain(model, task(), epochs=3, recipe=Recipe(SGD), folder=tmp_path)
    assert len(told) == 1


def test_what_was_asked_names_the_optimisers(tmp_path):
    run(tmp_path)
    asked = json.loads((tmp_path / "run.json").read_text())["optimizers"]
    assert asked["weight_optimizer"].startswith("SGD(lr=0.1, momentum=0.9")
