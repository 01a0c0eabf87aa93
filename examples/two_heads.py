"""A model with two heads, a loss over both, and your own training loop; then derive and retrain."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import advnas
from advnas.retrain import retrain

Batch = tuple[Tensor, Tensor, Tensor]


def candidates(width: int) -> dict[str, nn.Module]:
    return {
        "linear": nn.Linear(width, width),
        "relu": nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)),
        "gated": nn.Sequential(nn.Linear(width, 2 * width), nn.GLU()),
    }


class TwoHeads(nn.Module):
    """A shared trunk; the class of a point and its distance from the origin. Every part is open."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Linear(2, width)
        self.trunk = advnas.Choice(candidates(width))
        self.side = advnas.Choice(candidates(width))
        self.radius = advnas.Choice(candidates(width))
        self.to_side, self.to_radius = nn.Linear(width, 2), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        shared = torch.tanh(self.first(x) + self.trunk(self.first(x)))
        radius = self.to_radius(shared + self.radius(shared)).squeeze(-1)
        return {"side": self.to_side(shared + self.side(shared)), "radius": radius}


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Any function of the model and a minibatch that gives one number; here a weighted sum over the heads."""
    x, side, radius = batch
    out = model(x)
    return F.cross_entropy(out["side"], side) + 2 * F.mse_loss(out["radius"], radius)


def main(strategy: str = "advantage", epochs: int = 20) -> nn.Module:
    torch.manual_seed(0)
    points = torch.randn(2048, 2)
    tensors = points, (points[:, 0] * points[:, 1] > 0).long(), points.norm(dim=1)
    batches: list[Batch] = list(zip(*(tensor.split(64) for tensor in tensors), strict=True))
    training, validation = batches[:16], batches[16:]

    steps, warmup = epochs * len(training), epochs // 4 * len(training)
    search = advnas.Search(
        TwoHeads(),
        strategy,
        steps=steps,  # learning rates and temperatures follow a schedule of this length
        warmup=warmup,
        architecture_optimizer=partial(torch.optim.Adam, lr=0.02),
    )
    for _ in range(epochs):
        for train_batch, valid_batch in zip(training, validation, strict=True):
            search.weight_step(partial(loss, batch=train_batch))
            if search.weight_steps > warmup:
                step = search.architecture_step(partial(loss, batch=valid_batch))
    print(strategy, dict(search.argmax()), f"after a step with loss {step.loss:.3f} and entropy {step.entropy:.2f}")

    network = search.derive(fresh=0)  # new weights; without `fresh` it inherits those of the search
    trained = retrain(network, advnas.Task(training, validation, loss), epochs=epochs)
    print(f"retrained: validation loss {trained.best.score:.3f} after epoch {trained.best.number}")
    return trained.model


if __name__ == "__main__":
    print(main())
