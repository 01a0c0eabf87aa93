import gc
import itertools
import json
import math
import os
import signal
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from advnas import Choice, NonFiniteLoss, Search, SearchStopped, Task, Zero, strategies
from advnas.arguments import check_count
from advnas.distribution import Theta
from advnas.records.checkpoints import load_state, save_state
from advnas.records.journal import read_journal
from advnas.search import constant, cosine
from advnas.strategies import Phase
from advnas.strategies.advantage import Advantage
from advnas.strategies.darts import Darts

SGD = partial(torch.optim.SGD, lr=0.1)


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(float(factor)))

    def forward(self, x):
        return x * self.factor


def network():
    """Two decisions of different sizes between shared layers."""
    return nn.Sequential(
        nn.Linear(3, 4),
        Choice({"linear": nn.Linear(4, 4), "skip": nn.Identity(), "zero": Zero()}, name="first"),
        nn.Tanh(),
        Choice({"wide": nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)), "narrow": nn.Linear(4, 4)}, name="second"),
        nn.Linear(4, 1),
    )


def nested():
    inner = Choice({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}, name="inner")
    outer = Choice({"leaf": nn.Linear(4, 4), "branch": nn.Sequential(nn.Linear(4, 4), inner)}, name="outer")
    return nn.Sequential(nn.Linear(3, 4), outer, nn.Linear(4, 1))


def batch(seed=0, size=8):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 3, generator=generator), torch.randn(size, 1, generator=generator)


def loss_of(model, seed=0):
    x, y = batch(seed)
    return F.mse_loss(model(x), y)


def alike(count, strategy="advantage", make=network, **options):
    """Several searches that agree in everything."""
    models = [make() for _ in range(count)]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    options = {"steps": 10, "weight_optimizer": SGD, "architecture_optimizer": SGD, **options}
    return [Search(model, strategy, **options) for model in models]


class Recorded:
    """A strategy that keeps its draws, and can be told what all of them are for."""

    def __init__(self, strategy, phase=None):
        self.inside, self.phase, self.draws = strategy, phase, []

    def draw(self, logits, state, phase, progress, generator):
        self.draws.append(self.inside.draw(logits, state, self.phase or phase, progress, generator))
        return self.draws[-1]

    def __getattr__(self, name):
        return getattr(self.inside, name)


def weights(search):
    return {name: value.detach().clone() for name, value in search.model.named_parameters()}


