import copy
import json
import math
import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advnas import Choice, Search, Task, Zero, strategies
from advnas.architecture import Draw
from advnas.randomness import generator, seed_of, seeded
from advnas.search import CreditCheck, CreditWarning, Length, Replayed, SearchRun, Swap, loop, run_search
from advnas.search.swaps import check_credit, plan_squares
from advnas.spaces.nasbench201 import Cell, nasbench201_candidates
from advnas.strategies.advantage import Advantage
from advnas.strategies.contrast import Contrast
from advnas.strategies.proxyless import Proxyless
from advnas.tasks import digits

JUDGED = ("advantage", "contrast", "proxyless", "gdas")
THETA = partial(torch.optim.SGD, lr=0.1)


def check_of(*gains, strategy="advantage", rivals=False):
    """Of made-up swaps: (decision, measured, believed)."""
    return CreditCheck(strategy, rivals, tuple(Swap(name, "a", "b", *both) for name, *both in gains))


def linears():
    return {name: nn.Linear(3, 3) for name in ("a", "b")}


# What is said


def test_the_cosine_is_that_of_gains_that_count_no_more_than_their_median():
    assert check_of(("x", 1.0, 2.0), ("x", 1.0, 2.0), ("y", -1.0, -2.0)).cosine == pytest.approx(1)
    ruined = check_of(("x", 1.0, 1.0), ("x", 1.0, 1.0), ("y", -1000.0, 1000.0))
    assert ruined.cosine == pytest.approx(1 / 3)
    assert ruined.wrong_at == ("y",)
    assert ruined.decisions == ("x", "y")


def test_the_scale_of_what_is_believed_does_not_matter():
    gains = [("x", float(number), number**2 - 3.0) for number in range(-4, 5)]
    scaled = [(name, measured, 1e-6 * believed) for name, measured, believed in gains]
    assert check_of(*scaled).cosine == pytest.approx(check_of(*gains).cosine)


@pytest.mark.parametrize(
    ("right", "wrong", "contradicts", "agrees"),
    [
        (64, 0, False, True),
        (33, 31, True, False),  # no better than chance
        (44, 20, False, True),
        (37, 27, False, False),
        (6, 6, False, False),  # too few to tell
        (0, 7, False, False),
        (0, 8, True, False),
        (0, 64, True, False),
    ],
)
def test_contradictions_must_be_clear_for_their_number(right, wrong, contradicts, agrees):
    check = check_of(*[("x", 1.0, 1.0)] * right, *[("y", 1.0, -1.0)] * wrong)
    assert (check.contradicts, check.agrees) == (contradicts, agrees)
    assert check.good is (True if agrees else False if contradicts else None)


def test_nothing_measured_is_no_contradiction():
    assert check_of().cosine == 0
    assert not check_of().contradicts
    assert check_of().decisions == check_of().wrong_at == ()
    assert not check_of(*[("x", 0.0, 1.0)] * 8).agrees


def test_the_sentence_says_what_was_seen_and_what_to_write():
    told = [("x", 1.0, -1.0)] * 8 + [("y", 1.0, 1.0)] * 4
    assert str(check_of(*told)) == (
        "The slopes of advantage contradict measured swaps at 1 of 2 decisions (cosine -0.33 over 12 swaps, 1 being"
        ' full agreement), as they do where choices stand in series. Write strategy="contrast".'
    )
    text = str(check_of(*told, strategy="contrast", rivals=True))
    assert "many places" in text
    assert 'Compare with strategy="reinforce".' in text
    assert "agree with measured swaps (cosine 1.00" in str(check_of(*[("x", 1.0, 1.0)] * 8))
    assert "is open" in str(check_of(*[("x", 1.0, 1.0)] * 4, *[("x", 1.0, -1.0)] * 4))


def test_searches_are_judged_together_by_all_their_swaps():
    few = check_of(*[("x", 1.0, -1.0)] * 4, *[("y", 1.0, 1.0)] * 4)
    assert not few.contradicts
    pooled = CreditCheck.pooled([few] * 8)
    assert pooled.contradicts
    assert (pooled.strategy, len(pooled.swaps), pooled.wrong_at) == ("advantage", 64, ("x",))


