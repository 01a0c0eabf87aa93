"""What a call of `Search.run` does around the steps: callbacks, stops, progress, extensions, the verdict."""

import contextlib
import json
import signal
import subprocess
import sys
import types
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import advnas
from advnas import Callback, Choice, Search, SearchStopped, StopSearch, Task
from advnas.records.checkpoints import Checkpoints, load_state
from advnas.records.journal import read_journal
from advnas.search import Accumulated, StepScheduler, UndecidedWarning, cosine
from advnas.search.progress import ShowProgress

FAST = partial(torch.optim.SGD, lr=50.0)
SGD = partial(torch.optim.SGD, lr=0.05)


def network():
    torch.manual_seed(3)
    block = Choice({"skip": nn.Identity(), "relu": nn.ReLU(), "linear": nn.Linear(4, 4)}, name="block")
    return nn.Sequential(nn.Linear(3, 4), block, nn.Linear(4, 1))


def task(batches=4):
    x = torch.randn(8 * batches, 3, generator=torch.Generator().manual_seed(0))
    data = list(zip(x.split(8), x.sum(1, keepdim=True).relu().split(8), strict=True))
    return Task(data, data, lambda model, batch: F.mse_loss(model(batch[0]), batch[1]))


def search(strategy="contrast", **options):
    return Search(network(), strategy, **{"weight_optimizer": SGD, "architecture_optimizer": FAST, **options})


def same_weights(one, other):
    return all(map(torch.equal, one.model.state_dict().values(), other.model.state_dict().values()))


# Callbacks


class Diary(Callback):
    def __init__(self):
        self.seen = []

    def start(self, run):
        self.seen.append("start")

    def step(self, run, step):
        self.seen.append(step.phase)

    def epoch(self, run):
        self.seen.append(("epoch", run.epoch))

    def checkpoint(self, run):
        assert any(run.folder.glob("checkpoint-*.json"))
        self.seen.append("checkpoint")

    def end(self, run):
        self.seen.append("end")


def test_callbacks_are_called_in_order(tmp_path):
    diary = Diary()
    search().run(task(2), epochs=2, warmup=1, folder=tmp_path, callbacks=[diary])
    warm = ["warmup", "warmup", ("epoch", 1.0), "checkpoint"]
    learning = ["weights", "architecture"] * 2
    assert diary.seen == ["start", *warm, *learning, ("epoch", 2.0), "checkpoint", "end"]


def test_a_callback_sees_rates_norms_and_records():
    seen = []

    class Look(Callback):
        def epoch(self, run):
            seen.append((run.learning_rates, dict(run.gradient_norms), run.record))

    made = search(architecture_optimizer=SGD, weight_clip=None)
    made.run(task(4), epochs=2, callbacks=[Look()])
    rates, norms, record = seen[0]
    assert rates["weights"] == pytest.approx((0.05 * cosine(3 / 8),))
    assert rates["theta"] == pytest.approx((0.05 * cosine(3 / 8),))
    assert norms["weights"] > 0
    assert norms["theta"] > 0
    assert record["epoch"] == 1.0
    assert record["entropy"] == pytest.approx(1.0986, abs=0.01)


@pytest.mark.parametrize(
    ("schedule", "trained"),
    [
        ("alternate", {"warmup": True, "weights": True, "architecture": False}),
        ("joint", {"warmup": True, "architecture": True}),
    ],
)
def test_a_callback_is_told_which_steps_train_the_weights(schedule, trained):
    seen = {}

    class Look(Callback):
        def step(self, run, step):
            seen[step.phase] = run.trains_weights(step)

    search(schedule=schedule).run(task(2), epochs=2, warmup=1, callbacks=[Look()])
    assert seen == trained


def test_callbacks_change_no_bit():
    plain, watched = search(), search()
    plain.run(task(), epochs=3, progress=False)
    watched.run(task(), epochs=3, callbacks=[Diary()], patience=50, time_limit=1e6)
    assert same_weights(plain, watched)
    assert torch.equal(plain.theta.logits(), watched.theta.logits())


