import itertools

import pytest
import torch

from advnas import Distribution, Draw
from advnas.strategies.proxyless import Proxyless
from advnas.strategies.strategy import Phase

LOGITS = torch.tensor([[0.0, 0.7, -0.4]])
DRAWS = 20_000


def draw(generator, phase=Phase.ARCHITECTURE, logits=LOGITS, **options):
    return Proxyless(**options).draw(logits, {}, phase, None, generator)


def test_two_operations_are_drawn_without_replacement_with_the_exact_pair_distribution(generator):
    p = Distribution(LOGITS).probabilities[0].tolist()
    drawn = draw(generator, logits=LOGITS.expand(DRAWS, 1, 3))
    assert (drawn.active.sum(-1) == 2).all()
    for j, k in itertools.combinations(range(3), 2):
        frequency = (drawn.active[:, 0, j] & drawn.active[:, 0, k]).float().mean().item()
        assert frequency == pytest.approx(p[j] * p[k] * (1 / (1 - p[j]) + 1 / (1 - p[k])), abs=0.01)


def test_the_active_one_of_a_pair_is_drawn_from_the_softmax_of_the_two(generator):
    p = Distribution(LOGITS).probabilities[0]
    drawn = draw(generator, logits=LOGITS.expand(DRAWS, 1, 3))
    assert drawn.one_hot
    for j, k in itertools.combinations(range(3), 2):
        pair = drawn.active[:, 0, j] & drawn.active[:, 0, k]
        assert drawn.weights[pair, 0, j].mean().item() == pytest.approx((p[j] / (p[j] + p[k])).item(), abs=0.03)


def test_weights_are_trained_one_operation_at_a_time(generator):
    for phase in (Phase.WARMUP, Phase.WEIGHTS):
        drawn = draw(generator, phase)
        assert drawn.one_hot
        assert drawn.active.sum() == 1
        assert not drawn.weights.requires_grad


def test_both_active_opens_both_gates(generator):
    drawn = draw(generator, both_active=True)
    assert torch.equal(drawn.weights, drawn.active.float())
    assert drawn.weights.requires_grad
    assert not drawn.one_hot


def test_a_decision_with_one_candidate_runs_that_one(generator):
    drawn = draw(generator, logits=torch.tensor([[1.0, -torch.inf, -torch.inf], [1.0, 1.0, 1.0]]))
    assert drawn.active[0].tolist() == [True, False, False]
    assert drawn.active[1].sum() == 2


def test_the_gradient_is_that_of_the_two_way_softmax(feedback):
    """sum_m dr/dg_m p_m (1[m = j] - p_j), by autograd."""
    active = torch.tensor([[True, False, True]])
    slope = torch.tensor([[0.3, 5.0, -0.8]])  # loss; the middle one was not run
    pair = LOGITS[0, [0, 2]].clone().requires_grad_()
    (expected,) = torch.autograd.grad(-(pair.softmax(0) * slope[0, [0, 2]]).sum(), pair)
    gradient, _ = Proxyless().gradient(
        feedback(slope=slope), Draw(torch.tensor([[1.0, 0.0, 0.0]]), active), LOGITS, {}
    )
    assert torch.allclose(gradient[0, [0, 2]], expected)
    assert gradient[0, 1] == 0


def test_projection_keeps_the_pairs_total_probability_and_leaves_the_others_untouched():
    active = torch.tensor([[True, False, True]])
    after = torch.tensor([[0.9, 123.0, -1.1]])  # the optimiser moved the third one too
    projected = Proxyless().project(LOGITS, after, Draw(active.float(), active), {})
    before_p, after_p = (Distribution(logits).probabilities[0] for logits in (LOGITS, projected))
    assert after_p[0] + after_p[2] == pytest.approx((before_p[0] + before_p[2]).item())
    assert after_p[1] == pytest.approx(before_p[1].item())
    assert projected[0, 1] == LOGITS[0, 1]
    assert projected[0, 0] - projected[0, 2] == pytest.approx(2.0)  # the step itself is kept
