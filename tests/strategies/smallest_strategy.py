from dataclasses import dataclass

from advnas import Distribution, Draw
from advnas.strategies import Strategy


@dataclass(frozen=True)
class Smallest(Strategy):
    def draw(self, logits, state, phase, progress, generator):
        return Draw.gated(Distribution(logits).sample(generator))

    def gradient(self, feedback, draw, logits, state):
        advantage = -(feedback.slopes * draw.weights.detach()).sum(-1, keepdim=True)
        return advantage * Distribution(logits).score(draw.weights.detach()), state