def same(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def take(search, kind, loss=loss_of):
    if kind == "architecture_step":
        return search.architecture_step(loss, training_loss_of=loss)
    return getattr(search, kind)(loss)


STEPS = ["weight_step", "architecture_step", "joint_step"]


# Weight steps


@pytest.mark.parametrize("name", strategies.names())
def test_a_weight_step_runs_without_gates(name, monkeypatch):
    search = Search(network(), name, steps=10)
    seen = []
    running = search.space.running
    monkeypatch.setattr(search.space, "running", lambda draw, *lend: seen.append(draw) or running(draw, *lend))
    search.weight_step(loss_of)
    assert [draw.weights.requires_grad for draw in seen] == [False]


@pytest.mark.parametrize("optimizer", [partial(torch.optim.SGD, lr=0.1, momentum=0.9), torch.optim.AdamW])
def test_weights_that_were_not_drawn_have_no_gradient_and_do_not_move(optimizer):
    search = Search(network(), "random", weight_optimizer=partial(optimizer, weight_decay=0.1), steps=100)
    moved = 0
    for _ in range(20):
        before = weights(search)
        step = search.weight_step(loss_of)
        for decision in search.space.decisions:
            for operation, candidate in zip(decision.operations, decision.choices[0].candidates, strict=True):
                for parameter in candidate.parameters():
                    name = next(name for name, value in search.model.named_parameters() if value is parameter)
                    drawn = step.architecture[decision.name] == operation
                    assert torch.equal(before[name], parameter) is not drawn
                    moved += drawn
        assert all(parameter.grad is None for parameter in search.model.parameters())
    assert moved > 20


def test_gradients_left_from_before_the_search_move_nothing():
    model = nn.Sequential(Choice({"a": Scale(1), "b": Scale(1)}, name="edge"))
    for parameter in model.parameters():
        parameter.grad = torch.ones(())
    search = Search(model, "random", weight_optimizer=SGD)
    step = search.weight_step(lambda model: model(torch.ones(1)).sum())
    undrawn = model[0].candidates[step.architecture["edge"] == "a"]
    assert undrawn.factor.item() == 1


def test_a_weight_step_is_one_step_of_plain_training():
    search, untouched = alike(2, "random", weight_clip=None, annealing=constant)
    step = search.weight_step(loss_of)
    plain = untouched.space.derive(step.architecture)
    loss_of(plain).backward()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter -= 0.1 * parameter.grad
    after = search.space.derive(step.architecture).state_dict()
    assert all(torch.allclose(after[name], value) for name, value in plain.state_dict().items())


def test_a_path_that_touches_no_weight_trains_nothing():
    search = Search(nn.Sequential(nn.Linear(3, 3), Choice({"zero": Zero()})), "random", weight_clip=None)
    before = weights(search)
    search.weight_step(lambda model: model(batch()[0]).sum())
    assert same(before, weights(search))


@pytest.mark.parametrize("kind", ["weight_step", "joint_step"])
def test_a_path_that_touches_no_weight_can_be_clipped(kind):
    search = Search(nn.Sequential(nn.Linear(3, 3), Choice({"zero": Zero()})), "random", weight_clip=1.0)
    take(search, kind, lambda model: model(batch()[0]).sum())
    assert search.weight_steps == 1


class Offsets(nn.Module):
    """Two parameters of the shape of the data; autograd hands both the very same gradient."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return x + self.one + self.two


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_clipping_leaves_gradients_in_proportion(reduction):
    model = nn.Sequential(Offsets(), Choice({"skip": nn.Identity()}))
    search = Search(model, "random", weight_optimizer=partial(torch.optim.SGD, lr=1.0), weight_clip=0.1)
    search.weight_step(lambda model: getattr(model(torch.ones(3)), reduction)())
    moved = torch.cat([model[0].one, model[0].two])
    assert moved.norm().item() == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize(("clip", "norm"), [(1e-3, 1e-3), (None, None), (1e9, None)])
def test_weight_gradients_are_clipped_by_their_norm(clip, norm):
    search = alike(1, "random", weight_clip=clip, annealing=constant)[0]
    free = alike(1, "random", weight_clip=None, annealing=constant)[0]
    free.model.load_state_dict(search.model.state_dict())
    lengths = []
    for one in (search, free):
        before = weights(one)
        one.weight_step(loss_of)
        lengths.append(torch.cat([(value - before[name]).flatten() for name, value in weights(one).items()]).norm())
    expected = lengths[1].item() if norm is None else 0.1 * norm
    assert lengths[0].item() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("clip", [0.1, None])
def test_weight_gradients_whose_square_overflows_are_clipped_or_refused(clip):
    model = nn.Sequential(Offsets(), Choice({"skip": nn.Identity()}))
    search = Search(model, "random", weight_optimizer=partial(torch.optim.SGD, lr=1.0), weight_clip=clip)
    if clip is None:
        with pytest.raises(NonFiniteLoss, match="gradient of the weights has norm inf"):
            search.weight_step(lambda model: 1e25 * model(torch.ones(3)).sum())
    else:
        search.weight_step(lambda model: 1e25 * model(torch.ones(3)).sum())
        assert torch.cat([model[0].one, model[0].two]).norm().item() == pytest.approx(clip, rel=1e-4)


# Architecture steps


@pytest.mark.parametrize("name", strategies.names())
@pytest.mark.parametrize("make", [network, nested])
def test_an_architecture_step_never_changes_a_weight_and_never_asks_for_its_gradient(name, make, monkeypatch):
    search = Search(make(), name, steps=10)
    before, asked = weights(search), []
    grad = torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd, "grad", lambda out, inp, *a, **k: asked.append(inp) or grad(out, inp, *a, **k)
    )
    for _ in range(3):
        take(search, "architecture_step")
    assert same(before, weights(search))
    assert all(parameter.grad is None and parameter.requires_grad for parameter in search.model.parameters())
    parameters = set(map(id, search.model.parameters()))
    flat = [tensor for inputs in asked for tensor in (inputs if isinstance(inputs, list) else [inputs])]
    assert not any(id(tensor) in parameters for tensor in flat)


def test_the_drawn_weights_are_frozen_while_an_architecture_step_runs_and_thawed_after():
    search, seen = Search(network()), []
    search.model[0].bias.requires_grad_(False)

    def spy(model):
        seen.append(model[0].weight.requires_grad)
        return loss_of(model)

    search.architecture_step(spy)
    assert seen == [False]
    assert search.model[0].weight.requires_grad
    assert not search.model[0].bias.requires_grad


def normalised():
    """Running statistics in front of the decision, in its candidates, and inside a nested one."""
    inner = Choice({"a": nn.BatchNorm1d(4), "b": nn.Identity()}, name="inner")
    outer = Choice({"norm": nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "nest": inner}, name="outer")
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), outer, nn.Linear(4, 1))


@pytest.mark.parametrize("strategy", [*strategies.names(), Darts(second_order=True)], ids=str)
def test_an_architecture_step_leaves_running_statistics_alone(strategy):
    search = Search(normalised(), strategy, steps=10)
    before = {name: value.clone() for name, value in search.model.named_buffers()}
    for _ in range(4):
        take(search, "architecture_step")
    assert same(before, dict(search.model.named_buffers()))
    search.weight_step(loss_of)
    assert not torch.equal(before["1.running_mean"], search.model[1].running_mean)


def test_running_statistics_are_kept_again_after_an_architecture_step_that_failed():
    search = Search(normalised())
    with pytest.raises(NonFiniteLoss):
        search.architecture_step(lambda model: loss_of(model) * math.nan)
    norms = [module for module in search.model.modules() if isinstance(module, nn.BatchNorm1d)]
    assert all(norm.track_running_stats for norm in norms)


def test_weights_are_thawed_again_when_a_loss_fails():
    search = Search(network())
    with pytest.raises(KeyError):
        search.architecture_step(lambda model: {}["missing"])
    assert all(parameter.requires_grad for parameter in search.model.parameters())


def test_the_advantage_of_a_linear_operation_is_its_weight_times_its_gradient():
    """Euler: for O = W x, A = <dr/dO, O> = <dr/dW, W>."""
    model = nn.Sequential(Choice({"only": nn.Linear(3, 1, bias=False)}, name="edge"))
    step = Search(model).architecture_step(loss_of)
    search = Search(model)
    with search.space.running({"edge": "only"}):
        loss_of(model).backward()
    parameter = model[0].candidates[0].weight
    assert step.advantages["edge"] == pytest.approx(-(parameter * parameter.grad).sum().item(), rel=1e-5)


@pytest.mark.parametrize(("clip", "moves"), [(1e-3, 1e-4), (None, None)])
def test_theta_gradients_are_clipped_by_their_norm_and_the_norm_is_reported(clip, moves):
    (search,) = alike(1, architecture_clip=clip, annealing=constant)
    before = search.distribution.logits
    step = search.architecture_step(loss_of)
    moved = (search.distribution.logits - before).nan_to_num().norm().item()
    assert moved == pytest.approx(0.1 * step.gradient_norm if moves is None else moves, rel=1e-3)


@pytest.mark.parametrize("name", [name for name in strategies.names() if name != "enas"])  # it moves all together
def test_a_nested_decision_off_the_path_is_not_updated(name):
    adam = partial(torch.optim.Adam, lr=0.1, weight_decay=0.1)
    search = Search(nested(), Recorded(strategies.get(name)), steps=40, architecture_optimizer=adam, seed=1)
    unreached = 0
    for _ in range(40):
        before = search.distribution.logits[1]
        step = take(search, "architecture_step")
        if search.strategy.draws[-1].weights[0, 1] == 0:  # not drawn, or run behind a gate of 0 only
            unreached += 1
            assert torch.equal(before, search.distribution.logits[1])
            assert "inner" not in step.advantages
    assert unreached > 0 or name in ("darts", "snas")


def test_a_choice_that_no_gate_reaches_learns_nothing():
    class Skips(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 1)
            self.choice = Choice({"a": nn.Linear(1, 1), "b": nn.Identity()})
            self.skip = False

        def forward(self, x):
            return self.linear(x) if self.skip else self.choice(self.linear(x))

    search = Search(Skips(), "reinforce")
    search.model.skip = True
    before = search.distribution.logits
    search.architecture_step(loss_of)
    assert torch.equal(before, search.distribution.logits)


@pytest.mark.parametrize("kind", ["architecture_step", "joint_step"])
def test_a_pass_that_comes_to_no_choice_learns_nothing(kind):
    search = Search(network(), "advantage")
    before = search.distribution.logits
    take(search, kind, lambda model: model[0](batch()[0]).square().mean())
    assert torch.equal(before, search.distribution.logits)


def test_a_search_runs_once():
    search = Search(network())
    search.run(task(), epochs=2)
    with pytest.raises(ValueError, match=r"already taken \d+ weight steps.*Make a new Search"):
        search.run(task(), epochs=2)


def test_second_order_asks_for_the_training_loss():
    with pytest.raises(ValueError, match=r"needs the training loss too.*training_loss_of="):
        Search(network(), Darts(second_order=True)).architecture_step(loss_of)


@pytest.mark.parametrize("name", strategies.names())
def test_an_in_place_relu_may_follow_a_choice(name):
    model = nn.Sequential(
        nn.Linear(3, 4),
        Choice({"norm": nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "skip": nn.Identity(), "zero": Zero()}),
        nn.ReLU(inplace=True),
        nn.Linear(4, 1),
    )
    search = Search(model, name, steps=10)
    for _ in range(8):
        take(search, "architecture_step")
        take(search, "joint_step")
    assert search.architecture_steps == 16


# Joint steps


@pytest.mark.parametrize("name", strategies.names())
@pytest.mark.parametrize("make", [network, nested])
def test_a_joint_step_takes_the_weight_step_and_the_architecture_step_of_its_draw(name, make):
    joint, of_weights, of_theta = alike(3, name, make)
    of_weights.policy.strategy = Recorded(of_weights.strategy, Phase.ARCHITECTURE)
    for _ in range(3):
        joint.joint_step(loss_of)
        of_weights.weight_step(loss_of)
        of_theta.architecture_step(loss_of)
        assert same(weights(joint), weights(of_weights))
        assert torch.equal(joint.distribution.logits, of_theta.distribution.logits)
        of_theta.model.load_state_dict(joint.model.state_dict())
        for search in (of_weights, of_theta):
            search.progress.weight_steps, search.progress.architecture_steps = (
                joint.weight_steps,
                joint.architecture_steps,
            )
            search.theta.assign(joint.distribution.logits)
            search.policy.state = joint.policy.state


def test_a_joint_step_counts_for_both_phases_and_reports_theta():
    (search,) = alike(1)
    step = search.joint_step(loss_of)
    assert (search.weight_steps, search.architecture_steps) == (1, 1)
    assert (step.phase, step.number) == ("architecture", 1)
    assert step.advantages.keys() == {"first", "second"}


# Schedules


def test_theta_rests_during_the_warm_up_and_operations_are_drawn_uniformly():
    search = Search(network(), steps=10, warmup=4)
    phases = [search.weight_step(loss_of).phase for _ in range(6)]
    assert phases == ["warmup"] * 4 + ["weights"] * 2
    assert torch.equal(search.distribution.logits, Theta((3, 2)).logits())


@pytest.mark.parametrize(("progress", "factor"), [(0, 1), (0.5, 0.5), (1, 0), (1.5, 0), (1 / 3, 0.75)])
def test_cosine_annealing(progress, factor):
    assert cosine(progress) == pytest.approx(factor)
    assert constant(progress) == 1


def test_both_learning_rates_are_annealed_each_over_its_own_steps():
    search = Search(network(), steps=8, warmup=4, weight_optimizer=SGD, architecture_optimizer=SGD)
    rates = {"weights": [], "theta": []}
    for number in range(8):
        search.weight_step(loss_of)
        rates["weights"].append(search.weights.optimizer.param_groups[0]["lr"])
        if number >= 4:
            search.architecture_step(loss_of)
            rates["theta"].append(search.policy.optimizer.param_groups[0]["lr"])
    assert rates["weights"] == pytest.approx([0.1 * cosine(number / 8) for number in range(8)])
    assert rates["theta"] == pytest.approx([0.1 * cosine(number / 4) for number in range(4)])


def test_rates_stay_where_the_length_of_the_search_is_not_known():
    search = Search(network(), weight_optimizer=SGD)
    search.weight_step(loss_of)
    assert search.weights.optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("name", ["gdas", "snas"])
def test_a_temperature_needs_the_length_of_the_search(name):
    with pytest.raises(ValueError, match=r"must know how long.*Search\(\.\.\., steps=N\)"):
        Search(network(), name).architecture_step(loss_of)


@pytest.mark.parametrize("name", ["gdas", "snas"])
def test_a_search_may_be_continued_past_its_end(name):
    search = Search(network(), Recorded(strategies.get(name)), steps=10)
    seen = []
    draw = search.strategy.draw
    search.strategy.draw = lambda logits, state, phase, progress, generator: (
        seen.append(progress) or draw(logits, state, phase, progress, generator)
    )
    for _ in range(15):
        search.architecture_step(loss_of)
    assert max(seen) <= 1


# What is remembered


def test_process_best_is_the_drawn_architecture_with_the_lowest_loss_so_far():
    search = Search(network(), "random", seed=3)
    steps = [search.architecture_step(partial(loss_of, seed=number)) for number in range(12)]
    best = min(steps, key=lambda step: step.loss)
    assert search.process_best.loss == best.loss
    assert search.process_best.architecture == best.architecture


@pytest.mark.parametrize("strategy", ["darts", "snas", strategies.get("proxyless", both_active=True)])
def test_mixtures_have_no_process_best(strategy):
    search = Search(network(), strategy, steps=10)
    step = search.architecture_step(loss_of)
    assert search.process_best is None
    assert step.architecture is None


def test_the_argmax_is_derived_unless_another_architecture_is_given():
    search = Search(network())
    search.theta.assign(torch.tensor([[0.0, 1.0, 0.0], [0.0, 1.0, -torch.inf]]))
    assert search.argmax() == {"first": "skip", "second": "narrow"}
    assert isinstance(search.derive()[1], nn.Identity)
    assert isinstance(search.derive({"first": "zero", "second": "wide"})[1], Zero)
    fresh = [search.derive(fresh=seed).state_dict() for seed in (1, 1, 2)]
    assert same(fresh[0], fresh[1])
    assert not same(fresh[0], fresh[2])


def test_an_empty_architecture_is_not_the_argmax():
    with pytest.raises(ValueError, match="has no operation at decision 'first'"):
        Search(network()).derive({})


# Randomness


class Noise(nn.Module):
    """Keeps what it drew."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(torch.rand(3).tolist())
        return x


@pytest.mark.parametrize("kind", STEPS)
def test_the_randomness_of_a_step_depends_on_the_seed_and_the_step_alone(kind):
    def noise(seed, disturb):
        search = Search(nn.Sequential(Noise(), *network()), "random", seed=seed)
        for number in range(3):
            if disturb:
                torch.manual_seed(number)
                torch.rand(number)
            before = torch.get_rng_state()
            take(search, kind)
            assert torch.equal(before, torch.get_rng_state())
        return search.model[0].seen

    quiet = noise(1, disturb=False)
    assert noise(1, disturb=True) == quiet
    assert noise(2, disturb=False) != quiet
    assert len({tuple(values) for values in quiet}) == 3


def test_all_passes_of_one_step_see_the_same_randomness():
    search = Search(nn.Sequential(Noise(), *network()), "exact_advantage")
    search.architecture_step(loss_of)
    seen = search.model[0].seen
    assert len(seen) == 3
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("name", strategies.names())
@pytest.mark.parametrize("schedule", ["alternate", "joint"])
def test_equal_seeds_give_equal_searches(name, schedule):
    task = Task([batch(1), batch(2)], [batch(3), batch(4)], lambda model, data: F.mse_loss(model(data[0]), data[1]))
    one, other = alike(2, name, schedule=schedule, seed=5)
    steps = []
    for search in (one, other):
        steps.append([])
        search.run(task, epochs=5, warmup=1, on_step=steps[-1].append)
    assert steps[0] == steps[1]
    assert torch.equal(one.distribution.logits, other.distribution.logits)
    assert same(weights(one), weights(other))


# Mistakes, each with one clear message


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["advantage", "reinforce", "darts", "enas"])
def test_a_loss_that_is_not_finite_changes_nothing_and_is_named(kind, value, name):
    search = Search(network(), name, steps=10)
    take(search, kind)
    before, theta, state = weights(search), search.distribution.logits, dict(search.policy.state)
    counts = search.weight_steps, search.architecture_steps
    with pytest.raises(NonFiniteLoss) as error:
        take(search, kind, lambda model: loss_of(model) * value)
    running = "a mixture of all operations" if name == "darts" else '{"first": "'
    assert f"The loss is {value} in {kind.replace('_', ' ')} 2, running {running}" in str(error.value)
    assert "as they were before this step" in str(error.value)
    assert same(before, weights(search))
    assert torch.equal(theta, search.distribution.logits)
    assert same(state, search.policy.state)
    assert counts == (search.weight_steps, search.architecture_steps)
    take(search, kind)


