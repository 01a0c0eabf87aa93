import pytest
import torch
from torch import nn

from advnas import Choice, Draw, Search
from advnas.strategies.gdas import Gdas
from advnas.strategies.strategy import Phase

LOGITS = torch.tensor([[0.0, 0.7, -0.4], [1.0, 1.0, -torch.inf]])


def draw(generator, progress, logits=LOGITS):
    return Gdas().draw(logits, {}, Phase.ARCHITECTURE, progress, generator)


def test_the_forward_pass_is_hard_and_the_gradient_soft(generator, feedback):
    logits = LOGITS.clone().requires_grad_()
    drawn = draw(generator, 0.5, logits)
    assert drawn.one_hot
    assert torch.equal(drawn.active, drawn.weights != 0)
    slope = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    gradient, _ = Gdas().gradient(feedback(slope=slope), drawn, logits, {})

    noise = torch.Generator().manual_seed(0)
    temperature = 10 - 0.5 * 9.9
    gumbel = -torch.empty_like(LOGITS).exponential_(generator=noise).log()
    again = LOGITS.clone().requires_grad_()
    soft = ((again + gumbel) / temperature).softmax(-1)
    (expected,) = torch.autograd.grad(-(soft * slope).sum(), again)
    assert torch.allclose(gradient, expected, atol=1e-6)
    assert gradient[1, 2] == 0


@pytest.mark.parametrize(("progress", "temperature"), [(0.0, 10.0), (0.5, 5.05), (1.0, 0.1)])
def test_the_temperature_falls_linearly_from_10_to_a_tenth(progress, temperature, feedback):
    """A gradient through a softmax of two equal logits and no noise but the draw's: compare with autograd."""
    logits = torch.zeros(1, 2, requires_grad=True)
    drawn = draw(torch.Generator().manual_seed(1), progress, logits)
    gradient, _ = Gdas().gradient(feedback(slope=[[1.0, 0.0]]), drawn, logits, {})
    gumbel = -torch.empty(1, 2).exponential_(generator=torch.Generator().manual_seed(1)).log()
    share = (gumbel / temperature).softmax(-1)[0, 0].item()
    assert gradient[0, 0].item() == pytest.approx(-share * (1 - share) / temperature, rel=1e-4, abs=1e-9)


def test_the_slope_of_an_operation_that_was_not_run_is_the_sum_of_the_outputs_slope():
    """It enters the sum as the constant a_ik, so dloss/da_ik = sum(dloss/dO_i)."""
    model = nn.Sequential(Choice({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)}), nn.Linear(3, 1))
    search, slopes = Search(model, "gdas", steps=10), []
    gradient = Gdas.gradient

    class Spy(Gdas):
        def gradient(self, feedback, draw, logits, state):
            slopes.append((feedback.slope, draw))
            return gradient(self, feedback, draw, logits, state)

    search.policy.strategy = Spy()
    outputs = []

    def loss_of(model):
        outputs.append(model[0](torch.ones(2, 3)))
        return model[1](outputs[-1]).square().sum()

    search.architecture_step(loss_of)
    ((slope, drawn),) = slopes
    output = outputs[0].detach().requires_grad_()
    (of_output,) = torch.autograd.grad(model[1](output).square().sum(), output)
    assert slope[~drawn.active].item() == pytest.approx(of_output.sum().item(), rel=1e-5)
    assert slope[drawn.active].item() == pytest.approx((of_output * output).sum().item(), rel=1e-5)


def test_weights_are_trained_without_a_relaxation(generator):
    for phase in (Phase.WARMUP, Phase.WEIGHTS):
        drawn = Gdas().draw(LOGITS, {}, phase, None, generator)
        assert isinstance(drawn, Draw)
        assert drawn.one_hot
        assert not drawn.constants
