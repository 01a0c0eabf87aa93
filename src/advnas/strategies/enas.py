"""ENAS: REINFORCE with an LSTM controller instead of independent categorical distributions."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from advnas.architecture import Draw
from advnas.distribution import Distribution
from advnas.strategies.strategy import Feedback, Phase, State, Strategy


@dataclass(frozen=True, kw_only=True)
class Enas(Strategy):
    """Let a recurrent controller draw the decisions one after the other.

        p(a) = prod_i softmax(c tanh(H_i h_i / tau))^T a_i,    h_i = LSTM(E_{i-1} a_{i-1}, h_{i-1})
        grad J = E[ (R - b) grad log p(a) ],    R = r + entropy_weight sum_i H(p_i)

    The controller has weights of its own and its own Adam; theta mirrors it: the conditional log-probabilities
    along its most likely sequence, so that the mode of theta is the controller's greedy answer.

    hidden: width of the LSTM. learning_rate: of the controller's Adam. decay: step of the reward baseline b, a
        moving average of R.
    tanh_constant: c, the largest logit; None leaves c tanh(.) out. temperature: tau. Both keep the controller from
        deciding early: of two operations the better one gets a probability of at most 1 / (1 + exp(-2 c)).
    entropy_weight: of the entropies of the conditional distributions p_i along the draw, which are a part of the
        reward, as in the original: they are not differentiated.

    Pham, Guan, Zoph, Le, Dean: Efficient neural architecture search via parameter sharing, ICML 2018.
    """

    hidden: int = 64
    learning_rate: float = field(default=3.5e-4, metadata={"task": "controller_rate"})
    decay: float = 0.05
    tanh_constant: float | None = 2.5
    temperature: float = 5.0
    entropy_weight: float = 1e-4

    def __post_init__(self) -> None:
        for name in ("temperature", "tanh_constant"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"ENAS divides and bounds its logits: {name} must be positive, got {value}.")

    def init(self, logits: Tensor, zeros: Tensor, generator: torch.Generator) -> State:
        """Small uniform weights, as in the original: a nearly uniform controller."""
        *batch, decisions, candidates = logits.shape
        length = sum(torch.Size(shape).numel() for shape in self._shapes(decisions, candidates).values())
        weights = torch.empty(*batch, length, dtype=logits.dtype).uniform_(-0.1, 0.1, generator=generator)
        moment = torch.zeros_like(weights)
        return {"controller": weights, "mean": moment, "square": moment.clone(), "steps": torch.tensor(0)}

    def draw(
        self, logits: Tensor, state: State, phase: Phase, progress: float | None, generator: torch.Generator
    ) -> Draw:
        """a ~ controller; no gates, no graph."""
        with torch.no_grad():
            chosen, _ = self._decode(state, logits, lambda row, scores: Distribution(scores).sample(generator))
        return Draw.bare(chosen)

    def gradient(self, feedback: Feedback, draw: Draw, logits: Tensor, state: State) -> tuple[Tensor | None, State]:
        """One Adam step of the controller; theta follows in `project`."""
        controller = state["controller"].detach().requires_grad_()
        with torch.enable_grad():
            chosen = draw.weights
            _, rows = self._decode({"controller": controller}, logits, lambda row, scores: chosen[..., row, :])
            distribution = Distribution(rows)
            log_probability = (distribution.logits.masked_fill(chosen == 0, 0).sum(-1) * feedback.reached).sum(-1)
            entropy = (distribution.entropy().detach() * feedback.reached).sum(-1)
            reward = self.entropy_weight * entropy - feedback.loss
            baseline = state.get("baseline", reward)
            (ascent,) = torch.autograd.grad(((reward - baseline) * log_probability).sum(), controller)
        baseline = baseline + self.decay * (reward - baseline)
        return None, {**self._adam(state, ascent), "baseline": baseline}

    def project(self, before: Tensor, after: Tensor, draw: Draw, state: State) -> Tensor:
        """The controller's log-probabilities along its most likely sequence."""
        with torch.no_grad():
            _, rows = self._decode(state, before, lambda row, scores: Distribution(scores).mode())
        return rows

    def _shapes(self, decisions: int, candidates: int) -> dict[str, tuple[int, ...]]:
        return {
            "start": (self.hidden,),
            "embedding": (decisions, candidates, self.hidden),
            "head": (decisions, candidates, self.hidden),
            "kernel": (4 * self.hidden, 2 * self.hidden),
            "bias": (4 * self.hidden,),
        }

    def _decode(self, state: State, logits: Tensor, pick: Callable[[int, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Run the controller; `pick(row, log-probabilities)` takes each decision.

        Returns the choices and the conditional log-probabilities, both [..., decisions, candidates].
        """
        decisions, candidates = logits.shape[-2:]
        shapes = self._shapes(decisions, candidates)
        pieces = torch.split(state["controller"], [torch.Size(shape).numel() for shape in shapes.values()], dim=-1)
        part = {
            name: piece.reshape(*piece.shape[:-1], *shapes[name])
            for name, piece in zip(shapes, pieces, strict=True)
        }
        padding = ~logits.detach().isfinite()
        inputs = part["start"]
        hidden, memory = torch.zeros_like(inputs), torch.zeros_like(inputs)
        choices, rows = [], []
        for row in range(decisions):
            wires = torch.cat([inputs, hidden], -1).unsqueeze(-1)
            lanes = ((part["kernel"] @ wires).squeeze(-1) + part["bias"]).chunk(4, -1)
            keep, write, show = (lane.sigmoid() for lane in lanes[:3])
            memory = keep * memory + write * lanes[3].tanh()
            hidden = show * memory.tanh()
            scores = self._restrained((part["head"][..., row, :, :] @ hidden.unsqueeze(-1)).squeeze(-1))
            log_probabilities = F.log_softmax(scores.masked_fill(padding[..., row, :], -torch.inf), -1)
            choice = pick(row, log_probabilities)
            inputs = (choice.unsqueeze(-2) @ part["embedding"][..., row, :, :]).squeeze(-2)
            choices.append(choice)
            rows.append(log_probabilities)
        return torch.stack(choices, -2), torch.stack(rows, -2)

    def _restrained(self, scores: Tensor) -> Tensor:
        """c tanh(scores / tau)."""
        scores = scores / self.temperature
        return scores if self.tanh_constant is None else self.tanh_constant * scores.tanh()

    def _adam(self, state: State, ascent: Tensor) -> State:
        """One step of Adam (0.9, 0.999) uphill."""
        steps = state["steps"] + 1
        mean = torch.lerp(state["mean"], ascent, 0.1)
        square = torch.lerp(state["square"], ascent.square(), 0.001)
        scale = (square / (1 - 0.999**steps)).sqrt() + 1e-8
        controller = state["controller"] + self.learning_rate * mean / (1 - 0.9**steps) / scale
        return {"controller": controller, "mean": mean, "square": square, "steps": steps}