def infinite_slope(model):
    """Finite, with a gradient that is not."""
    return (loss_of(model) * 0).sqrt()


@pytest.mark.parametrize(
    ("kind", "what"),
    [("weight_step", "the weights"), ("architecture_step", "theta"), ("joint_step", "the weights")],
)
def test_a_gradient_that_is_not_finite_changes_nothing_and_is_named(kind, what):
    search = Search(network())
    before, theta, state = weights(search), search.distribution.logits, dict(search.policy.state)
    message = (
        rf"gradient of {what} has norm nan in {kind.replace('_', ' ')} 1, running \{{\"first\": .*before this step"
    )
    with pytest.raises(NonFiniteLoss, match=message):
        take(search, kind, infinite_slope)
    assert same(before, weights(search))
    assert torch.equal(theta, search.distribution.logits)
    assert same(state, search.policy.state)


class Blind(nn.Module):
    """Lets the gates feel a gradient that is not finite, but no weight."""

    def forward(self, x):
        return x.detach()


def test_a_joint_step_whose_theta_gradient_is_not_finite_is_named_as_such():
    search = Search(nn.Sequential(nn.Linear(3, 1), Blind(), Choice({"a": nn.Identity()}, name="edge")))
    with pytest.raises(NonFiniteLoss, match="in joint step 1"):
        search.joint_step(infinite_slope)


