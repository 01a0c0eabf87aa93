import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from advnas import Draw, SearchSpace
from advnas.randomness import generator
from advnas.spaces.toy_regression import FILTER, MAP, SIDE, STRIDE, ToyRegression
from advnas.tasks.teacher_regression import HeldOut, TeacherRegression

TRIALS, DECISIONS, CANDIDATES = 3, 4, 5
SHAPE = (TRIALS, DECISIONS, CANDIDATES)


def small(**options):
    return TeacherRegression(
        **{"trials": TRIALS, "decisions": DECISIONS, "candidates": CANDIDATES, "batch": 6, "seed": 3, **options}
    )


def one_hot(seed=0):
    chosen = torch.randint(CANDIDATES, SHAPE[:2], generator=generator(seed))
    return F.one_hot(chosen, CANDIDATES).float()


def mixture():
    return torch.rand(SHAPE, generator=generator(1)).softmax(-1)


def attached(hard):
    """One-hot in value, as GDAS has it: the weights of the others are constants with a slope."""
    return Draw(hard.clone().requires_grad_(), hard != 0, constants=True)


def pair():
    """One operation with gate 1 and another one with gate 0, as ProxylessNAS has it."""
    first = one_hot()
    return Draw(first.clone().requires_grad_(), (first + first.roll(1, -1)) != 0)


DRAWS = {
    "one-hot": lambda: Draw.gated(one_hot()),
    "bare": lambda: Draw.bare(one_hot()),
    "pair": pair,
    "both": lambda: Draw((one_hot() + one_hot().roll(1, -1)).requires_grad_(), pair().active),
    "mixture": lambda: Draw(mixture().requires_grad_(), torch.ones(SHAPE, dtype=torch.bool)),
    "binary point": lambda: Draw(one_hot().requires_grad_(), torch.ones(SHAPE, dtype=torch.bool)),
    "knocked out": lambda: list(Draw.bare(one_hot()).knock_outs())[2],
    "constants": lambda: attached(one_hot()),
    "constants that are not 0": lambda: Draw(mixture().requires_grad_(), one_hot() != 0, constants=True),
}


def networks(task):
    """The plain network of every trial, with its weights."""
    for filters, readouts in zip(task.filters, task.readouts, strict=True):
        network = ToyRegression(DECISIONS, CANDIDATES, generator=torch.Generator())
        for row, edge in zip(filters, network.edges, strict=True):
            for kernel, candidate in zip(row, edge.candidates, strict=True):
                candidate[0].weight.data.copy_(kernel)
        for values, readout in zip(readouts, network.readouts, strict=True):
            readout.weight.data.copy_(values.reshape(1, 1, MAP, MAP))
        yield network


def images(minibatch):
    """The inputs, put together again from their patches: [trials, batch, 1, 13, 13]."""
    trials, size = minibatch.targets.shape
    patches = minibatch.patches.reshape(trials, size, MAP, MAP, FILTER, FILTER)
    whole = torch.full((trials, size, 1, SIDE, SIDE), torch.nan)
    for row in range(MAP):
        for column in range(MAP):
            down, right = row * STRIDE, column * STRIDE
            whole[:, :, 0, down : down + FILTER, right : right + FILTER] = patches[:, :, row, column]
    return whole


@pytest.mark.parametrize("kind", DRAWS)
def test_losses_and_slopes_are_those_of_the_plain_network_trial_by_trial(kind):
    task, draw = small(), DRAWS[kind]()
    minibatch = task.minibatch()
    losses = task.loss(draw, minibatch)
    assert losses.shape == (TRIALS,)
    if draw.weights.requires_grad:
        (slopes,) = torch.autograd.grad(losses.sum(), draw.weights)
    rows = zip(networks(task), draw, images(minibatch), minibatch.targets, losses, strict=True)
    for trial, (network, alone, x, y, loss) in enumerate(rows):
        weights = alone.weights.detach().requires_grad_(draw.weights.requires_grad)
        with SearchSpace(network).running(Draw(weights, alone.active, alone.constants)):
            expected = F.mse_loss(network(x), y)
        assert torch.allclose(loss, expected, rtol=1e-4, atol=1e-7)
        if draw.weights.requires_grad:
            (slope,) = torch.autograd.grad(expected, weights)
            assert slope.any()
            assert torch.allclose(slopes[trial], slope, rtol=1e-4, atol=1e-6)


