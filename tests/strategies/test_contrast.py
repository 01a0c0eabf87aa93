import itertools

import pytest
import torch

from advnas import Distribution, Draw, strategies
from advnas.strategies.contrast import Contrast
from advnas.strategies.strategy import Phase

LOGITS = torch.tensor([[0.0, 0.7, -0.4, 0.2]])
DRAWS = 20_000


def draw(generator, phase=Phase.ARCHITECTURE, logits=LOGITS, **options):
    return Contrast(**options).draw(logits, {}, phase, None, generator)


def many(generator, **options):
    """20,000 draws of one decision between four operations: which was chosen, and how much each rival counts."""
    drawn = draw(generator, logits=LOGITS.expand(DRAWS, 1, 4), **options)
    return drawn.weights.detach()[:, 0], drawn.rivals[:, 0]


# The draw


def test_the_chosen_operation_stands_behind_a_gate_of_1_and_its_rival_behind_a_gate_of_0(generator):
    drawn = draw(generator)
    assert drawn.one_hot
    assert drawn.weights.requires_grad
    assert drawn.active.sum() == 2
    assert torch.equal(drawn.active, (drawn.weights != 0) | (drawn.rivals != 0))


def test_weights_are_trained_one_operation_at_a_time(generator):
    for phase in (Phase.WARMUP, Phase.WEIGHTS):
        drawn = draw(generator, phase)
        assert drawn.one_hot
        assert drawn.active.sum() == 1
        assert not drawn.weights.requires_grad


def test_the_rival_is_drawn_from_what_is_left_in_proportion_to_its_probability(generator):
    p = Distribution(LOGITS).probabilities[0].tolist()
    chosen, rivals = many(generator)
    for a, b in itertools.permutations(range(4), 2):
        frequency = (chosen[:, a] * rivals[:, b]).mean().item()
        assert frequency == pytest.approx(p[a] * p[b] / (1 - p[a]), abs=0.01)


def test_one_rival_counts_for_all_others(generator):
    chosen, rivals = many(generator)
    assert torch.equal(rivals.sum(-1), torch.ones(DRAWS))
    assert ((rivals == 0) | (rivals == 1)).all()
    assert not (rivals * chosen).any()


def test_several_rivals_are_drawn_without_replacement(generator):
    """P(b then c | a) = p_b / (1 - p_a) p_c / (1 - p_a - p_b); the pair in either order."""
    p = Distribution(LOGITS).probabilities[0].tolist()
    chosen, rivals = many(generator, rivals=2)
    assert ((rivals != 0).sum(-1) == 2).all()
    for a in range(4):
        given = rivals[chosen[:, a] == 1] != 0
        for b, c in itertools.combinations([k for k in range(4) if k != a], 2):
            orders = sum(p[j] / (1 - p[a]) * p[k] / (1 - p[a] - p[j]) for j, k in ((b, c), (c, b)))
            assert (given[:, b] & given[:, c]).float().mean().item() == pytest.approx(orders, abs=0.03)


def test_of_several_rivals_each_counts_by_its_probability_and_the_last_for_the_rest(generator):
    """With two of three rivals, one has p(b | not a) and the other all that is left of 1."""
    chosen, rivals = many(generator, rivals=2)
    conditional = Distribution(LOGITS.expand(DRAWS, 4)).without(chosen).probabilities
    torch.testing.assert_close(rivals.sum(-1), torch.ones(DRAWS))
    as_probable = (rivals != 0) & torch.isclose(rivals, conditional)
    assert (as_probable.sum(-1) == 1).all()


def test_the_counts_of_any_number_of_rivals_average_to_their_probabilities(generator):
    """E[count of b | a] = p(b | not a), so that the mean estimate does not depend on the number."""
    for number in (1, 2, None):
        chosen, rivals = many(generator, rivals=number)
        conditional = Distribution(LOGITS.expand(DRAWS, 4)).without(chosen).probabilities
        for a in range(4):
            given = chosen[:, a] == 1
            torch.testing.assert_close(rivals[given].mean(0), conditional[given][0], atol=0.03, rtol=0)


@pytest.mark.parametrize("number", [None, 3, 7])
def test_all_others_count_by_their_probability(generator, number):
    chosen, rivals = many(generator, rivals=number)
    torch.testing.assert_close(rivals, Distribution(LOGITS.expand(DRAWS, 4)).without(chosen).probabilities)