def test_a_check_survives_json():
    check = check_of(("x", 0.1, -1 / 3), ("y", 2.0, 1.0))
    content = json.loads(json.dumps(check.to_json()))
    assert CreditCheck.from_json(content) == check
    assert content["cosine"] == check.cosine
    assert content["wrong_at"] == ["x"]
    assert content["contradicts"] is False
    assert CreditCheck.from_json(check_of().to_json()) == check_of()


@pytest.mark.parametrize(
    "wrong",
    [{"swaps": None}, {"swaps": [{}]}, {"strategy": 3}, {"rivals": None}, {"swaps": [{"measured": "much"}]}],
)
def test_what_is_no_check_is_refused(wrong):
    with pytest.raises(ValueError, match="credit"):
        CreditCheck.from_json(check_of(("x", 0.1, 0.2)).to_json() | wrong)


# What is measured


class Sum(nn.Module):
    """Two choices in a sum: a squared error is quadratic in the output of each."""

    def __init__(self):
        super().__init__()
        self.one, self.two = (Choice(linears(), name=name) for name in ("one", "two"))

    def forward(self, x):
        return self.one(x) + self.two(x)


def series():
    return nn.Sequential(Choice(linears(), name="one"), Choice(linears(), name="two"))


def squared_error(model):
    random = torch.Generator().manual_seed(5)
    x, y = (torch.randn(6, 3, generator=random, dtype=torch.float64) for _ in range(2))
    return (model(x) - y).square().mean()


@pytest.fixture
def double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def all_losses(search):
    return {
        tuple(one.values()): squared_error(search.space.derive(one)).item() for one in search.space.architectures()
    }


def gains_by_definition(losses, row):
    """Of all swaps a -> b at a decision, whatever stands at the other."""
    pairs = ((one, (*one[:row], "b", *one[row + 1 :])) for one in losses if one[row] == "a")
    return sorted(losses[one] - losses[other] for one, other in pairs)


def gains(check, name, which):
    """The same as a check has it, all in the direction a -> b."""
    own = (swap for swap in check.swaps if swap.decision == name)
    return sorted(getattr(swap, which) * (1 if swap.operation == "a" else -1) for swap in own)


@pytest.mark.parametrize("make", [Sum, series])
@pytest.mark.parametrize("strategy", JUDGED)
def test_measured_gains_are_differences_of_the_losses_of_derived_networks(make, strategy, double):
    search = Search(make(), strategy, steps=10)
    check = check_credit(search, squared_error, 1)
    assert len(check.swaps) == 4
    for row, name in enumerate(("one", "two")):
        assert gains(check, name, "measured") == pytest.approx(gains_by_definition(all_losses(search), row))


@pytest.mark.parametrize("make", [Sum, series])
@pytest.mark.parametrize("strategy", [Contrast(), Contrast(rivals=None), Proxyless()])
def test_what_slopes_against_a_rival_say_is_exact_where_the_reward_is_quadratic(make, strategy, double):
    check = check_credit(Search(make(), strategy, steps=10), squared_error, 1)
    assert check.rivals
    assert len(check.swaps) == 4
    for swap in check.swaps:
        assert swap.believed == pytest.approx(swap.measured, rel=1e-9)
    assert check.cosine == pytest.approx(1)


@pytest.mark.parametrize("make", [Sum, series])
def test_the_advantage_believes_in_differences_of_advantages(make, double):
    """A_b - A_a, each of the network that it stands in."""
    search = Search(make(), Advantage(), steps=10)
    check = check_credit(search, squared_error, 1)
    assert not check.rivals
    advantages = {}
    for one in search.space.architectures():
        draw = Draw.gated(search.space.one_hot(one))
        with search.space.running(draw):
            (slope,) = torch.autograd.grad(squared_error(search.model), draw.weights)
        advantages[tuple(one.values())] = (-slope * draw.weights.detach()).sum(-1).tolist()
    for row, name in enumerate(("one", "two")):
        minus_own = {one: -own[row] for one, own in advantages.items()}
        assert gains(check, name, "believed") == pytest.approx(gains_by_definition(minus_own, row))


def test_decisions_take_turns():
    many = {name: nn.Linear(3, 3) for name in "abcdefgh"}
    model = nn.Sequential(nn.Linear(3, 3), *(Choice(copy.deepcopy(many), name=str(number)) for number in range(5)))
    check = check_credit(Search(model, steps=10), loss_of, 5)
    found = [swap.decision for swap in check.swaps]
    assert {found.count(name) for name in check.decisions} == {4}
    assert len(check.decisions) == 5


