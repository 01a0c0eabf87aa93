"""The architecture distribution p_theta: an independent categorical distribution at every decision."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Distribution:
    """p_theta(a) = prod_i mu_i(theta_i)^T a_i, with mu = softmax(theta)   (eq. softmax).

    logits: [..., decisions, candidates]. Decisions with fewer candidates than the largest are padded with
    minus infinity: probability 0, never drawn, no gradient.
    """

    logits: Tensor

    @property
    def probabilities(self) -> Tensor:
        """mu(theta), shape of the logits."""
        return self.logits.softmax(-1)

    def perturbed(self, generator: torch.Generator) -> Tensor:
        """theta plus independent Gumbel noise: the k largest entries of a row are k draws without replacement."""
        exponential = torch.empty_like(self.logits, requires_grad=False).exponential_(generator=generator)
        smallest = torch.finfo(self.logits.dtype).tiny
        return self.logits - exponential.clamp_min(smallest).log()

    def sample(self, generator: torch.Generator) -> Tensor:
        """Draw a ~ p_theta, exactly: one-hot, shape of the logits."""
        return _one_hot_argmax(self.perturbed(generator).detach())

    def without(self, chosen: Tensor) -> "Distribution":
        """p_theta(. | not a): the distribution of the operations that were not chosen.

        A decision with one operation is left as it is: nothing else could stand there.

        Args:
            chosen: one-hot, shape of the logits.
        """
        others = self.logits.masked_fill(chosen != 0, -torch.inf)
        return Distribution(torch.where(others.isfinite().any(-1, keepdim=True), others, self.logits))

    def mode(self) -> Tensor:
        """The most likely architecture; ties go to the first operation. One-hot, shape of the logits."""
        return _one_hot_argmax(self.logits.detach())

    def entropy(self) -> Tensor:
        """Entropy of every decision in nats: [..., decisions]."""
        log_probabilities = self.logits.log_softmax(-1)
        log_probabilities = log_probabilities.masked_fill(log_probabilities.isneginf(), 0)  # 0 log 0 = 0
        return -(self.probabilities * log_probabilities).sum(-1)

    def score(self, chosen: Tensor) -> Tensor:
        """grad_theta log p_theta(a) = a - mu(theta), shape of the logits."""
        return chosen - self.probabilities


def _one_hot_argmax(scores: Tensor) -> Tensor:
    return torch.zeros_like(scores).scatter_(-1, scores.argmax(-1, keepdim=True), 1)


class Theta:
    """The distribution's parameters: one vector of logits per decision, so that each is updated only when reached.

    An optimiser keeps separate moments for every decision, and a decision without a gradient is left alone,
    as momentum or weight decay would otherwise move it. All of them are rows of one padded tensor, so that nothing
    is put together in a step.
    """

    def __init__(self, sizes: Sequence[int], *, batch: tuple[int, ...] = ()) -> None:
        self._rows = torch.full((*batch, len(sizes), max(sizes)), -torch.inf)
        self.parameters = [nn.Parameter(self._rows[..., row, :size]) for row, size in enumerate(sizes)]
        self._gradients = torch.zeros_like(self._rows)
        self._views = [self._gradients[..., row, :size] for row, size in enumerate(sizes)]
        self._padding = torch.arange(max(sizes)) >= torch.tensor(sizes)[:, None]
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.fill_(1.0)

    def logits(self) -> Tensor:
        """Copy all decisions into one tensor [..., decisions, candidates], padded with minus infinity; a leaf."""
        return self._rows.clone().requires_grad_()

    def assign(self, logits: Tensor) -> None:
        """Overwrite every decision's logits, in place; padding stays padding."""
        self._rows.copy_(logits.detach()).masked_fill_(self._padding, -torch.inf)

    def is_finite(self) -> bool:
        """Whether all logits are finite; padding is not."""
        return bool(self._rows.masked_fill(self._padding, 0.0).sum().isfinite())

    def set_gradient(self, gradient: Tensor, reached: Tensor) -> None:
        """Hand a gradient [..., decisions, candidates] to the parameters; decisions not reached get none."""
        self._gradients.copy_(gradient.detach())
        for parameter, view, hit in zip(self.parameters, self._views, reached.tolist(), strict=True):
            parameter.grad = view if hit else None
