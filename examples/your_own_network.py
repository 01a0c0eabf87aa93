"""Search your own network: three lines differ from plain training (marked with #)."""

import torch
from torch import nn
from torch.nn import functional as F

import advnas


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = advnas.Choice(  #
            {
                "linear": nn.Linear(width, width),
                "gated": nn.Sequential(nn.Linear(width, 2 * width), nn.GLU()),
                "narrow": nn.Sequential(nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, width)),
                "skip": nn.Identity(),
            }
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.layer(x))


def main(strategy: str = "advantage", epochs: int = 20) -> nn.Module:
    torch.manual_seed(0)
    inputs = torch.randn(2048, 16)
    labels = (inputs[:, :8] * inputs[:, 8:]).sum(1).gt(0).long()
    batches = [(inputs[i : i + 64], labels[i : i + 64]) for i in range(0, len(inputs), 64)]
    model = nn.Sequential(nn.Linear(16, 32), Block(32), Block(32), nn.Linear(32, 2))

    task = advnas.Task(batches[:16], batches[16:], lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
    search = advnas.Search(model, strategy)  #
    architecture = search.run(task, epochs=epochs, warmup=epochs // 4)
    network = search.derive()  #
    print(strategy, dict(architecture))
    return network


if __name__ == "__main__":
    print(main())
