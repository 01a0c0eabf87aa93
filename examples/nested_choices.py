"""Decisions inside a candidate: they learn only in the steps that reach them."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

import advnas


def mlp(width: int) -> nn.Module:
    """One candidate with two open decisions of its own. Their names keep the answer readable."""
    activation = advnas.Choice({"relu": nn.ReLU(), "tanh": nn.Tanh(), "none": nn.Identity()}, name="activation")
    norm = advnas.Choice({"layer": nn.LayerNorm(4 * width), "none": nn.Identity()}, name="norm")
    return nn.Sequential(nn.Linear(width, 4 * width), norm, activation, nn.Linear(4 * width, width))


class Net(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 2)
        candidates = {"skip": nn.Identity(), "linear": nn.Linear(width, width), "mlp": mlp(width)}
        self.block = advnas.Choice(candidates, name="block")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.first(x)
        logits: torch.Tensor = self.last(hidden + self.block(hidden))
        return logits


class Moved:
    """Counts the architecture steps in which a decision's probabilities changed.

    Where "mlp" is not drawn, its two decisions are not reached: their theta stays as it is, and not even momentum
    or weight decay moves it. Two kinds of strategy differ: dense ones run all candidates, so they reach
    everything, and the controller of `enas` holds all decisions together.
    """

    def __init__(self, search: advnas.Search) -> None:
        self.search, self.before = search, search.probabilities()
        self.steps = dict.fromkeys(self.before, 0)

    def __call__(self, step: advnas.Step) -> None:
        if step.phase == "architecture":
            after = self.search.probabilities()
            for decision in after:
                self.steps[decision] += after[decision] != self.before[decision]
            self.before = after


def main(strategy: str = "advantage", epochs: int = 20) -> nn.Module:
    torch.manual_seed(0)
    inputs = torch.randn(2048, 4)
    labels = (inputs[:, 0] * inputs[:, 1] + inputs[:, 2] * inputs[:, 3]).gt(0).long()
    batches = [(inputs[i : i + 64], labels[i : i + 64]) for i in range(0, len(inputs), 64)]
    task = advnas.Task(batches[:16], batches[16:], lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))

    search = advnas.Search(Net(), strategy, architecture_optimizer=partial(torch.optim.Adam, lr=0.02))
    moved = Moved(search)
    architecture = search.run(task, epochs=epochs, warmup=epochs // 4, on_step=moved)

    print(strategy, dict(architecture))
    for decision, probabilities in search.probabilities().items():
        shares = ", ".join(f"{operation} {share:.2f}" for operation, share in probabilities.items())
        print(f"{decision}: {shares}; moved in {moved.steps[decision]} of {search.architecture_steps} steps")
    return search.derive()


if __name__ == "__main__":
    print(main())
