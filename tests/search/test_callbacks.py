"""Callbacks by themselves; tests/search/test_running.py has them in whole runs."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR, ReduceLROnPlateau

from advnas import Callback, Choice, Search, StopSearch, Task
from advnas.search import StepScheduler

BATCHES = [(one, one.sum(1, keepdim=True)) for one in torch.linspace(-1, 1, 32).reshape(4, 4, 2)]
TASK = Task(BATCHES[:2], BATCHES[2:], lambda model, batch: F.mse_loss(model(batch[0]), batch[1]))
PER_EPOCH = 2


def network():
    return nn.Sequential(Choice({one: nn.Linear(2, 2) for one in "abc"}, name="c"), nn.Linear(2, 1))


class Rates(Callback):
    def __init__(self):
        self.seen = []

    def step(self, run, step):
        if step.phase != "architecture":
            self.seen.append(run.learning_rates["weights"][0])


class StopAt(Callback):
    def __init__(self, number):
        self.number = number

    def step(self, run, step):
        if step.phase != "architecture" and step.number == self.number:
            raise StopSearch


@pytest.mark.filterwarnings("ignore::advnas.search.UndecidedWarning")
class TestStepScheduler:
    def run(self, folder, epochs, total_steps, *callbacks):
        torch.manual_seed(0)
        search, rates = Search(network()), Rates()
        scheduler = StepScheduler(OneCycleLR(search.weight_optimizer, max_lr=0.1, total_steps=total_steps))
        options = {"folder": folder, "resume": folder is not None, "progress": False}
        search.run(TASK, epochs=epochs, **options, callbacks=[rates, scheduler, *callbacks])
        return rates.seen

    def test_a_search_that_is_extended_goes_on_with_the_rates_of_the_longer_schedule(self, tmp_path):
        self.run(tmp_path, 4, 8)
        assert self.run(tmp_path, 6, 12) == self.run(None, 6, 12)[8:]

    def test_an_extension_that_is_stopped_ends_as_one_that_is_not(self, tmp_path):
        for name in ("whole", "stopped"):
            self.run(tmp_path / name, 4, 8)
        whole = self.run(tmp_path / "whole", 6, 12)
        begun = self.run(tmp_path / "stopped", 6, 12, StopAt(10))
        assert begun + self.run(tmp_path / "stopped", 6, 12) == whole

    def test_a_resumed_schedule_keeps_the_length_it_was_begun_with(self, tmp_path):
        begun = self.run(tmp_path, 4, 8, StopAt(5))
        assert begun + self.run(tmp_path, 4, 20) == self.run(None, 4, 8)

    @pytest.mark.parametrize("given", [8, 11])
    def test_a_schedule_that_is_too_short_is_refused_before_any_step(self, given, tmp_path):
        self.run(tmp_path, 4, 8)
        kept = ("metrics.jsonl", "run.json", "result.json")
        before = [(tmp_path / name).read_bytes() for name in kept]
        message = rf"total_steps={given}, but has taken 8 steps and .* 4 weight steps left. .*total_steps=12\)"
        with pytest.raises(ValueError, match=message):
            self.run(tmp_path, 6, given)
        assert [(tmp_path / name).read_bytes() for name in kept] == before
        with pytest.raises(ValueError, match=r"has taken 0 steps and .* 12 weight steps left"):
            self.run(None, 6, given)

    @pytest.mark.parametrize("of", ["another optimiser", "another search"])
    def test_a_scheduler_of_another_optimiser_is_refused_before_any_step(self, of):
        search = Search(network())
        others = {"another optimiser": torch.optim.SGD(search.model.parameters(), lr=0.1)}
        others["another search"] = Search(network()).weight_optimizer
        scheduler = StepScheduler(ExponentialLR(others[of], gamma=0.5))
        with pytest.raises(ValueError, match=r"StepScheduler\(ExponentialLR\(search\.weight_optimizer, \.\.\.\)\)"):
            search.run(TASK, epochs=2, progress=False, callbacks=[scheduler])
        assert search.weight_steps == 0

    def test_a_scheduler_that_is_told_a_loss_is_refused_with_the_callback_that_tells_it(self):
        with pytest.raises(TypeError, match=r"ReduceLROnPlateau.*`epoch` calls scheduler\.step\(run\.record"):
            StepScheduler(ReduceLROnPlateau(Search(network()).weight_optimizer))

    def test_schedulers_without_a_length_take_any_number_of_steps(self):
        search = Search(network())
        scheduler = ExponentialLR(search.weight_optimizer, gamma=0.5)
        search.run(TASK, epochs=2, progress=False, callbacks=[StepScheduler(scheduler)])
        assert scheduler.last_epoch == 2 * PER_EPOCH