def test_end_is_told_also_of_a_failure():
    diary = Diary()

    def fail(step):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        search().run(task(), epochs=1, callbacks=[diary], on_step=fail)
    assert diary.seen[-1] == "end"


class FailsAtTheEnd(Callback):
    def end(self, run):
        raise RuntimeError("mine")


def test_an_error_at_the_end_of_a_callback_does_not_hide_the_one_before():
    diary = Diary()

    def fail(step):
        raise ZeroDivisionError("the reason")

    with pytest.raises(ZeroDivisionError, match="the reason") as caught:
        search().run(task(), epochs=1, callbacks=[FailsAtTheEnd(), diary], on_step=fail)
    assert diary.seen[-1] == "end"
    assert caught.value.__notes__ == ["After that, a callback failed at its end: RuntimeError('mine')"]


def test_an_error_at_the_end_of_a_callback_comes_after_the_result(tmp_path):
    diary, made = Diary(), search()
    with pytest.raises(RuntimeError, match="mine") as caught:
        made.run(task(2), epochs=1, folder=tmp_path, callbacks=[FailsAtTheEnd(), diary])
    assert diary.seen[-1] == "end"
    assert caught.value.__notes__ == ["This happened in FailsAtTheEnd.end."]
    assert json.loads((tmp_path / "result.json").read_text())["argmax"] == made.argmax()


def test_something_else_than_a_callback_is_refused():
    with pytest.raises(TypeError, match=r"subclasses of advnas\.Callback"):
        search().run(task(), epochs=1, callbacks=[print])


def test_an_option_that_there_is_not_is_named():
    with pytest.raises(TypeError, match=r"no option 'patient' \(did you mean 'patience'\?\)"):
        search().run(task(), epochs=1, patient=3)


# Stops


class StopAt(Callback):
    """Stops in the middle of a turn, after its weight step."""

    def __init__(self, number):
        self.number = number

    def step(self, run, step):
        if step.phase == "weights" and step.number == self.number:
            raise StopSearch("enough")


def test_stop_search_ends_the_turn_saves_and_gives_an_answer(tmp_path):
    stopped, whole, resumed = search(), search(), search()
    answer = stopped.run(task(), epochs=4, folder=tmp_path / "run", callbacks=[StopAt(6)])
    assert (stopped.weight_steps, stopped.architecture_steps) == (6, 6)
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["stopped"] == "enough"
    assert result["argmax"] == answer
    whole.run(task(), epochs=4, folder=tmp_path / "whole")
    resumed.run(task(), epochs=4, folder=tmp_path / "run", resume=True)
    assert same_weights(whole, resumed)
    for file in ("metrics.jsonl", "records.jsonl", "result.json"):
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_stop_search_works_without_a_folder():
    stopped = search()
    stopped.run(task(), epochs=4, callbacks=[StopAt(6)])
    assert (stopped.weight_steps, stopped.architecture_steps) == (6, 6)


def test_a_function_of_steps_may_stop_too(tmp_path):
    def enough(step):
        if step.phase == "weights" and step.number == 6:
            raise StopSearch

    stopped = search()
    stopped.run(task(), epochs=4, folder=tmp_path, on_step=enough)
    assert (stopped.weight_steps, stopped.architecture_steps) == (6, 6)


class StopIn(Callback):
    """Stops in a method that is not a step's."""

    def __init__(self, method):
        setattr(self, method, self.stop)

    def stop(self, run):
        raise StopSearch("enough")


def test_who_stops_at_a_checkpoint_has_no_further_turn(tmp_path):
    stopped, whole, resumed = search(), search(), search()
    stopped.run(task(), epochs=3, folder=tmp_path / "run", callbacks=[StopIn("checkpoint")])
    assert stopped.weight_steps == 4
    assert json.loads((tmp_path / "run/result.json").read_text())["stopped"] == "enough"
    whole.run(task(), epochs=3)
    resumed.run(task(), epochs=3, folder=tmp_path / "run", resume=True)
    assert same_weights(whole, resumed)