def test_no_swap_counts_twice():
    check = check_credit(Search(nn.Sequential(nn.Linear(3, 3), series()), steps=10), loss_of, 6)
    assert len(check.swaps) == 4  # there are only four architectures


@pytest.mark.parametrize("name", sorted({*strategies.names(), "both"} - {*JUDGED}))
def test_strategies_that_do_not_learn_from_slopes_of_single_architectures_are_not_judged(name):
    strategy = Proxyless(both_active=True) if name == "both" else strategies.get(name)
    search = Search(nn.Sequential(nn.Linear(3, 3), series()), strategy, steps=10)
    check = check_credit(search, loss_of, 4)
    assert check.swaps == ()
    assert not check.contradicts


def loss_of(model):
    random = torch.Generator().manual_seed(5)
    return F.mse_loss(model(torch.randn(6, 3, generator=random)), torch.zeros(6, 3))


# Edge cases


def test_one_decision_is_swapped_alone():
    choice = Choice({**linears(), "skip": nn.Identity(), "zero": Zero()}, name="only")
    check = check_credit(Search(nn.Sequential(nn.Linear(3, 3), choice), "contrast", steps=10), loss_of, 20)
    assert check.decisions == ("only",)
    assert len(check.swaps) == 6  # of four operations


def test_a_decision_with_one_candidate_is_never_swapped():
    single = Choice({"a": nn.Linear(3, 3)}, name="single")
    model = nn.Sequential(nn.Linear(3, 3), single, Choice(linears(), name="open"), Choice(linears(), name="more"))
    check = check_credit(Search(model, "contrast", steps=10), loss_of, 4)
    assert set(check.decisions) == {"open", "more"}


@pytest.mark.parametrize(
    ("choices", "squares"),
    [
        ([Choice({"a": nn.Linear(3, 3)})], 0),
        ([Choice(linears())], 0),
        ([Choice(linears()), Choice(linears())], 0),  # four swaps in all
        ([Choice(linears()), Choice(linears()), Choice(linears())], 16),
        ([Choice({name: nn.Linear(3, 3) for name in "abcde"})], 64),  # two architectures each
    ],
)
def test_a_network_with_too_few_different_swaps_is_not_judged(choices, squares):
    search = Search(nn.Sequential(nn.Linear(3, 3), *choices), steps=10)
    assert plan_squares(search, Length(10**6, 1)) == squares


def test_a_nested_decision_is_swapped_only_where_it_is_reached():
    inner = Choice({"tanh": nn.Tanh(), "linear": nn.Linear(3, 3)}, name="inner")
    outer = Choice({"leaf": nn.Linear(3, 3), "branch": nn.Sequential(nn.Linear(3, 3), inner)}, name="outer")
    search = Search(nn.Sequential(nn.Linear(3, 3), outer), "contrast", steps=10)
    check = check_credit(search, loss_of, 4)
    assert sorted(swap.decision for swap in check.swaps) == ["inner", "outer", "outer"]


@pytest.mark.parametrize("strategy", JUDGED)
def test_swaps_that_do_not_get_to_the_loss_are_left_out(strategy):
    gone = nn.Sequential(Choice(linears(), name="gone"), Choice({"zero": Zero()}, name="wall"))

    class Beside(nn.Module):
        def __init__(self):
            super().__init__()
            self.gone, self.kept = gone, Choice(linears(), name="kept")

        def forward(self, x):
            return self.gone(x) + self.kept(x)

    check = check_credit(Search(Beside(), strategy, steps=10), loss_of, 4)
    assert check.decisions == ("kept",)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_loss_that_is_not_finite_leaves_its_swaps_out(value):
    class Bad(nn.Module):
        def forward(self, x):
            return x * value

    model = nn.Sequential(nn.Linear(3, 3), Choice({**linears(), "bad": Bad()}, name="one"), Choice(linears()))
    check = check_credit(Search(model, steps=10), loss_of, 12)
    assert check.swaps
    assert all("bad" not in (swap.operation, swap.rival) for swap in check.swaps)
    assert all(math.isfinite(swap.measured + swap.believed) for swap in check.swaps)


