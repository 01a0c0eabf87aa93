"""Feedback: what a strategy gets to know of one step."""

from typing import TYPE_CHECKING

from torch import Tensor

from advnas.architecture import Draw
from advnas.gates import Trace
from advnas.parallel.reductions import average_feedback
from advnas.search.second_order import Further
from advnas.search.step import LossOf, check_finite
from advnas.strategies import Feedback

if TYPE_CHECKING:
    from advnas.search.search import Search


def gather_feedback(
    search: "Search",
    draw: Draw,
    loss: Tensor,
    slope: Tensor | None,
    trace: Trace,
    losses: tuple[LossOf, LossOf | None],
) -> Feedback:
    """Put together what came back, as means over the processes where all have one draw."""
    loss, reached = loss.detach().to(draw.weights.device), trace.reached
    if not search.policy.has_own_draws:
        loss, slope, reached = average_feedback(search.group, loss, slope, reached)
        check_finite("The loss is", loss.item())
    further = Further(search.parent, search.weights, search.policy, draw, *losses)
    return Feedback(loss, slope, reached, further.probe, further.unrolled)
