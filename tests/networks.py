"""Small networks whose choices are nested, tied, or both."""

import torch
from torch import nn

from advnas import Choice, Zero


def block(width, deeper):
    """A candidate with decisions of its own, one of them with a decision inside."""
    inner = {"small": nn.Linear(width, width), "wide": nn.Sequential(nn.Linear(width, 3 * width), deeper)}
    norm = Choice({"layer": nn.LayerNorm(width), "none": nn.Identity()}, name="norm")
    return nn.Sequential(nn.Linear(width, width), Choice(inner, name="inner"), norm)


def nested(width=6):
    """Decisions inside candidates, three deep."""
    deeper = Choice(
        {"full": nn.Linear(3 * width, width), "thin": nn.Sequential(nn.Linear(3 * width, 2), nn.Linear(2, width))},
        name="deepest",
    )
    outer = {"skip": nn.Identity(), "linear": nn.Linear(width, width), "block": block(width, deeper)}
    return nn.Sequential(nn.Linear(4, width), Choice(outer, name="outer"), nn.Linear(width, 2))


class Tied(nn.Module):
    """One decision in three places of different widths, one of them inside a candidate of another decision."""

    def __init__(self):
        super().__init__()
        self.first, self.second = tied(4), tied(4)
        inner = nn.Sequential(nn.Linear(4, 8), tied(8), nn.Linear(8, 4))
        self.third = Choice({"plain": nn.Linear(4, 4), "inner": inner, "none": Zero()}, name="third")

    def forward(self, x):
        return self.third(self.second(self.first(x)))


def tied(width):
    """A choice of the decision `tied`."""
    thin = nn.Sequential(nn.Linear(width, 1), nn.Linear(1, width))
    return Choice({"full": nn.Linear(width, width), "thin": thin, "none": nn.Identity()}, name="tied")


def apart():
    """One decision in candidates of two decisions: it is reached through either."""
    left = Choice({"a": nn.Sequential(nn.Linear(4, 4), tied(4)), "b": nn.Identity()}, name="left")
    right = Choice({"a": nn.Sequential(nn.Linear(4, 4), tied(4)), "b": nn.Identity()}, name="right")
    return nn.Sequential(left, right)


def uniform(space, count, seed=0):
    """Random architectures of a space."""
    random = torch.Generator().manual_seed(seed)
    for _ in range(count):
        columns = [int(torch.randint(size, (), generator=random)) for size in space.sizes]
        yield {d.name: d.operations[k] for d, k in zip(space.decisions, columns, strict=True)}