@pytest.mark.parametrize("folder", [None, "run"])
def test_who_stops_at_the_start_has_no_turn(folder, tmp_path):
    stopped, whole, resumed = search(), search(), search()
    folder = None if folder is None else tmp_path / folder
    stopped.run(task(), epochs=2, folder=folder, callbacks=[StopIn("start")])
    assert stopped.weight_steps == 0
    if folder is not None:
        assert json.loads((folder / "result.json").read_text())["stopped"] == "enough"
        whole.run(task(), epochs=2)
        resumed.run(task(), epochs=2, folder=folder, resume=True)
        assert same_weights(whole, resumed)


def test_callbacks_are_told_of_the_checkpoint_at_a_signal(tmp_path):
    diary = Diary()

    def interrupt(step):
        if step.phase == "weights" and step.number == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(SearchStopped):
        search().run(task(), epochs=2, folder=tmp_path, callbacks=[diary], on_step=interrupt)
    assert diary.seen[-3:] == ["architecture", "checkpoint", "end"]


def test_who_stops_in_the_last_turn_stops_nothing(tmp_path):
    search().run(task(), epochs=2, folder=tmp_path, callbacks=[StopAt(8)])
    assert "stopped" not in json.loads((tmp_path / "result.json").read_text())


class Count(Callback):
    def __init__(self, by=1):
        self.by, self.count = by, 0

    def step(self, run, step):
        self.count += self.by

    def state(self):
        return {"count": self.count}

    def restore(self, state):
        self.count = state["count"]


class Strict(Count):
    def restore(self, state):
        if state["count"] > 0:
            raise KeyError("other")


def test_two_callbacks_of_one_kind_have_states_of_their_own(tmp_path):
    search().run(task(), epochs=4, folder=tmp_path, callbacks=[Count(1), Count(10), StopAt(6)])
    ones, tens = Count(1), Count(10)
    search().run(task(), epochs=4, folder=tmp_path, resume=True, callbacks=[ones, tens])
    assert (ones.count, tens.count) == (32, 320)


def test_a_search_that_does_not_fit_leaves_the_callbacks_as_they_were(tmp_path):
    search().run(task(), epochs=4, folder=tmp_path, callbacks=[Count(), StopAt(6)])
    other, count = network(), Count()
    other[2] = nn.Linear(4, 2)
    made = Search(other, weight_optimizer=SGD, architecture_optimizer=FAST)
    with pytest.raises(ValueError, match="Nothing was changed"):
        made.run(task(), epochs=4, folder=tmp_path, resume=True, callbacks=[count])
    assert count.count == 0


def test_a_callback_that_refuses_its_state_leaves_the_search_and_the_others_as_they_were(tmp_path):
    search().run(task(), epochs=4, folder=tmp_path, callbacks=[Count(), Strict(), StopAt(6)])
    made, untouched, count = search(), search(), Count()
    with pytest.raises(ValueError, match=r"KeyError: 'other'\. Nothing was changed"):
        made.run(task(), epochs=4, folder=tmp_path, resume=True, callbacks=[count, Strict()])
    assert (count.count, made.weight_steps) == (0, 0)
    assert same_weights(made, untouched)


def test_the_time_limit_ends_the_search_after_the_turn(tmp_path):
    limited = search()
    limited.run(task(), epochs=50, folder=tmp_path, time_limit=1e-9)
    assert (limited.weight_steps, limited.architecture_steps) == (1, 1)
    assert "time limit" in json.loads((tmp_path / "result.json").read_text())["stopped"]
    assert limited.report(tmp_path).exists(), "a search that was stopped has a report too"


