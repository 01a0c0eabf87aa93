"""What a strategy may ask for beyond one pass: losses of other draws, and DARTS' look one weight step ahead."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

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

        w' = w - xi s,    s = momentum * buffer + grad_w train(w, a) + decay * w    (SGD; see `virtual_step`)
        u = xi grad_w' valid(w', a),    e = 0.01 / |u|
        d valid(w', a)/da - (d train(w + e u, a)/da - d train(w - e u, a)/da) / (2 e)
        """
        training = self.training_loss_of
        if training is None:
            raise ValueError(
                "A second-order strategy looks one weight step ahead and needs the training loss too. "
                "Write search.architecture_step(loss_of, training_loss_of=...)."
            )
        weights = self.parent.space.parameters(self.draw)
        origin = [weight.detach().clone() for weight in weights]
        optimizer = self.weights.optimizer
        rates = [options.get("lr", 0.0) for options in _options(optimizer, weights)]

        def slopes(objective: LossOf, shift: Sequence[Tensor | None], scale: float) -> list[Tensor | None]:
            _place(weights, origin, shift, scale)
            return self._slopes(objective, weights)

        try:
            steps = virtual_step(optimizer, weights, slopes(training, [None] * len(weights), 0.0)[1:])
            ahead, *v = slopes(self.loss_of, _scaled(steps, rates), -1.0)
            u = _scaled(v, rates)
            norm = torch.stack([part.norm() for part in u if part is not None] or [torch.zeros(())]).norm()
            e = 0.01 / max(norm.item(), 1e-12)
            plus, minus = (slopes(training, u, sign * e)[0] for sign in (1, -1))
        finally:
            _place(weights, origin, [None] * len(weights), 0.0)
        assert ahead is not None
        assert plus is not None
        assert minus is not None
        slope: Tensor = ahead - (plus - minus) / (2 * e)
        return slope

    def _slopes(self, objective: LossOf, weights: list[nn.Parameter]) -> list[Tensor | None]:
        """d objective / d gates, and / d each weight; means over the processes."""
        with torch.enable_grad(), self.parent.running(self.draw) as trace, self.weights.still(self.draw):
            loss = self.parent.loss(objective, trace)
            found = gradients(loss, [self.draw.weights, *weights], scale=self.parent.precision.scale)
        if not self.policy.has_own_draws:
            known = [slope for slope in found if slope is not None]
            self.policy.group.average_(known, "architecture step: unrolled")
        return found


def virtual_step(
    optimizer: Optimizer, weights: list[nn.Parameter], gradients: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Compute what a virtual step subtracts from each weight, per unit of its learning rate.

    For SGD that is momentum * buffer + gradient + decay * weight, as in the original's code. It knows neither
    dampening nor Nesterov's look-ahead, so that both are left out, and so is the clipping of the real step. For
    other optimisers it is the gradient.

    Args:
        optimizer: of the weights; its state is read.
        weights: where the step begins.
        gradients: of the training loss; a weight without one stays where it is, as in a real step.
    """
    if not isinstance(optimizer, SGD):
        return list(gradients)
    return [
        None if gradient is None else _sgd_step(weight.detach(), gradient, options, optimizer.state.get(weight, {}))
        for weight, gradient, options in zip(weights, gradients, _options(optimizer, weights), strict=True)
    ]


def _sgd_step(weight: Tensor, gradient: Tensor, options: Mapping[str, Any], state: Mapping[str, Any]) -> Tensor:
    step: Tensor = gradient + options.get("weight_decay", 0.0) * weight
    buffer: Tensor | None = state.get("momentum_buffer")  # None before its first step
    if buffer is not None:
        step = step + options["momentum"] * buffer.to(weight.device)
    return step


def _options(optimizer: Optimizer, weights: list[nn.Parameter]) -> list[Mapping[str, Any]]:
    """The parameter group of each weight; empty where somebody trains it elsewhere."""
    groups = {id(weight): group for group in optimizer.param_groups for weight in group["params"]}
    return [groups.get(id(weight), {}) for weight in weights]


def _scaled(parts: Sequence[Tensor | None], rates: Sequence[float]) -> list[Tensor | None]:
    return [None if part is None else rate * part for part, rate in zip(parts, rates, strict=True)]


def _place(weights: list[nn.Parameter], origin: list[Tensor], shift: Sequence[Tensor | None], scale: float) -> None:
    """weights = origin + scale * shift, in place."""
    with torch.no_grad():
        for weight, start, direction in zip(weights, origin, shift, strict=True):
            weight.copy_(start if direction is None else start + scale * direction)
