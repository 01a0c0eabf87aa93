import itertools

import pytest
import torch
from torch import nn

from advnas import Choice, Search
from advnas.answers import SharedLoss, refine


class Add(nn.Module):
    def __init__(self, amount):
        super().__init__()
        self.amount = amount

    def forward(self, x):
        return x + self.amount


def sums(*rows):
    """The output is x plus one number of every row."""
    choices = [Choice({str(n): Add(n) for n in row}, name=f"row {place}") for place, row in enumerate(rows)]
    return Search(nn.Sequential(*choices, nn.Linear(1, 1)))


def table(values):
    """A loss that depends on the architecture alone: [row of the first choice][row of the second]."""

    def loss(model, batch):
        first, second = (model[place].operations.index(op) for place, op in enumerate(running(model)))
        return model(batch).mean() * 0 + values[first][second]

    return loss


def running(model):
    return [choice.operations[choice.slot.route.active[0].index] for choice in model[:2]]


BATCHES = [torch.ones(2, 1), torch.ones(3, 1)]


class TestRefine:
    def test_it_ends_where_no_single_change_gains_anything(self):
        values = [[5.0, 4.0, 3.0], [4.0, 2.0, 6.0], [9.0, 1.0, 7.0]]
        found = refine(sums((0, 1, 2), (0, 1, 2)), BATCHES, table(values))
        row, column = (int(found.architecture[f"row {place}"]) for place in range(2))
        neighbours = [values[other][column] for other in range(3)] + values[row]
        assert found.loss == min(neighbours)
        assert found.complete

    def test_the_moves_lead_from_the_start_to_the_end(self):
        values = [[5.0, 4.0, 3.0], [4.0, 2.0, 6.0], [9.0, 1.0, 7.0]]
        found = refine(sums((0, 1, 2), (0, 1, 2)), BATCHES, table(values))
        walked = {"row 0": "0", "row 1": "0"}
        losses = [found.start_loss]
        for move in found.moves:
            assert walked[move.decision] == move.before
            walked[move.decision] = move.after
            losses.append(move.loss)
        assert walked == found.architecture
        assert losses == sorted(losses, reverse=True)
        assert len(set(losses)) == len(losses)
        assert losses[0] == values[0][0]
        assert losses[-1] == found.loss

    def test_every_evaluation_is_counted_once_per_minibatch(self):
        asked = []

        def loss(model, batch):
            asked.append(tuple(running(model)))
            return table([[1.0, 2.0], [3.0, 4.0]])(model, batch)

        found = refine(sums((0, 1), (0, 1)), BATCHES, loss)
        assert found.passes == len(asked) == len(BATCHES) * len(set(asked))
        assert len(set(asked)) == 3  # the start and its two neighbours

    def test_ties_change_nothing(self):
        found = refine(sums((0, 1), (0, 1)), BATCHES, table([[1.0, 1.0], [1.0, 1.0]]))
        assert found.moves == ()
        assert found.architecture == {"row 0": "0", "row 1": "0"}

    def test_it_starts_where_it_is_told(self):
        values = [[0.0, 5.0], [5.0, 1.0]]  # two ends without a better neighbour
        start = {"row 0": "1", "row 1": "1"}
        assert refine(sums((0, 1), (0, 1)), BATCHES, table(values), start=start).architecture == start

    def test_undecided_decisions_come_first(self):
        search = sums((0, 1), (0, 1))
        search.theta.assign(torch.tensor([[3.0, 0.0], [0.1, 0.0]]))
        values = [[5.0, 1.0], [1.0, 5.0]]  # whichever comes first decides the end
        assert refine(search, BATCHES, table(values)).moves[0].decision == "row 1"

    def test_it_stops_when_the_passes_run_out(self):
        values = [[9.0, 8.0, 7.0], [6.0, 5.0, 4.0], [3.0, 2.0, 1.0]]
        search = sums((0, 1, 2), (0, 1, 2))
        found = refine(search, BATCHES, table(values), passes=3)
        assert not found.complete
        assert found.passes == 3 * len(BATCHES)  # the start, and the decision that had begun
        assert found.loss < found.start_loss

    def test_decisions_off_the_path_are_left_alone(self):
        inner = Choice({"a": Add(1), "b": Add(2)}, name="inner")
        outer = Choice({"plain": Add(0), "nested": nn.Sequential(inner)}, name="outer")
        search = Search(nn.Sequential(outer, nn.Linear(1, 1)))
        asked = []

        def loss(model, batch):
            asked.append(outer.slot.route.active[0].index)
            return model(batch).mean() * 0 + (1.0 if asked[-1] == 0 else 2.0)

        assert refine(search, BATCHES[:1], loss).architecture == {"outer": "plain", "inner": "a"}
        assert len(asked) == 2  # plain, and nested with the inner decision as it stands

    @pytest.mark.parametrize("passes", [0, -1, 2.5])
    def test_passes_are_a_positive_number(self, passes):
        with pytest.raises((ValueError, TypeError), match="passes"):
            refine(sums((0, 1), (0, 1)), BATCHES, table([[1.0, 1.0], [1.0, 1.0]]), passes=passes)

    def test_an_unknown_operation_to_start_from_is_refused(self):
        with pytest.raises(ValueError, match="'7'"):
            refine(sums((0, 1), (0, 1)), BATCHES, table([[1.0]]), start={"row 0": "7", "row 1": "0"})


class TestSharedLoss:
    def test_it_is_the_loss_of_the_derived_network_on_every_minibatch(self):
        search = sums((0, 1), (2, 3))
        judged = SharedLoss(search, BATCHES, lambda model, batch: model(batch).square().mean())
        for first, second in itertools.product(("0", "1"), ("2", "3")):
            architecture = {"row 0": first, "row 1": second}
            plain = search.derive(architecture)
            expected = [plain(batch).square().mean().item() for batch in BATCHES]
            assert list(judged.judge(architecture).losses) == pytest.approx(expected)

    def test_an_architecture_is_run_once(self):
        judged = SharedLoss(sums((0, 1), (2, 3)), BATCHES, lambda model, batch: model(batch).mean())
        first = judged.mean({"row 0": "0", "row 1": "2"})
        assert judged.mean({"row 0": "0", "row 1": "2"}) == first
        assert judged.passes == len(BATCHES)

    def test_no_minibatches_are_refused(self):
        with pytest.raises(ValueError, match="no minibatches"):
            SharedLoss(sums((0, 1), (2, 3)), [], lambda model, batch: model(batch).mean()).mean(
                {"row 0": "0", "row 1": "2"}
            )