@pytest.mark.parametrize(("name", "value"), [("time_limit", 0), ("time_limit", True), ("patience", 0)])
def test_limits_are_positive(name, value):
    with pytest.raises(ValueError, match=name):
        search().run(task(), epochs=1, **{name: value})


def test_patience_waits_for_a_decided_answer_that_stays():
    patient, impatient = search(annealing=lambda progress: 1.0), search(annealing=lambda progress: 1.0)
    patient.run(task(), epochs=12, progress=False)
    answers = []

    class Answers(Callback):
        def epoch(self, run):
            verdict = run.search.verdict()
            answers.append((verdict.decided, run.search.argmax()))

    impatient.run(task(), epochs=12, patience=2, callbacks=[Answers()])
    assert patient.verdict().decided
    assert impatient.weight_steps < patient.weight_steps
    decided, kept = zip(*answers[-2:], strict=True)
    assert all(decided)
    assert set(kept) == {answers[-3][1]}


def test_patience_does_not_take_an_undecided_search_for_a_decided_one():
    undecided = search(architecture_optimizer=partial(torch.optim.SGD, lr=1e-9))
    undecided.run(task(), epochs=6, patience=1)
    assert undecided.weight_steps == 24


def test_the_count_of_patience_survives_a_stop(tmp_path):
    options = {"epochs": 12, "patience": 3}
    whole, stopped, resumed = (search(annealing=lambda progress: 1.0) for _ in range(3))
    whole.run(task(), folder=tmp_path / "whole", **options)
    stopped.run(task(), folder=tmp_path / "run", **options, callbacks=[StopAt(whole.weight_steps - 5)])
    resumed.run(task(), folder=tmp_path / "run", resume=True, **options)
    assert resumed.weight_steps == whole.weight_steps < 48
    assert same_weights(whole, resumed)


# Extensions


def test_a_finished_search_is_extended_deterministically(tmp_path):
    for name in ("one", "two", "stopped"):
        search().run(task(), epochs=2, folder=tmp_path / name)
    one, two, stopped, resumed = (search() for _ in range(4))
    one.run(task(), epochs=4, folder=tmp_path / "one", resume=True)
    two.run(task(), epochs=4, folder=tmp_path / "two", resume=True)
    stopped.run(task(), epochs=4, folder=tmp_path / "stopped", resume=True, callbacks=[StopAt(11)])
    resumed.run(task(), epochs=4, folder=tmp_path / "stopped", resume=True)
    assert one.weight_steps == 16
    assert same_weights(one, two)
    assert same_weights(one, resumed)
    lines = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("one", "two", "stopped")]
    assert len(set(lines)) == 1
    asked = json.loads((tmp_path / "one/run.json").read_text())
    assert (asked["length"]["epochs"], asked["settings"]["steps"], list(asked["extended"])) == (4, 16, ["8"])


def test_an_extension_takes_the_rates_of_the_longer_search_from_its_next_step_on(tmp_path):
    search().run(task(), epochs=2, folder=tmp_path)
    rates = []

    class Rates(Callback):
        def step(self, run, step):
            if step.phase == "weights":
                rates.append(run.learning_rates["weights"][0])

    search().run(task(), epochs=4, folder=tmp_path, resume=True, callbacks=[Rates()])
    assert rates == pytest.approx([0.05 * cosine(number / 16) for number in range(8, 16)])


def test_one_object_can_extend_its_own_run(tmp_path):
    made, other = search(), search()
    made.run(task(), epochs=2, folder=tmp_path / "a")
    made.run(task(), epochs=4, folder=tmp_path / "a", resume=True)
    search().run(task(), epochs=2, folder=tmp_path / "b")
    other.run(task(), epochs=4, folder=tmp_path / "b", resume=True)
    assert same_weights(made, other)


def test_a_search_that_was_not_over_is_not_extended(tmp_path):
    search().run(task(), epochs=2, folder=tmp_path, callbacks=[StopAt(5)])
    with pytest.raises(ValueError, match="steps is 16 now and was 8"):
        search().run(task(), epochs=4, folder=tmp_path, resume=True)