class Probing(Advantage):
    """Asks for the loss of another draw, which is not finite."""

    def gradient(self, feedback, draw, logits, state):
        feedback.probe(replace(draw.knock_outs(), weights=draw.knock_outs().weights * math.nan))
        return super().gradient(feedback, draw, logits, state)


def test_a_strategy_whose_own_passes_are_not_finite_stops_nothing():
    assert (
        check_credit(Search(nn.Sequential(nn.Linear(3, 3), series()), Probing(), steps=10), loss_of, 2).swaps == ()
    )


class LooksAhead(Advantage):
    """Takes the slopes after a virtual weight step."""

    def gradient(self, feedback, draw, logits, state):
        return super().gradient(replace(feedback, slope=feedback.unrolled()), draw, logits, state)


def test_a_strategy_that_looks_ahead_is_judged_too():
    search = Search(nn.Sequential(nn.Linear(3, 3), series()), LooksAhead(), steps=10)
    assert check_credit(search, loss_of, 2).swaps


def test_an_error_of_the_network_says_where_it_happened():
    def fail(model):
        raise RuntimeError("no more paper")

    with pytest.raises(RuntimeError, match="no more paper") as error:
        check_credit(Search(nn.Sequential(nn.Linear(3, 3), series()), steps=10), fail, 1)
    assert "swap before architecture step 1" in error.value.__notes__[0]


# Nothing is changed


class Noisy(nn.Module):
    """Edges, zero operations, tied choices, a nested choice, BatchNorm and dropout."""

    def __init__(self):
        super().__init__()

        def edge(name, **more):
            normed = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU())
            return Choice({"normed": normed, "skip": nn.Identity(), "zero": Zero(), **more}, name=name)

        inner = Choice({"a": nn.Linear(3, 3), "tanh": nn.Tanh()}, name="inner")
        self.body = nn.ModuleList(
            [edge("one"), edge("two", drop=nn.Dropout(0.3)), edge("one"), edge("x", deep=inner)]
        )
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        one, two, three, four = self.body
        return four(self.norm(x + three(one(x)) + two(x)))


def everything(search):
    state = copy.deepcopy(search.state())
    flags = [(p.requires_grad, p.grad is None) for p in search.model.parameters()]
    modes = [(m.training, getattr(m, "track_running_stats", None)) for m in search.model.modules()]
    return state, flags, modes, torch.get_rng_state()


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


@pytest.mark.parametrize("store", ["resident", "host", "disk"])
@pytest.mark.parametrize("name", [*JUDGED, "enas", "parsec", "darts"])
def test_the_search_is_left_exactly_as_it_was(name, store):
    budget = {"memory_budget": "1MB"} if store == "disk" else {}
    search = Search(Noisy(), name, steps=20, weights=store, architecture_optimizer=THETA, **budget)
    for _ in range(3):
        search.weight_step(loss_of)
        search.architecture_step(loss_of, training_loss_of=loss_of)
    before = everything(search)
    check = check_credit(search, loss_of, 6)
    assert equal(everything(search), before)
    assert bool(check.swaps) is (name in JUDGED)
    assert check == check_credit(search, loss_of, 6)


def task():
    random = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=random)
    pairs = list(zip(x.split(6), x.flip(1).split(6), strict=True))
    return Task(pairs[:6], pairs[6:], lambda model, batch: F.mse_loss(model(batch[0]), batch[1]))


@pytest.fixture
def always(monkeypatch):
    """However short a search is, it measures six squares."""
    monkeypatch.setattr(loop, "plan_squares", lambda search, length: 6)


def noisy_search(name="advantage", **options):
    torch.manual_seed(0)
    return Search(Noisy(), name, architecture_optimizer=THETA, seed=3, **options)


@pytest.mark.filterwarnings("ignore::advnas.search.CreditWarning")
@pytest.mark.parametrize("schedule", ["alternate", "joint"])
@pytest.mark.parametrize("name", JUDGED)
def test_a_search_computes_the_same_with_and_without(name, schedule, tmp_path, monkeypatch):
    found = []
    for squares in (0, 6):
        monkeypatch.setattr(loop, "plan_squares", lambda search, length, squares=squares: squares)
        search, folder = noisy_search(name, schedule=schedule), tmp_path / str(squares)
        search.run(task(), epochs=3, warmup=1, folder=folder)
        files = [(folder / file).read_bytes() for file in ("metrics.jsonl", "records.jsonl")]
        found.append((files, search.state()))
        assert (json.loads((folder / "result.json").read_text())["credit"] is None) is (squares == 0)
    assert equal(*found)


