from functools import partial

import pytest
import torch

from advnas import Draw
from advnas.randomness import generator
from advnas.search import Policy
from advnas.search.step import NonFinite
from advnas.strategies import Feedback, Phase
from advnas.strategies.advantage import Advantage


class OfFirst(Advantage):
    """Always draws the first operation."""

    def draw(self, logits, state, phase, progress, generator):
        return Draw.gated(torch.eye(logits.shape[-1])[:1].expand(logits.shape))


def policy(searches, clip=None):
    return Policy(
        OfFirst(zero_rule=False),
        (2,),
        torch.zeros(1, 2, dtype=torch.bool),
        optimizer=partial(torch.optim.SGD, lr=1.0),
        generator=generator(0),
        clip=clip,
        batch=(searches,),
    )


def feedback(slopes, losses):
    return Feedback(loss=losses, slope=slopes, reached=torch.tensor([True]), probe=None, unrolled=None)


def test_searches_side_by_side_are_clipped_each_by_its_own_norm():
    slopes, moves = torch.tensor([[[1.0, -1.0]], [[100.0, -100.0]]]), []
    for rows in ([0], [0, 1]):
        learner = policy(len(rows), clip=0.1)
        learner.learn(feedback(slopes[rows], torch.zeros(len(rows))), learner.draw(Phase.ARCHITECTURE, None), None)
        moves.append(learner.distribution.logits[0])
    assert torch.allclose(*moves)


def test_a_gradient_whose_square_overflows_is_clipped_like_any_other():
    learner = policy(1, clip=0.1)
    draw = learner.draw(Phase.ARCHITECTURE, None)
    update = learner.learn(feedback(torch.tensor([[[1e25, -1e25]]]), torch.zeros(1)), draw, None)
    assert update.norm == pytest.approx(1e25 * 2**-0.5, rel=1e-6)
    assert (learner.distribution.logits[0] - learner.distribution.logits[0].mean()).norm().item() == pytest.approx(
        0.1
    )


@pytest.mark.parametrize(("slope", "clip"), [(1e25, None), (torch.inf, 0.1)])
def test_a_gradient_that_an_optimiser_cannot_square_is_refused(slope, clip):
    learner = policy(1, clip=clip)
    draw = learner.draw(Phase.ARCHITECTURE, None)
    with pytest.raises(NonFinite, match="gradient of theta"):
        learner.learn(feedback(torch.tensor([[[slope, 0.0]]]), torch.zeros(1)), draw, None)


def test_searches_side_by_side_remember_each_its_own_best():
    learner = policy(2)
    assert not learner.has_best
    for losses in ([1.0, 5.0], [2.0, 4.0]):
        draw = learner.draw(Phase.ARCHITECTURE, None)
        learner.learn(feedback(torch.zeros(2, 1, 2), torch.tensor(losses)), draw, None)
    assert learner.has_best
    assert learner.best_loss.tolist() == [1.0, 4.0]