def test_a_further_pass_that_is_not_finite_is_named_once():
    search = Search(nn.Sequential(Choice({"a": Scale(1)}, name="edge")), "exact_advantage")
    with pytest.raises(NonFiniteLoss) as error:  # without the operation, log 0
        search.architecture_step(lambda model: model(torch.ones(1)).log().sum())
    assert str(error.value).count("architecture step 1") == 1


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize(
    ("loss", "got"),
    [
        (lambda model: model(batch()[0]), r"torch\.Size\(\[8, 1\]\)"),
        (lambda model: loss_of(model)[None], r"torch\.Size\(\[1\]\)"),
        (lambda model: loss_of(model).item(), "float"),
        (lambda model: None, "NoneType"),
    ],
    ids=["vector", "list of one", "float", "nothing"],
)
def test_a_loss_that_is_no_scalar_is_refused(kind, loss, got):
    with pytest.raises(ValueError, match=rf"must be a tensor with one number, got {got}.*F\.cross_entropy"):
        take(Search(network()), kind, loss)


@pytest.mark.parametrize("kind", STEPS)
def test_candidates_of_different_shapes_are_named_when_a_layer_after_them_crashes(kind):
    choice = Choice({"bad": nn.Linear(3, 2), "good": nn.Linear(3, 4)}, name="edge")
    search = Search(nn.Sequential(choice, nn.Linear(4, 1)), "nasp")
    message = r"choice 'edge' 'bad' returned \(8, 2\), 'good' returned \(8, 4\) for the same input"
    with pytest.raises(ValueError, match=message):
        take(search, kind)


