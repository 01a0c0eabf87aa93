"""A folder that cannot be written is told in one sentence: which file, why, and how to go on."""

import resource
import shutil
import signal
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advnas import Choice, Search, Task
from advnas.records.files import CannotWrite
from advnas.retrain import retrain
from advnas.studies.built_in import MAKE_SEARCH
from advnas.studies.execute import Job, execute
from advnas.studies.own_network import OwnNetworkSettings, OwnNetworkStudy


def task():
    x = torch.linspace(-1, 1, 8).reshape(4, 2)
    batches = [(x, torch.tensor([0, 1, 0, 1]))] * 4
    return Task(batches, batches, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))


def search():
    torch.manual_seed(0)
    middle = Choice({"linear": nn.Linear(2, 2), "skip": nn.Identity()}, name="middle")
    return Search(nn.Sequential(nn.Linear(2, 2), middle), "advantage")


@contextmanager
def files_of_at_most(size):
    """What a full disk is like, without one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize(("size", "file"), [(500, "run.json"), (1500, "metrics.jsonl"), (8000, "checkpoint-0")])
def test_a_full_disk_is_told_with_file_cause_and_what_to_do(tmp_path, size, file):
    whole, stopped, resumed = search(), search(), search()
    whole.run(task(), epochs=4, folder=tmp_path / "whole")
    with pytest.raises(CannotWrite) as told, files_of_at_most(size):
        stopped.run(task(), epochs=4, folder=tmp_path / "full")
    words = str(told.value)
    assert words.startswith(f"{tmp_path / 'full' / file}")
    assert "cannot be written: File too large. " in words
    assert words.endswith(f"Make room, then go on with run(..., folder={str(tmp_path / 'full')!r}, resume=True).")
    assert len(words.splitlines()) == 1
    resumed.run(task(), epochs=4, folder=tmp_path / "full", resume=True)
    for name in ("metrics.jsonl", "result.json"):
        assert (tmp_path / "full" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_folder_that_is_removed_while_running_is_told_and_not_made_again(tmp_path):
    def remove(step):
        if step.number == 5:
            shutil.rmtree(tmp_path / "run", ignore_errors=True)

    with pytest.raises(
        CannotWrite, match=r"run/metrics.jsonl was removed while the run was writing it.*Put .* back"
    ):
        search().run(task(), epochs=4, folder=tmp_path / "run", on_step=remove)
    assert not (tmp_path / "run").exists()


def test_a_retraining_tells_it_too(tmp_path):
    with (
        pytest.raises(CannotWrite, match=r"checkpoint-0.*cannot be written: File too large"),
        files_of_at_most(1500),
    ):
        retrain(nn.Linear(2, 2), task(), epochs=3, folder=tmp_path)


class Full(OwnNetworkStudy):
    """Its searches find the disk full."""

    def begin(self, strategy, seed):
        raise CannotWrite(f"{strategy} cannot be written: No space left on device. Make room.")


def test_a_full_disk_stops_a_study_at_its_first_run(tmp_path):
    study = Full(OwnNetworkSettings(MAKE_SEARCH, {"task": "digits"}, epochs=2, warmup=0))
    with pytest.raises(CannotWrite, match="advantage cannot be written"):
        execute(study, [Job("advantage", 0), Job("random", 0)], tmp_path)