@pytest.mark.parametrize("number", [1, 2, None])
def test_padding_is_no_rival_and_a_decision_with_one_candidate_has_none(generator, number):
    one, two, three = [[1.0, *[-torch.inf] * 2], [1.0, 2.0, -torch.inf], [1.0, 1.0, 1.0]]
    for _ in range(20):
        drawn = draw(generator, logits=torch.tensor([one, two, three]), rivals=number)
        assert drawn.active[0].tolist() == [True, False, False]
        assert drawn.active[1].tolist() == [True, True, False]
        assert drawn.active[2].sum() == min(1 + (number or 2), 3)
        torch.testing.assert_close(drawn.rivals.sum(-1), torch.tensor([0.0, 1.0, 1.0]))


def test_a_space_of_decisions_with_one_candidate_each_can_be_drawn(generator):
    drawn = draw(generator, logits=torch.ones(2, 1))
    assert not drawn.rivals.any()
    assert drawn.active.all()


# The gradient

PAIR = Draw.contrasted(torch.tensor([[0.0, 1.0, 0.0, 0.0]]), torch.tensor([[0.0, 0.0, 1.0, 0.0]]))


def test_the_gradient_by_hand(feedback):
    """Slopes of the loss 0.3 at a and -0.8 at b: the swap gains 1.1, of which 1/2 (1 - p_a) goes from a to b."""
    slope = torch.tensor([[5.0, 0.3, -0.8, 5.0]])  # the outer two were not run
    gradient, state = Contrast().gradient(feedback(slope=slope), PAIR, LOGITS, {})
    share = 0.5 * (1 - Distribution(LOGITS).probabilities[0, 1]) * 1.1
    torch.testing.assert_close(gradient, share * torch.tensor([[0.0, -1.0, 1.0, 0.0]]))
    assert state == {}


def test_several_rivals_share_the_gradient_as_they_count(feedback):
    drawn = Draw.contrasted(torch.tensor([[0.0, 1.0, 0.0, 0.0]]), torch.tensor([[0.25, 0.0, 0.75, 0.0]]))
    slope = torch.tensor([[0.5, 0.3, -0.8, 5.0]])
    gradient, _ = Contrast(rivals=2).gradient(feedback(slope=slope), drawn, LOGITS, {})
    weight = 0.5 * (1 - Distribution(LOGITS).probabilities[0, 1])
    expected = weight * torch.tensor([[0.25 * -0.2, 0.25 * 0.2 - 0.75 * 1.1, 0.75 * 1.1, 0.0]])
    torch.testing.assert_close(gradient, expected)


def test_theta_is_moved_between_operations_and_never_as_a_whole(feedback, generator):
    drawn = draw(generator, logits=LOGITS.expand(50, 1, 4), rivals=2)
    slope = torch.randn(50, 1, 4, generator=generator)
    gradient, _ = Contrast(rivals=2).gradient(feedback(slope=slope), drawn, LOGITS.expand(50, 1, 4), {})
    torch.testing.assert_close(gradient.sum(-1), torch.zeros(50, 1), atol=1e-6, rtol=0)


def test_equal_slopes_move_nothing(feedback):
    """What all operations have in common, however large, is no credit."""
    gradient, _ = Contrast().gradient(feedback(slope=torch.full((1, 4), 7.0)), PAIR, LOGITS, {})
    assert not gradient.any()


def test_a_zero_operation_is_a_rival_like_any_other(feedback, generator):
    """No moving average: the state is empty, and a drawn zero operation learns from the slope of its rival."""
    zeros = torch.tensor([[False, True, False, False]])
    assert Contrast().init(LOGITS, zeros, generator) == {}
    slope = torch.tensor([[0.0, 0.0, -0.8, 0.0]])  # the zero operation was drawn: its own slope is 0
    gradient, _ = Contrast().gradient(feedback(slope=slope), PAIR, LOGITS, {})
    assert gradient[0, 2] > 0
    assert gradient[0, 1] == -gradient[0, 2]


def test_a_decision_with_one_candidate_and_padding_get_no_gradient(feedback, generator):
    logits = torch.tensor([[1.0, -torch.inf], [1.0, 1.0]])
    drawn = draw(generator, logits=logits)
    gradient, _ = Contrast().gradient(feedback(slope=torch.tensor([[0.4, 0.0], [0.4, 0.1]])), drawn, logits, {})
    assert gradient[0].tolist() == [0.0, 0.0]
    assert gradient[1].any()


# Options


@pytest.mark.parametrize(("rivals", "operations"), [(1, 2), (2, 3), (None, None)])
def test_it_says_how_many_operations_it_runs(rivals, operations):
    strategy = strategies.get("contrast", rivals=rivals)
    assert strategy.architecture_operations == operations
    assert strategy.weight_operations == 1
    assert strategy.independent_draws


@pytest.mark.parametrize("rivals", [0, -1, 1.5, "all", True])
def test_a_number_of_rivals_that_makes_no_sense_is_refused(rivals):
    with pytest.raises((TypeError, ValueError), match="rivals"):
        Contrast(rivals=rivals)