# When, and how much


@pytest.mark.filterwarnings("ignore::advnas.search.CreditWarning")
@pytest.mark.parametrize(("warmup", "number"), [(2, 7), (0, 13)])
@pytest.mark.parametrize("schedule", ["alternate", "joint"])
def test_swaps_are_measured_once_after_the_warm_up_or_half_way_through(
    schedule, warmup, number, monkeypatch, always
):
    seen = []
    monkeypatch.setattr(
        loop, "check_credit", lambda search, *rest: seen.append(search.architecture_steps) or check_of()
    )
    noisy_search(schedule=schedule).run(task(), epochs=4, warmup=warmup)
    assert seen == [number]


def test_swaps_are_measured_on_the_minibatch_that_theta_has_learnt_from(monkeypatch, always):
    """Data that carry a state along take it from the first pass, which is that of the step."""
    calls, own = [], []

    def loss(model, batch):
        calls.append(id(batch))
        return F.mse_loss(model(batch[0]), batch[1])

    given = task()
    monkeypatch.setattr(
        loop, "check_credit", lambda search, of, squares: own.append((len(calls), of)) or check_of()
    )
    search = noisy_search()
    search.run(Task(given.training, given.validation, loss), epochs=2, warmup=1)
    before, of = own[0]
    assert before == 6 + 2 * 4
    with search.space.running(search.argmax()):
        of(search.model)
    assert calls[-1] == calls[before - 1]


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.passes, self.body = 0, nn.Sequential(nn.Linear(3, 3), *(Choice(linears()) for _ in range(6)))

    def forward(self, x):
        self.passes += 1
        return self.body(x)