def test_inputs_are_uniform_between_minus_1_and_1_and_new_every_time():
    task = small()
    one, other = (images(task.minibatch(200)) for _ in range(2))
    assert one.shape == (TRIALS, 200, 1, SIDE, SIDE)
    assert one.abs().max() <= 1
    assert one.mean().abs() < 0.01
    assert one.square().mean().item() == pytest.approx(1 / 3, abs=0.01)
    assert not torch.equal(one, other)
    assert not torch.equal(one[0], one[1])


def test_the_targets_are_the_answers_of_the_teachers():
    task = small()
    minibatch = task.minibatch()
    for network, teacher, x, y in zip(
        networks(task), task.teacher, images(minibatch), minibatch.targets, strict=True
    ):
        with SearchSpace(network).running(Draw.bare(teacher)):
            assert torch.allclose(network(x), y, atol=1e-6)


@pytest.mark.parametrize("draw", [Draw.bare, Draw.gated, attached])
def test_the_teacher_has_loss_0_exactly(draw):
    task = small()
    for _ in range(3):
        assert task.loss(draw(task.teacher), task.minibatch()).tolist() == [0.0] * TRIALS
    other = task.teacher.roll(1, -1)
    assert (task.loss(draw(other), task.minibatch()) > 0).all()


def test_a_trial_is_the_same_however_many_there_are():
    few, many = small(trials=2), small(trials=7)
    assert torch.equal(few.filters, many.filters[:2])
    assert torch.equal(few.readouts, many.readouts[:2])
    assert torch.equal(few.teacher, many.teacher[:2])
    for _ in range(2):
        one, other = few.minibatch(), many.minibatch()
        assert torch.equal(one.patches, other.patches[:2])
        assert torch.allclose(one.targets, other.targets[:2], atol=1e-6)


def test_seeds_and_trials_have_their_own_teachers():
    one, other = small(), small(seed=4)
    assert not torch.equal(one.filters, other.filters)
    assert not torch.equal(one.filters[0], one.filters[1])
    assert torch.equal(one.filters, small().filters)
    assert one.shape == SHAPE
    assert (one.teacher.sum(-1) == 1).all()


def test_only_active_filters_are_evaluated():
    task = small()
    minibatch = task.minibatch()

    def operations(draw):
        with FlopCounterMode(display=False) as counter:
            task.loss(draw, minibatch)
        return counter.get_total_flops()

    alone = operations(Draw.bare(one_hot()))
    assert alone > 0
    assert operations(pair()) == 2 * alone
    assert operations(DRAWS["mixture"]()) == CANDIDATES * alone
    assert operations(attached(one_hot(1))) == alone


def test_probing_gives_the_loss_of_every_draw():
    task, draw = small(), Draw.bare(one_hot())
    minibatch = task.minibatch()
    losses = task.probe(draw.knock_outs(), minibatch)
    assert losses.shape == (DECISIONS, TRIALS)
    for loss, alone in zip(losses, draw.knock_outs(), strict=True):
        assert torch.equal(loss, task.loss(alone, minibatch))
    assert (losses != task.loss(draw, minibatch)).all()


def test_what_is_remembered_belongs_to_one_minibatch_and_one_set_of_filters():
    task = small()
    one, other = task.minibatch(), task.minibatch()
    draws = [Draw.bare(one_hot()), Draw.bare(one_hot(1))]
    mixed = [task.loss(draw, minibatch) for minibatch in (one, other) for draw in draws]
    fresh = []
    for minibatch in range(2):
        for draw in draws:
            task = small()
            fresh.append(task.loss(draw, [task.minibatch(), task.minibatch()][minibatch]))
    assert all(torch.equal(a, b) for a, b in zip(mixed, fresh, strict=True))


# Test losses


def test_held_out_losses_are_those_of_a_minibatch_of_that_size():
    held_out = HeldOut(small(), 20)
    twin = small()
    minibatch = twin.minibatch(20)
    for chosen in (one_hot(0), one_hot(1)):
        assert torch.allclose(held_out.loss(chosen), twin.loss(Draw.bare(chosen), minibatch), rtol=1e-4)


def test_the_held_out_loss_of_the_teacher_is_0_exactly():
    task = small()
    assert HeldOut(task, 20).loss(task.teacher).tolist() == [0.0] * TRIALS
