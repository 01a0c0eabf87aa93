"""What a strategy may ask for beyond one pass: losses of other draws, and DARTS' look one weight step ahead."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from advnas.architecture import Draw
from advnas.search.parent import Parent, gradients
from advnas.search.policy import Policy
from advnas.search.shared_weights import SharedWeights
from advnas.search.step import LossOf, check_finite


@dataclass(frozen=True)
class Further:
    """Further passes on the minibatch of an architecture step.

    draw: of that step. loss_of, training_loss_of: on its validation and training minibatches.
    """

    parent: Parent
    weights: SharedWeights
    policy: Policy
    draw: Draw
    loss_of: LossOf
    training_loss_of: LossOf | None

    def probe(self, draws: Draw) -> Tensor:
        """Compute the losses of several draws on the same minibatch with the same randomness: [draws]."""
        losses = [self._loss(draw) for draw in draws]
        together = torch.stack(losses).to(self.draw.weights.device)
        if not self.policy.has_own_draws:
            self.policy.group.average_([together], "architecture step: other draws")
            for loss in together.tolist():
                check_finite("The loss of another draw is", loss)
        return together

    def _loss(self, draw: Draw) -> Tensor:
        with self.weights.loaded(draw), torch.no_grad(), self.parent.running(draw), self.weights.still(draw):
            return self.parent.loss(self.loss_of)

    def unrolled(self) -> Tensor:
        """d/da of the validation loss after a virtual weight step (DARTS, eq. 7), by a central difference.

        w' = w - xi grad_w train(w, a),    v = grad_w' valid(w', a),    e = 0.01 / |v|
        d valid(w', a)/da - xi (d train(w + e v, a)/da - d train(w - e v, a)/da) / (2 e)
        """
        training = self.training_loss_of
        if training is None:
            raise ValueError(
                "A second-order strategy looks one weight step ahead and needs the training loss too. "
                "Write search.architecture_step(loss_of, training_loss_of=...)."
            )
        weights = self.parent.space.parameters(self.draw)
        origin = [weight.detach().clone() for weight in weights]
        xi = self.weights.optimizer.param_groups[0]["lr"]

        def slopes(objective: LossOf, shift: Sequence[Tensor | None], scale: float) -> list[Tensor | None]:
            _place(weights, origin, shift, scale)
            return self._slopes(objective, weights)

        try:
            virtual = slopes(training, [None] * len(weights), 0.0)[1:]
            ahead, *v = slopes(self.loss_of, virtual, -xi)
            norm = torch.stack([part.norm() for part in v if part is not None] or [torch.zeros(())]).norm()
            e = 0.01 / max(norm.item(), 1e-12)
            plus, minus = (slopes(training, v, sign * e)[0] for sign in (1, -1))
        finally:
            _place(weights, origin, [None] * len(weights), 0.0)
        assert ahead is not None
        assert plus is not None
        assert minus is not None
        slope: Tensor = ahead - xi * (plus - minus) / (2 * e)
        return slope

    def _slopes(self, objective: LossOf, weights: list[nn.Parameter]) -> list[Tensor | None]:
        """d objective / d gates, and / d each weight; means over the processes."""
        with torch.enable_grad(), self.parent.running(self.draw), self.weights.still(self.draw):
            found = gradients(self.parent.loss(objective), [self.draw.weights, *weights])
        if not self.policy.has_own_draws:
            known = [slope for slope in found if slope is not None]
            self.policy.group.average_(known, "architecture step: unrolled")
        return found


def _place(weights: list[nn.Parameter], origin: list[Tensor], shift: Sequence[Tensor | None], scale: float) -> None:
    """weights = origin + scale * shift, in place."""
    with torch.no_grad():
        for weight, start, direction in zip(weights, origin, shift, strict=True):
            weight.copy_(start if direction is None else start + scale * direction)
