from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advnas import Choice, Search, Task
from advnas.records.journal import read_journal
from advnas.search import Length, Recorder, SearchRun, run_search
from advnas.search.data import Replayed


@pytest.mark.parametrize(
    ("length", "steps"),
    [
        (Length(6, 2, 0, 3), [0, 2, 4, 6, 8, 10, 12]),
        (Length(6, 2, 1, 2), [6, 9, 12]),
        (Length(10, 2, 0, 3), [0, 4, 7, 10, 14, 17, 20]),
        (Length(7, 2, 1, 2), [7, 11, 14]),
        (Length(2, 2, 0, 5), [0, 1, 2, 3, 4]),
    ],
)
def test_every_pass_has_its_records_and_one_at_its_end(length, steps, tmp_path):
    choice = Choice({"linear": nn.Linear(3, 3), "skip": nn.Identity()}, name="choice")
    batches = [torch.ones(2, 3)] * length.per_epoch
    task = Task(batches, batches, lambda model, batch: model(batch).square().mean())
    run = SearchRun(Search(nn.Sequential(choice, nn.Linear(3, 1))), Replayed.of(task, 0), length)
    with Recorder(tmp_path, run, asked=run.asked(), resume=False) as recorder:
        run_search(run, recorder=recorder)
    assert [record["step"] for record in read_journal(tmp_path / "records.jsonl")] == steps


@pytest.mark.parametrize("wrong", [lambda model: 0.0, partial(F.mse_loss, torch.ones(1)), 3])
def test_a_loss_in_place_of_what_makes_one_is_told_before_any_step(wrong):
    search = Search(nn.Sequential(Choice({"a": nn.Linear(1, 1), "b": nn.Identity()})), steps=9, warmup=5)
    message = (
        r"second argument of turn makes the loss.*Write search\.turn\(training_loss, lambda: validation_loss\)"
    )
    with pytest.raises(TypeError, match=message):
        search.turn(lambda model: model(torch.ones(1)).sum(), wrong)
    assert search.weight_steps == 0
