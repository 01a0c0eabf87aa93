import pytest
import torch

from advnas import Choice, Distribution, Draw, Search
from advnas.strategies.exact_contrast import ExactContrast
from advnas.strategies.strategy import Phase

LOGITS = torch.tensor([[0.0, 1.0], [0.5, 0.0]])


def loss(draw):
    """Two decisions that only count together, and a cost for each operation."""
    outputs = (draw.weights * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum(-1)
    return outputs.prod(-1) + outputs.sum(-1)


def test_the_gain_of_a_rival_is_measured_with_the_other_decisions_as_they_are(feedback):
    chosen = torch.tensor(
        [[0.0, 1.0], [1.0, 0.0]]
    )  # outputs 2 and 3: loss 11; with the rivals 1, 3: 7 and 2, 4: 14
    draw = Draw.bare(chosen, rivals=1 - chosen)
    gradient, state = ExactContrast().gradient(feedback(loss=loss(draw), decisions=2, probe=loss), draw, LOGITS, {})
    others = 1 - (Distribution(LOGITS).probabilities * chosen).sum(-1, keepdim=True)
    gains = torch.tensor([[11.0 - 7.0], [11.0 - 14.0]])
    torch.testing.assert_close(gradient, 0.5 * others * gains * (1 - 2 * chosen))
    assert state == {}


def test_a_swap_changes_one_decision_and_a_decision_with_one_operation_keeps_it():
    chosen = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    rivals = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    swaps = Draw.bare(chosen, rivals).swaps()
    assert swaps.weights.tolist() == [[rivals[0].tolist(), chosen[1].tolist()], chosen.tolist()]
    assert torch.equal(swaps.active, swaps.weights != 0)


@pytest.mark.parametrize("phase", Phase)
def test_no_step_needs_gates_and_only_one_operation_per_decision_runs(generator, phase):
    draw = ExactContrast().draw(LOGITS, {}, phase, None, generator)
    assert draw.one_hot
    assert not draw.weights.requires_grad
    assert draw.active.sum() == 2
    assert (draw.shares is not None) == (phase is Phase.ARCHITECTURE)


def test_a_search_finds_the_better_of_two_operations_in_nine_tied_places():
    """The case that turns `contrast` around: each place multiplies by 0.93 or 1.035, target 1."""

    class Times(torch.nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def forward(self, x):
            return self.factor * x

    def answer(strategy):
        places = [Choice({"less": Times(0.93), "more": Times(1.035)}, name="place") for _ in range(9)]
        search = Search(torch.nn.Sequential(torch.nn.Linear(1, 1), *places), strategy)
        for _ in range(10):
            search.architecture_step(lambda model: (1 - model[1:](torch.ones(1))).square().sum())
        return search.argmax()["place"]

    assert answer("exact_contrast") == "more"
    assert answer("contrast") == "less"