def test_candidates_of_different_shapes_are_named_when_nothing_crashes():
    search = Search(nn.Sequential(Choice({"a": nn.Linear(3, 2), "b": nn.Linear(3, 4)}, name="edge")), "random")
    message = r"choice 'edge' '(a|b)' returned \(8, \d\), '(a|b)' returned \(8, \d\)"
    with pytest.raises(ValueError, match=message):
        [search.weight_step(lambda model: model(batch()[0]).mean()) for _ in range(20)]


def test_another_error_of_the_model_is_told_where_it_happened():
    def crash(model):
        raise ValueError("labels out of range")

    with pytest.raises(ValueError, match="labels out of range") as error:
        Search(network()).weight_step(crash)
    assert 'weight step 1, running {"first": "' in error.value.__notes__[0]


@pytest.mark.parametrize("value", [-1, 1.5, "1", None, True])
@pytest.mark.parametrize(
    ("name", "least"), [("seed", 0), ("steps", 1), ("warmup", 0)], ids=["seed", "steps", "warmup"]
)
def test_counts_are_whole_numbers(name, least, value):
    if (name, value) == ("steps", None):
        return
    with pytest.raises(ValueError, match=rf"{name} must be .* integer.*, got {value!r}"):
        Search(network(), **{name: value})


def test_a_warm_up_that_is_no_number_is_named_also_next_to_steps():
    with pytest.raises(ValueError, match="warmup must be an integer of at least 0, got '2'"):
        Search(network(), steps=10, warmup="2")