def test_the_metric_of_a_task_is_recorded_and_shown(tmp_path, capsys):
    """Of the most likely architecture on the first validation minibatch, once per epoch."""
    seen = []

    def accuracy(model, batch):
        assert not any(isinstance(part, Choice) for part in model.modules())
        seen.append(batch)
        return 0.125

    whole = replace(task(), metric=accuracy)
    search().run(whole, epochs=2, warmup=1, folder=tmp_path, progress=True)
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert [record["metric"] for record in records] == [0.125] * len(seen)
    assert all(batch is seen[0] for batch in seen)
    assert "metric 0.125, " in capsys.readouterr().err


def test_a_metric_changes_nothing_of_a_search():
    one, other, before = search(), search(), torch.get_rng_state()
    one.run(replace(task(), metric=lambda model, batch: torch.rand(1).item()), epochs=2)
    assert torch.equal(torch.get_rng_state(), before)
    other.run(task(), epochs=2)
    assert same_weights(one, other)


# Verdict, warning, report


def test_an_undecided_search_warns_and_says_what_to_change():
    made = search(architecture_optimizer=partial(torch.optim.SGD, lr=1e-9))
    with pytest.warns(UndecidedWarning, match=r"100 % of its start after 8 steps.*epochs=.*lr=.*more than 1e-09"):
        made.run(task(), epochs=2)
    assert not made.verdict().decided
    assert "at block" in str(made.verdict())
    assert "beats chance" not in str(made.verdict())


def test_a_decided_search_and_a_baseline_do_not_warn(recwarn):
    made = search(annealing=lambda progress: 1.0)
    made.run(task(), epochs=12)
    assert made.verdict().decided
    assert made.verdict().remarks[-1].good is None  # that it is decided is no evidence
    assert "Whether the answer beats chance takes several seeds" in str(made.verdict())
    search(strategy="random").run(task(), epochs=1)
    assert not [warning for warning in recwarn if warning.category is UndecidedWarning]


class TestDecisionsThatTheAnswerDoesNotContain:
    """They make no difference to it, so what theta says there is no news."""

    def made(self):
        act = Choice({"relu": nn.ReLU(), "tanh": nn.Tanh(), "none": nn.Identity()}, name="act")
        mlp = nn.Sequential(nn.Linear(4, 4), act, nn.Linear(4, 4))
        block = Choice({"skip": nn.Identity(), "linear": nn.Linear(4, 4), "mlp": mlp}, name="block")
        made = Search(nn.Sequential(nn.Linear(3, 4), block, nn.Linear(4, 1)), architecture_optimizer=SGD)
        made.run(task(), epochs=2, progress=False)
        return made

    def test_they_do_not_count_in_the_verdict(self):
        made = self.made()
        made.theta.assign(torch.tensor([[0.0, 9.0, 0.0], [0.0, 0.0, 0.0]]))
        assert made.verdict().decided
        assert "of the decisions that the answer contains is 0 % of its start" in str(made.verdict())
        assert "act" not in str(made.verdict()).replace("contains", "")
        made.theta.assign(torch.tensor([[0.0, 0.0, 9.0], [0.0, 0.0, 0.0]]))
        assert not made.verdict().decided
        assert "at act" in str(made.verdict())

    def test_the_share_of_operations_without_weights_is_that_of_the_network(self):
        made = self.made()
        made.theta.assign(torch.tensor([[0.0, 9.0, 0.0], [9.0, 0.0, 0.0]]))
        assert "0 % of the chosen operations have no weights" in str(made.verdict())

    def test_patience_does_not_wait_for_them(self):
        class Flicker(Callback):
            def epoch(self, run):
                best = run.search.architecture_steps % 3
                run.search.theta.assign(torch.eye(3)[[1, best]] * 9)

        made = self.made()
        again = Search(made.model, architecture_optimizer=partial(torch.optim.SGD, lr=0.0))
        again.run(task(), epochs=20, progress=False, patience=3, callbacks=[Flicker()])
        assert again.architecture_steps < 20 * 4