@pytest.mark.parametrize("name", JUDGED)
@pytest.mark.parametrize("turns", [100, 2_000, 4_000, 40_000])
@pytest.mark.parametrize("schedule", ["alternate", "joint"])
def test_swaps_take_a_hundredth_of_all_passes_at_most(name, turns, schedule):
    search, length = Search(Counted(), name, schedule=schedule, steps=10), Length(turns // 100, 100, 50)
    squares = plan_squares(search, length)
    check_credit(search, loss_of, squares)
    cost = search.strategy.architecture_passes(search.space.sizes)
    of_theta = turns // 2 * cost if schedule == "alternate" else 0
    assert search.model.passes == 4 * squares
    assert search.model.passes * cost <= 0.01 * (2.5 * turns + of_theta)
    assert squares == 0 if turns == 100 else 2 <= squares <= 16
    assert turns < 40_000 or squares == 16


def test_a_short_search_measures_and_says_nothing(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", CreditWarning)
        noisy_search().run(task(), epochs=3, warmup=1, folder=tmp_path)
    assert json.loads((tmp_path / "result.json").read_text())["credit"] is None


class Crash(Exception):
    pass


@pytest.mark.filterwarnings("ignore::advnas.search.CreditWarning")
@pytest.mark.parametrize("crash", [26, 27, 36])  # just before the measurement, after it, an epoch later
def test_the_outcome_survives_a_stop(tmp_path, always, crash):
    noisy_search().run(task(), epochs=4, warmup=1, folder=tmp_path / "whole")
    taken = []

    def fail(step):
        taken.append(step)
        if len(taken) == crash:
            raise Crash

    with pytest.raises(Crash):
        noisy_search().run(task(), epochs=4, warmup=1, folder=tmp_path / "run", on_step=fail)
    noisy_search().run(task(), epochs=4, warmup=1, folder=tmp_path / "run", resume=True)
    for file in ("metrics.jsonl", "records.jsonl", "result.json"):
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    assert json.loads((tmp_path / "run/result.json").read_text())["credit"]["swaps"]


@pytest.mark.filterwarnings("ignore::advnas.search.CreditWarning")
def test_a_search_that_was_resumed_later_does_not_measure_again(tmp_path, always, monkeypatch):
    search = noisy_search()
    search.run(task(), epochs=4, warmup=1, folder=tmp_path)
    monkeypatch.setattr(loop, "check_credit", lambda *rest: pytest.fail("measured again"))
    noisy_search().run(task(), epochs=4, warmup=1, folder=tmp_path, resume=True)


def test_a_contradiction_is_a_warning_where_run_was_called(always, monkeypatch):
    against = check_of(*[("x", 1.0, -1.0)] * 8)
    monkeypatch.setattr(loop, "check_credit", lambda *rest: against)
    with pytest.warns(CreditWarning, match=r'at 1 of 1 decisions.*Write strategy="contrast"') as caught:
        noisy_search().run(task(), epochs=2, warmup=1)
    assert [warning.filename for warning in caught if warning.category is CreditWarning] == [__file__]


@pytest.mark.parametrize(("rank", "times"), [(0, 1), (1, 0)])
def test_several_processes_say_it_once(rank, times, always):
    search, told = noisy_search(), []
    run = SearchRun(search, Replayed.of(task(), 0), Length(6, 2, 1), told.append)
    search.group.rank = rank
    run_search(run)
    assert run.credit is not None
    assert told == [run.credit] * times


# On trained networks


def convolution(channels, kernel, groups=1):
    layer = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(channels), nn.ReLU())


def layers(**more):
    kinds = {"conv3": (3, 1), "conv1": (1, 1), "depthwise": (3, 8)}
    return {
        **{name: convolution(8, kernel, groups) for name, (kernel, groups) in kinds.items()},
        "pool": nn.AvgPool2d(3, stride=1, padding=1),
        **more,
    }


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Choice(layers(none=Zero()))

    def forward(self, x):
        return x + self.body(x)


def chain():
    return [Choice(layers(skip=nn.Identity())) for _ in range(4)]


def residual():
    return [Branch() for _ in range(4)]


def cell():
    return [nn.Identity(), Cell(8, lambda channels: nasbench201_candidates(channels, affine=True))]


def digit_network(make, seed):
    with seeded(seed_of(seed)):
        places = make()
        half = len(places) // 2
        stem = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
        return nn.Sequential(*stem, *places[:half], nn.MaxPool2d(2), *places[half:], *head)


def trained(make, seed, epochs):
    """A parent after a warm-up on 700 digits, and its losses on others."""
    known = digits.read()
    images, labels, per_epoch = known.images, known.labels, 700 // 32

    def loss_on(rows):
        return lambda model: F.cross_entropy(model(images[rows]), labels[rows])

    steps = epochs * per_epoch
    search = Search(digit_network(make, seed), "random", steps=2 * steps, warmup=steps, seed=seed)
    for number in range(steps):
        epoch, place = divmod(number, per_epoch)
        rows = torch.randperm(700, generator=generator(seed, epoch))[32 * place : 32 * (place + 1)]
        search.weight_step(loss_on(rows))
    return search.model, loss_on(torch.arange(700, 800))


def judge(make, seed, epochs):
    """Speak on a chain, and nowhere else; contrast is right everywhere."""
    model, loss = trained(make, seed, epochs)
    advantage, contrast = (
        check_credit(Search(model, name, steps=100, seed=seed), loss, 16) for name in ("advantage", "contrast")
    )
    assert advantage.contradicts is (make is chain), advantage.cosine
    assert contrast.agrees
    assert not contrast.contradicts


@pytest.mark.parametrize("make", [chain, residual, cell])
def test_the_advantage_is_contradicted_on_a_chain_and_nowhere_else(make):
    judge(make, seed=0, epochs=40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("make", [chain, residual, cell])
def test_the_same_for_other_seeds_and_longer_training(make, seed):
    judge(make, seed, epochs=120)


FAST_THETA = partial(torch.optim.Adam, lr=0.05, betas=(0.5, 0.999))


@pytest.mark.slow
def test_a_search_of_a_chain_is_warned_while_it_runs():
    search = Search(digit_network(chain, 0), "advantage", architecture_optimizer=FAST_THETA)
    steps = []
    with pytest.warns(CreditWarning, match=r"The slopes of advantage contradict.*Write strategy=\"contrast\""):
        search.run(digits.build(batch=50), epochs=240, warmup=120, on_step=steps.append)
    assert len(steps) == 120 * 14 + 2 * 120 * 14
