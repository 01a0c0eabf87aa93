"""The toy task: recover a teacher's architecture from its answers. Many trials run side by side."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from advnas.architecture import Draw
from advnas.randomness import generator
from advnas.spaces.toy_regression import FILTER, MAP, SIDE, STRIDE, random_weights

_DATA = 1  # sets this task's streams apart from those a search with the same seed uses
_PIXELS = FILTER * FILTER
_POSITIONS = MAP * MAP


@dataclass(frozen=True)
class Minibatch:
    """Inputs of all trials as patches [trials, batch * positions, 49] and the teachers' answers [trials, batch]."""

    patches: Tensor
    targets: Tensor


class TeacherRegression:
    """`trials` independent teachers of the toy network, and their students' losses, vectorised over trials.

        loss(a) = mean over x of (phi_a(x) - phi_a*(x))^2,      x ~ U[-1, 1]^(13 x 13)

    Only the active filters of a draw are evaluated: they are gathered, and one batched matrix product serves
    all decisions and trials. The same trial has the same teacher and inputs, however many trials there are.
    """

    def __init__(
        self, *, trials: int = 10, decisions: int = 10, candidates: int = 10, batch: int = 100, seed: int = 0
    ) -> None:
        self._generators = [generator(seed, _DATA, trial) for trial in range(trials)]
        weights = [random_weights(decisions, candidates, g) for g in self._generators]
        self.filters = torch.stack([filters for filters, _ in weights])
        self.readouts = torch.stack([readouts for _, readouts in weights]).flatten(-2)
        teachers = [torch.randint(candidates, (decisions,), generator=g) for g in self._generators]
        self.teacher = F.one_hot(torch.stack(teachers), candidates).float()
        self._batch = batch
        self._flat_filters = self.filters.flatten(-2)
        self._last: tuple[Minibatch, Tensor, Tensor] | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """(trials, decisions, candidates)."""
        trials, decisions, candidates = self.teacher.shape
        return trials, decisions, candidates

    def minibatch(self, size: int | None = None) -> Minibatch:
        """Fresh inputs for every trial, with the teachers' answers."""
        size = size or self._batch
        inputs = torch.stack([torch.rand(size, SIDE, SIDE, generator=g) for g in self._generators]) * 2 - 1
        windows = inputs.unfold(-2, FILTER, STRIDE).unfold(-2, FILTER, STRIDE)
        patches = windows.reshape(len(inputs), size * _POSITIONS, _PIXELS)
        unanswered = Minibatch(patches, torch.zeros(len(inputs), size))
        return Minibatch(patches, self.predict(Draw.bare(self.teacher), unanswered))

    def loss(self, draw: Draw, minibatch: Minibatch) -> Tensor:
        """Mean squared error of every trial's student: [trials]."""
        return (self.predict(draw, minibatch) - minibatch.targets).square().mean(-1)

    def probe(self, draws: Draw, minibatch: Minibatch) -> Tensor:
        """The losses of draws with one more leading dimension: [draws, trials]."""
        return torch.stack([self.loss(draw, minibatch) for draw in draws])

    def predict(self, draw: Draw, minibatch: Minibatch) -> Tensor:
        """phi_a(x) = mean over i of readout_i(sum over active j of a_ij tanh(filter_ij * x)): [trials, batch]."""
        most = int(draw.active.sum(-1).max())
        chosen = draw.active.float().topk(most, sorted=True).indices  # [trials, decisions, active]
        responses = self.responses(chosen, minibatch)  # [trials, batch, decisions, active]
        weights = (draw.weights * draw.active).gather(-1, chosen)
        prediction = torch.einsum("tbda,tda->tb", responses, weights)
        if draw.constants:
            shift = (draw.weights * ~draw.active).sum(-1) * self.readouts.sum(-1)
            prediction = prediction + shift.sum(-1, keepdim=True)
        return prediction / self.shape[1]

    def responses(self, chosen: Tensor, minibatch: Minibatch) -> Tensor:
        """readout_i(tanh(filter_ij * x)) of chosen filters: indices [trials, decisions, active] to responses
        [trials, batch, decisions, active]. Kept for the next draw of the same filters on the same inputs.
        """
        if self._last is not None and self._last[0] is minibatch and torch.equal(self._last[1], chosen):
            return self._last[2]
        trials, decisions, active = chosen.shape
        index = chosen.unsqueeze(-1).expand(-1, -1, -1, _PIXELS)
        filters = self._flat_filters.gather(2, index).reshape(trials, decisions * active, _PIXELS)
        hidden = torch.bmm(minibatch.patches, filters.transpose(1, 2)).tanh_()
        hidden = hidden.reshape(trials, -1, _POSITIONS, decisions, active)
        responses = torch.einsum("tbpda,tdp->tbda", hidden, self.readouts)
        self._last = (minibatch, chosen, responses)
        return responses


class HeldOut:
    """Test losses on inputs that no search has seen. All filters' responses are computed once, at the start."""

    def __init__(self, task: TeacherRegression, size: int = 1000) -> None:
        everything = torch.arange(task.shape[2]).expand(task.shape)
        self._responses = task.responses(everything, task.minibatch(size))
        self._targets = self._predict(task.teacher)

    def loss(self, chosen: Tensor) -> Tensor:
        """Mean squared error of one-hot architectures [trials, decisions, candidates]: [trials].

        Exactly 0 where the architecture is the teacher's.
        """
        return (self._predict(chosen) - self._targets).square().mean(-1)

    def _predict(self, chosen: Tensor) -> Tensor:
        index = chosen.argmax(-1)[:, None, :, None].expand(-1, self._responses.shape[1], -1, -1)
        return self._responses.gather(-1, index).squeeze(-1).mean(-1)