def test_a_verdict_before_the_first_step_knows_nothing():
    assert "not taken a step" in str(search().verdict())


@pytest.mark.parametrize("folder", [None, "run", "other"])
def test_a_search_writes_its_report(folder, tmp_path):
    made = search()
    made.run(task(), epochs=2, folder=None if folder is None else tmp_path / folder)
    page = made.report(tmp_path / "run")
    assert page == tmp_path / "run/report/index.html"
    assert "contrast" in page.read_text()
    assert len(list(read_journal(tmp_path / "run/records.jsonl"))) == 3
    assert (tmp_path / "run/metrics.jsonl").exists() == (folder is not None)


def test_a_report_needs_a_run_and_a_folder_of_its_own(tmp_path):
    with pytest.raises(ValueError, match=r"before search\.run"):
        advnas.report(search(), tmp_path)
    search().run(task(), epochs=1, folder=tmp_path)
    made = search()
    made.run(task(), epochs=1)
    with pytest.raises(ValueError, match="already holds"):
        made.report(tmp_path)


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_report_without_its_packages_says_what_to_install(tmp_path, monkeypatch, package):
    made = search()
    made.run(task(), epochs=1)
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=r"pip install 'advnas\[reports\]'"):
        made.report(tmp_path)


@pytest.mark.parametrize("name", ["metrics.jsonl", "timing.jsonl"])
def test_a_report_leaves_alone_what_it_has_not_written(tmp_path, name):
    (tmp_path / name).write_text("mine")
    made = search()
    made.run(task(), epochs=1)
    with pytest.raises(ValueError, match="already holds"):
        made.report(tmp_path)
    assert (tmp_path / name).read_text() == "mine"


def test_a_report_is_written_again_in_its_place(tmp_path):
    for epochs in (1, 2):  # as a script that is run twice
        made = search()
        made.run(task(), epochs=epochs)
        made.report(tmp_path / "r")
        made.report(tmp_path / "r")
        assert len(list(read_journal(tmp_path / "r/records.jsonl"))) == epochs + 1
    search().run(task(), epochs=1, folder=tmp_path / "r", resume=True)  # now these are the records of a run
    with pytest.raises(ValueError, match="already holds"):
        made.report(tmp_path / "r")


def test_the_report_of_one_search_claims_no_retraining(tmp_path):
    made = search()
    made.run(task(), epochs=1)
    assert (
        "retrained" not in made.report(tmp_path).read_text().partition("Settings</h2>")[2].partition("<h2>Fig")[0]
    )


# Progress


def test_logs_get_about_ten_lines(capsys):
    search().run(task(2), epochs=30, warmup=3)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) in (10, 11)
    assert lines[0].startswith("epoch 1 of 30: loss ")
    assert "warm-up" in lines[0]
    assert lines[-1].startswith("epoch 30 of 30")
    assert "entropy" in lines[-1]
    assert "most likely: block" in lines[-1]


def test_progress_says_that_theta_does_not_move_after_the_warm_up(capsys):
    search("ranked_random").run(task(), epochs=3, warmup=1)
    told = capsys.readouterr().err.splitlines()
    assert ["warm-up" in line for line in told] == [True, False, False]
    assert all("theta has not moved" in line for line in told[1:])


def test_progress_can_be_left_out(capsys):
    search().run(task(), epochs=2, progress=False)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    search().run(task(), epochs=2)
    shown = capsys.readouterr().err
    assert "\x1b[" in shown
    assert "epoch 2 of 2" in shown


