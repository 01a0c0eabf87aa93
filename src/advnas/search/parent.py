"""Parent: the weight-sharing network, run one draw at a time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from advnas.architecture import Draw
from advnas.gates import Lend, at_hand
from advnas.randomness import seed_of, seeded
from advnas.search.schedule import Progress
from advnas.search.step import UNTOUCHED, LossOf, NonFinite, NonFiniteLoss
from advnas.space import SearchSpace, Trace


class Parent:
    """The model of a search, its space, and the randomness of its forward passes.

    rank: of this process among those that search together; rank 0 draws what a single process would.
    lend: keeps the weights of a rival at hand while it runs; what is there anyway, by default.
    """

    def __init__(self, model: nn.Module, seed: int, progress: Progress) -> None:
        self.model, self.space = model, SearchSpace(model)
        self.rank = 0
        self.lend: Lend = at_hand
        self._seed, self._progress = seed, progress

    @contextmanager
    def running(self, draw: Draw) -> Iterator[Trace]:
        """For one step, forward and backward: the model computes the draw, with the step's own randomness."""
        with self.space.running(draw, self.lend) as trace, self.randomness():
            yield trace

    @contextmanager
    def randomness(self) -> Iterator[None]:
        """Seed torch's global generators from the numbers of the steps for a while, then put them back."""
        own = [self.rank] if self.rank else []
        taken = self._progress
        with seeded(seed_of(self._seed, taken.weight_steps, taken.architecture_steps, *own), self.space.device):
            yield

    def loss(self, loss_of: LossOf) -> Tensor:
        """Compute the minibatch loss of the draw that is running.

        Raises:
            ValueError: it is not a scalar tensor, or candidates of one choice disagree about their output shape.
        """
        try:
            loss = loss_of(self.model)
        except (RuntimeError, ValueError, IndexError) as error:
            mismatch = self.space.mismatch(partial(loss_of, self.model))
            if mismatch is not None:
                raise ValueError(mismatch) from error
            raise
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            raise ValueError(
                f"The loss must be a tensor with one number, got {getattr(loss, 'shape', type(loss).__name__)}. "
                "Return for example F.cross_entropy(model(x), y), or take .mean()."
            )
        return loss

    def check_slope(self, gradient: Tensor | None, draw: Draw, trace: Trace) -> None:
        """Raise ValueError where a loss has no gradient at the gates that the pass came to.

        A drawn zero operation may cut all others off from the loss; that is no mistake.
        """
        if gradient is not None or not draw.weights.requires_grad:
            return
        reached = trace.reached.to(draw.active.device)[:, None] & draw.active
        if reached.any() and not (reached & self.space.zeros.to(reached.device)).any():
            raise ValueError(
                "The loss has no gradient at the operations that were drawn, which this strategy learns from. "
                "Compute it from the model's output without detach() or no_grad(). What an architecture costs "
                "does not belong into the loss: write Search(..., limit={'parameters': 100_000}) or penalty={...} "
                "with costs of advnas.costs."
            )

    @contextmanager
    def located(self, step: str, draw: Draw) -> Iterator[None]:
        """Say of every error inside in which step it happened, and what ran."""
        try:
            yield
        except NonFinite as error:
            raise NonFiniteLoss(f"{error} in {self._where(step, draw)}. {UNTOUCHED}") from None
        except (RuntimeError, ValueError, IndexError) as error:
            error.add_note(f"This happened in {self._where(step, draw)}.")
            raise

    def _where(self, step: str, draw: Draw) -> str:
        taken = self._progress.weight_steps if step == "weight step" else self._progress.architecture_steps
        what = self.space.architecture(draw.weights).to_json() if draw.one_hot else "a mixture of all operations"
        return f"{step} {taken + 1}, running {what}"


def gradients(loss: Tensor, inputs: Sequence[Tensor]) -> list[Tensor | None]:
    """Compute d loss / d inputs; None for what the drawn path does not touch. A path of zeros may touch nothing."""
    if not loss.requires_grad:
        return [None] * len(inputs)
    return list(torch.autograd.grad(loss, inputs, allow_unused=True))


def gate_slope(gradient: Tensor | None, draw: Draw) -> Tensor | None:
    """d loss / d weights; 0 where the pass came to no gate, None where the draw asks for none."""
    if gradient is None and draw.weights.requires_grad:
        return torch.zeros_like(draw.weights, requires_grad=False)
    return gradient
