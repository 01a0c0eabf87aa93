import math

import pytest
import torch

from advnas.strategies.snas import Snas
from advnas.strategies.strategy import Phase

# Many searches side by side, so that in some of them two operations are nearly tied.
LOGITS = torch.tensor([[0.0, 0.7, -0.4], [1.0, 1.0, -torch.inf]]).expand(100, 2, 3)


@pytest.mark.parametrize(
    ("progress", "temperature"),
    [(0.0, 1.0), (0.5, 0.5), (0.75, (1 - math.sqrt(0.5)) / 2), (0.95, 0.03), (1.0, 0.03)],
)
@pytest.mark.parametrize("phase", Phase)
def test_the_mixture_is_a_concrete_draw_whose_temperature_stops_at_its_floor(progress, temperature, phase):
    drawn = Snas().draw(LOGITS, {}, phase, progress, torch.Generator().manual_seed(3))
    gumbel = -torch.empty_like(LOGITS).exponential_(generator=torch.Generator().manual_seed(3)).log()
    assert torch.allclose(drawn.weights, ((LOGITS + gumbel) / temperature).softmax(-1), atol=1e-5)
    assert torch.equal(drawn.active, LOGITS.isfinite())


def test_the_gradient_goes_through_the_draw_and_is_finite_at_the_coldest(feedback, generator):
    logits = LOGITS.clone().requires_grad_()
    drawn = Snas().draw(logits, {}, Phase.ARCHITECTURE, 1.0, generator)
    slope = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).expand(100, 2, 3)
    gradient, _ = Snas().gradient(feedback(slope=slope), drawn, logits, {})
    a = drawn.weights.detach()
    assert torch.allclose(gradient, a * (-slope + (a * slope).sum(-1, keepdim=True)) / 0.03, atol=1e-4)
    assert gradient.isfinite().all()