def test_a_notebook_gets_a_table_that_is_written_anew(capsys, monkeypatch):
    shown = []

    class Handle:
        def update(self, content, raw):
            shown.append(content)

    module = types.ModuleType("IPython")
    module.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    display = types.ModuleType("IPython.display")
    display.display = lambda content, raw, display_id: Handle()
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    search().run(task(), epochs=2)
    assert "epoch 2 of 2" in shown[-1]["text/plain"]
    assert "<td style='text-align:left'>block</td>" in shown[-1]["text/html"]
    assert capsys.readouterr().err == ""


def test_progress_is_a_callback_as_any_other():
    assert issubclass(ShowProgress, Callback)


# Data


def test_a_device_takes_the_model_and_the_minibatches():
    made = search()
    with pytest.raises(ValueError, match="device 'abacus' cannot be used here"):
        made.run(task(), epochs=1, device="abacus")
    made.run(task(), epochs=1, device="cpu")
    assert made.weight_steps == 4


def test_accumulated_minibatches_are_one_large_minibatch():
    together, large = search(weight_clip=None), search(weight_clip=None)
    together.run(task(4), epochs=2, accumulate=2)
    data = task(4).training
    pairs = [tuple(torch.cat(both) for both in zip(*data[at : at + 2], strict=True)) for at in (0, 2)]
    large.run(Task(pairs, pairs, task().loss), epochs=2)
    assert together.weight_steps == large.weight_steps == 4
    for one, other in zip(together.model.parameters(), large.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(together.theta.logits(), large.theta.logits())


@pytest.mark.parametrize("strategy", ["contrast", "advantage", "darts", "reinforce", "exact_advantage"])
@pytest.mark.parametrize("kind", ["weight_step", "architecture_step", "joint_step"])
def test_an_accumulated_loss_moves_all_like_its_mean(strategy, kind):
    parts, mean = search(strategy=strategy), search(strategy=strategy)
    losses = [partial(lambda batch, model: task().loss(model, batch), batch) for batch in task(3).training]
    getattr(parts, kind)(Accumulated(*losses))
    getattr(mean, kind)(lambda model: torch.stack([loss(model) for loss in losses]).mean())
    for one, other in zip(parts.model.parameters(), mean.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(parts.theta.logits(), mean.theta.logits())


@pytest.mark.parametrize("kind", ["weight_step", "architecture_step", "joint_step"])
def test_accumulation_never_keeps_more_than_one_graph(kind):
    graphs, alive = [], []

    class Marked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            graphs.append(weakref.ref(ctx))  # it lives as long as the graph that it is a node of
            return value.clone()

        @staticmethod
        def backward(ctx, slope):
            return slope

    def loss(model):
        alive.append(sum(graph() is not None for graph in graphs))
        return Marked.apply(task().loss(model, task().training[0]))

    getattr(search(), kind)(Accumulated(loss, loss, loss))
    assert alive == [0, 0, 0]


def test_a_weight_step_of_parts_frees_what_its_backward_pass_is_done_with():
    made, kept, left = search(), weakref.WeakSet(), []
    made.model[0].weight.register_hook(lambda slope: left.append(len(kept)))  # where the backward pass ends

    class Kept:
        def __init__(self, tensor):
            self.tensor = tensor
            kept.add(self)

    def loss(model):
        with torch.autograd.graph.saved_tensors_hooks(Kept, lambda one: one.tensor):
            return task().loss(model, task().training[0])

    made.weight_step(Accumulated(loss, loss))
    after_the_first, after_the_last = left
    assert after_the_first == after_the_last


def test_a_resumed_accumulation_goes_on_bit_for_bit(tmp_path):
    whole, stopped, resumed = search(), search(), search()
    whole.run(task(5), epochs=4, accumulate=2, folder=tmp_path / "whole")
    stopped.run(task(5), epochs=4, accumulate=2, folder=tmp_path / "run", callbacks=[StopAt(3)])
    resumed.run(task(5), epochs=4, accumulate=2, folder=tmp_path / "run", resume=True)
    assert same_weights(whole, resumed)


def test_another_number_of_minibatches_per_step_is_refused_on_resuming(tmp_path):
    search().run(task(8), epochs=2, folder=tmp_path, callbacks=[StopAt(6)])
    with pytest.raises(ValueError, match="accumulate is 2 now and was 1"):
        search().run(task(8), epochs=4, accumulate=2, folder=tmp_path, resume=True)  # as many steps


@pytest.mark.parametrize(("accumulate", "epochs"), [(1, 2), (2, 4)])
def test_a_checkpoint_that_does_not_name_accumulate_counts_as_one_minibatch_per_step(tmp_path, accumulate, epochs):
    search().run(task(8), epochs=2, folder=tmp_path, callbacks=[StopAt(6)])
    path = tmp_path / "checkpoint-000000006.pt"
    saved = load_state(path)
    saved["work"]["settings"].pop("accumulate", None)
    Checkpoints(tmp_path).save(saved, 6)
    resumed = search()
    fits = contextlib.nullcontext() if accumulate == 1 else pytest.raises(ValueError, match="accumulate is 2 now")
    with fits:
        resumed.run(task(8), epochs=epochs, accumulate=accumulate, folder=tmp_path, resume=True)
    assert resumed.weight_steps == (16 if accumulate == 1 else 0)


def test_more_minibatches_per_step_than_there_are_are_refused():
    with pytest.raises(ValueError, match="accumulate=5 asks for more minibatches"):
        search().run(task(4), epochs=1, accumulate=5)


# Schedulers


def test_a_scheduler_of_torch_takes_over_the_rates_and_survives_a_stop(tmp_path):
    def attached():
        made = search()
        one_cycle = torch.optim.lr_scheduler.OneCycleLR(made.weight_optimizer, max_lr=0.1, total_steps=17)
        return made, StepScheduler(one_cycle)

    rates = []

    class Rates(Callback):
        def step(self, run, step):
            if step.phase == "weights":
                rates.append(run.learning_rates["weights"][0])

    whole, scheduler = attached()
    whole.run(task(), epochs=4, folder=tmp_path / "whole", callbacks=[Rates(), scheduler])
    alone = SGD([torch.nn.Parameter(torch.ones(1))])
    schedule, expected = torch.optim.lr_scheduler.OneCycleLR(alone, max_lr=0.1, total_steps=17), []
    for _ in range(16):
        expected.append(alone.param_groups[0]["lr"])
        alone.step()
        schedule.step()
    assert rates == expected
    stopped, scheduler = attached()
    stopped.run(task(), epochs=4, folder=tmp_path / "run", callbacks=[StopAt(7), scheduler])
    resumed, scheduler = attached()
    resumed.run(task(), epochs=4, folder=tmp_path / "run", resume=True, callbacks=[scheduler])
    assert same_weights(whole, resumed)


def test_the_readme_shows_progress_a_verdict_and_a_report(tmp_path):
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    code = text.split("```python\n")[1].split("```")[0]
    program = f"{code}\nprint(search.verdict())\nprint(search.report('r'))\n"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300
    )
    assert "epoch 20 of 20" in done.stderr
    assert "The entropy of the decisions is" in done.stdout
    assert (tmp_path / "r/report/index.html").exists()
    settled = "the search has settled" in done.stdout
    assert settled or "UndecidedWarning" in done.stderr


# What cannot be run


def test_minibatches_without_a_task_are_told_what_to_write():
    with pytest.raises(TypeError, match=r"takes a task, got list\. Write search\.run\(advnas\.Task\("):
        search().run(task().training, epochs=1)


def test_a_resume_without_a_folder_is_refused():
    made = search()
    with pytest.raises(ValueError, match="resume=True needs the folder"):
        made.run(task(), epochs=1, resume=True)
    assert made.weight_steps == 0


def test_one_callback_needs_no_list():
    diary = Diary()
    search().run(task(), epochs=1, callbacks=diary)
    assert diary.seen