def test_a_count_says_what_it_should_be():
    assert check_count("seed", 0, least=0) == 0
    with pytest.raises(ValueError, match="epochs must be a positive integer, got 0"):
        check_count("epochs", 0)
    with pytest.raises(ValueError, match="seed must be an integer of at least 0, got -1"):
        check_count("seed", -1, least=0)


def test_any_seed_that_torch_takes_will_do():
    search = Search(network(), seed=2**60)
    search.weight_step(loss_of)
    assert search.weight_steps == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"strategy": "advantge"},
            r"no strategy 'advantge' \(did you mean 'advantage'\?\)\. Choose one of contrast, exact_contrast,",
        ),
        ({"schedule": "alternating"}, "schedule must be 'alternate' or 'joint', got 'alternating'"),
        ({"steps": 5, "warmup": 5}, "warmup must leave steps for theta: it is 5 of 5"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Search(network(), **options)


def test_a_strategy_class_instead_of_an_object_is_refused():
    with pytest.raises(TypeError, match=r"Advantage\(\)"):
        Search(network(), Advantage)


# run()


def task(training=2, validation=2):
    batches = [batch(seed) for seed in range(training + validation)]
    return Task(batches[:training], batches[training:], lambda model, data: F.mse_loss(model(data[0]), data[1]))


def test_run_alternates_weight_and_architecture_steps_after_the_warm_up():
    search, steps = Search(network()), []
    answer = search.run(task(training=3), epochs=3, warmup=1, on_step=steps.append)
    assert [step.phase for step in steps] == ["warmup"] * 3 + ["weights", "architecture"] * 6
    assert [step.number for step in steps if step.phase == "architecture"] == list(range(1, 7))
    assert answer == search.argmax()


def test_a_joint_run_takes_one_step_a_minibatch():
    search, steps = Search(network(), schedule="joint"), []
    search.run(task(), epochs=2, warmup=1, on_step=steps.append)
    assert [step.phase for step in steps] == ["warmup"] * 2 + ["architecture"] * 2


def test_run_uses_the_training_data_for_weights_and_the_validation_data_for_theta():
    seen = []

    def loss(model, data):
        seen.append(data)
        return model(torch.ones(1, 3)).mean()

    Search(network()).run(Task(["train 1", "train 2"], ["valid 1", "valid 2", "valid 3"], loss), epochs=2)
    assert seen == ["train 1", "valid 1", "train 2", "valid 2", "train 1", "valid 3", "train 2", "valid 1"]


def test_a_folder_gets_one_line_a_step_and_the_result(tmp_path):
    search, steps = Search(network(), seed=1), []
    search.run(task(), epochs=3, warmup=1, folder=tmp_path / "run", on_step=steps.append)
    lines = list(read_journal(tmp_path / "run" / "metrics.jsonl"))
    assert [line["phase"] for line in lines] == [step.phase for step in steps]
    for line in lines:
        assert line.keys() == {
            "phase",
            "number",
            "loss",
            "entropy",
            "architecture",
            "advantages",
            "gradient_norm",
            "contrasts",
            "limits",
        }
        assert math.isfinite(line["loss"])
        assert 0 < line["entropy"] <= (math.log(3) + math.log(2)) / 2 + 1e-6
        of_theta = line["phase"] == "architecture"
        assert line["advantages"].keys() == ({"first", "second"} if of_theta else set())
        assert (line["gradient_norm"] is not None) is of_theta
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["argmax"] == dict(search.argmax())
    assert result["process_best"]["loss"] == search.process_best.loss
    assert result["process_best"]["architecture"] == dict(search.process_best.architecture)
    assert result["probabilities"].keys() == {"first", "second"}
    assert result["probabilities"]["second"].keys() == {"wide", "narrow"}
    assert sum(result["probabilities"]["second"].values()) == pytest.approx(1)


def test_the_entropy_is_that_of_theta_after_the_step():
    search = Search(network(), architecture_optimizer=partial(torch.optim.SGD, lr=10.0))
    for _ in range(5):
        step = search.architecture_step(loss_of)
        assert step.entropy == pytest.approx(search.distribution.entropy().mean().item())
    assert step.entropy < (math.log(3) + math.log(2)) / 2 - 1e-3


def test_a_folder_that_already_holds_a_search_is_refused_and_left_alone(tmp_path):
    Search(network()).run(task(), epochs=1, folder=tmp_path)
    before = (tmp_path / "metrics.jsonl").read_text()
    with pytest.raises(FileExistsError, match=r"already holds .* Give another folder, or resume=True"):
        Search(network()).run(task(), epochs=1, folder=tmp_path)
    assert (tmp_path / "metrics.jsonl").read_text() == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_failing_search_closes_its_journal(tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(
        "advnas.search.recorder.Journal.close", lambda journal: closed.append(journal._file.close())
    )
    with pytest.raises(NonFiniteLoss):
        Search(network()).run(
            Task([batch()], [batch()], lambda model, data: loss_of(model) * math.nan), epochs=1, folder=tmp_path
        )
    gc.collect()
    assert closed


class Unsized(IterableDataset):
    def __iter__(self):
        return iter([batch()])


@pytest.mark.parametrize(
    ("training", "got"), [(DataLoader(Unsized()), "DataLoader"), (Unsized(), "Unsized"), ([], "list")]
)
def test_training_data_without_a_length_are_refused(training, got):
    with pytest.raises(ValueError, match=rf"must know the number of training minibatches, got {got}.*DataLoader"):
        Search(network()).run(Task(training, [batch()], loss_of), epochs=1)


def test_validation_data_that_are_empty_are_refused():
    with pytest.raises(ValueError, match="validation data are empty"):
        Search(network()).run(Task(task().training, [], task().loss), epochs=1)


@pytest.mark.parametrize("value", [0, -1, 2.0, "3", True])
def test_epochs_are_a_positive_whole_number(value):
    with pytest.raises(ValueError, match=rf"epochs must be a positive integer, got {value!r}"):
        Search(network()).run(task(), epochs=value)


@pytest.mark.parametrize(
    ("warmup", "message"), [(-1, "warmup must be an integer"), (2, "must leave epochs for theta")]
)
def test_a_warm_up_must_leave_epochs_for_theta(warmup, message):
    with pytest.raises(ValueError, match=message):
        Search(network()).run(task(), epochs=2, warmup=warmup)


# Stopping and going on


def steps_of(search, count):
    for number in range(count):
        search.turn(partial(loss_of, seed=2 * number), lambda number=number: partial(loss_of, seed=2 * number + 1))


@pytest.mark.parametrize("schedule", ["alternate", "joint"])
@pytest.mark.parametrize("make", [network, nested])
@pytest.mark.parametrize("name", strategies.names())
def test_a_restored_search_goes_on_bit_for_bit(tmp_path, name, make, schedule):
    options = {"steps": 12, "warmup": 2, "schedule": schedule}
    whole, stopped, resumed = alike(3, name, make, **options)
    steps_of(whole, 5)
    steps_of(stopped, 5)
    save_state(tmp_path / "state.pt", stopped.state())
    resumed.restore(load_state(tmp_path / "state.pt"))
    steps_of(stopped, 1)  # a state is not tied to the search that gave it
    for search in (whole, resumed):
        steps_of(search, 5)
    assert torch.equal(whole.theta.logits(), resumed.theta.logits())
    assert all(map(torch.equal, whole.model.state_dict().values(), resumed.model.state_dict().values()))
    assert whole.process_best == resumed.process_best
    assert (whole.weight_steps, whole.architecture_steps) == (resumed.weight_steps, resumed.architecture_steps)


def test_searches_can_start_from_one_warm_up():
    warm, first, second = alike(3, "random", steps=12, warmup=4)
    steps_of(warm, 4)
    weights = warm.state()["weights"]
    for search in (first, second):
        search.load_weights(weights)
        steps_of(search, 2)
    assert (first.weight_steps, first.architecture_steps) == (6, 2)
    assert all(map(torch.equal, first.model.state_dict().values(), second.model.state_dict().values()))
    assert not torch.equal(first.model[0].weight, warm.model[0].weight)


def test_probabilities_are_told_by_name():
    search = Search(network())
    assert search.probabilities()["second"] == {"wide": 0.5, "narrow": 0.5}
    assert sum(search.probabilities()["first"].values()) == pytest.approx(1)


def shuffled():
    x, y = batch(size=24)
    loader = DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True)
    return Task(loader, DataLoader(TensorDataset(x, y), batch_size=9, shuffle=True), task().loss)


class Crash(Exception):
    pass


def after(count, act):
    """Does something in the step of this number, counted from 1."""
    steps = itertools.count(1)

    def on_step(step):
        if next(steps) == count:
            act()

    return on_step


def crash():
    raise Crash


@pytest.mark.parametrize("schedule", ["alternate", "joint"])
@pytest.mark.parametrize("name", ["advantage", "parsec", "darts"])
def test_a_search_that_crashed_goes_on_bit_for_bit_from_its_last_epoch(tmp_path, name, schedule):
    whole, crashed, resumed = alike(3, name, schedule=schedule)
    whole.run(shuffled(), epochs=4, warmup=1, folder=tmp_path / "whole")
    with pytest.raises(Crash):
        crashed.run(shuffled(), epochs=4, warmup=1, folder=tmp_path / "run", on_step=after(10, crash))
    torch.manual_seed(99)  # whatever happened in between
    resumed.run(shuffled(), epochs=4, warmup=1, folder=tmp_path / "run", resume=True)
    for file in ("metrics.jsonl", "result.json"):
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    assert all(map(torch.equal, whole.model.state_dict().values(), resumed.model.state_dict().values()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_step_finish_and_saves_also_within_an_epoch(tmp_path, number):
    whole, stopped, resumed = alike(3)
    whole.run(shuffled(), epochs=3, folder=tmp_path / "whole")
    before, ask = signal.getsignal(number), partial(os.kill, os.getpid(), number)
    with pytest.raises(SearchStopped, match=r"stopped after 6 turns and saved.*resume=True"):
        stopped.run(shuffled(), epochs=3, folder=tmp_path / "run", on_step=after(11, ask))
    assert signal.getsignal(number) is before
    assert (stopped.weight_steps, stopped.architecture_steps) == (6, 6)
    resumed.run(shuffled(), epochs=3, folder=tmp_path / "run", resume=True)
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()
    assert torch.equal(whole.theta.logits(), resumed.theta.logits())


def test_a_second_interrupt_does_not_wait(tmp_path):
    def interrupt_twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as error:
        Search(network()).run(shuffled(), epochs=3, folder=tmp_path, on_step=after(3, interrupt_twice))
    assert not isinstance(error.value, SearchStopped)


def test_a_finished_search_gives_its_answer_again(tmp_path):
    first, again = alike(2)
    answer = first.run(shuffled(), epochs=2, folder=tmp_path)
    assert again.run(shuffled(), epochs=2, folder=tmp_path, resume=True) == answer
    assert again.weight_steps == 8


def test_resuming_in_an_empty_folder_starts_a_search(tmp_path):
    Search(network()).run(shuffled(), epochs=1, folder=tmp_path, resume=True)
    assert len(list(read_journal(tmp_path / "metrics.jsonl"))) == 8


@pytest.mark.parametrize(
    ("options", "epochs", "message"),
    [
        ({}, 1, "steps is 4 now and was 8"),
        ({"seed": 1}, 2, "seed is 1 now and was 0"),
        ({"schedule": "joint"}, 2, "schedule is joint now and was alternate"),
        ({"strategy": "gdas"}, 2, "strategy is Gdas"),
    ],
)
def test_a_changed_search_is_refused_by_name(tmp_path, options, epochs, message):
    Search(network()).run(shuffled(), epochs=2, folder=tmp_path)
    with pytest.raises(ValueError, match=message):
        Search(network(), **options).run(shuffled(), epochs=epochs, folder=tmp_path, resume=True)


def test_each_step_of_a_run_is_told_before_the_next_is_taken():
    search = Search(nn.Sequential(nn.Linear(2, 2), Choice({"a": nn.Identity(), "b": nn.Tanh()})), "random")
    seen = []
    task = Task([torch.ones(3, 2)] * 2, [torch.ones(3, 2)], lambda model, batch: model(batch).square().mean())
    search.run(task, epochs=1, on_step=lambda step: seen.append((step.phase, search.architecture_steps)))
    assert seen == [("weights", 0), ("architecture", 1), ("weights", 1), ("architecture", 2)]
