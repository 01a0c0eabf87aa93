"""Which attention does a transformer block need? Candidates that take several inputs, one of them by keyword."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import advnas

LENGTH, WIDTH = 12, 16


class Attention(nn.Module):
    """Multi-head self-attention; with a window, a position sees itself and the `window - 1` positions before it."""

    def __init__(self, heads: int, window: int | None = None) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.inward, self.outward = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor, *, positions: Tensor) -> Tensor:
        allowed = mask[:, None, None, :]
        if self.window is not None:
            distance = positions[:, None] - positions[None, :]
            allowed = allowed & (distance >= 0) & (distance < self.window)
        query, key, value = self.inward(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        out: Tensor = self.outward(mixed.transpose(1, 2).flatten(-2))
        return out


class Mean(nn.Module):
    """Every position gets the mean of all that are not padding."""

    def __init__(self) -> None:
        super().__init__()
        self.outward = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor, *, positions: Tensor) -> Tensor:
        weights = mask[:, :, None] / mask.sum(1)[:, None, None]
        out: Tensor = self.outward((x * weights).sum(1, keepdim=True)).expand_as(x)
        return out


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(2, WIDTH), nn.Linear(WIDTH, 2)
        self.place = nn.Embedding(LENGTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        full = {f"heads_{heads}": Attention(heads) for heads in (1, 2, 4)}
        other = {"none": advnas.Zero(), "local": Attention(2, window=4), "mean": Mean()}
        self.attention = advnas.Choice({**other, **full})  # Zero takes whatever the others take
        wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        gated = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GLU(), nn.Linear(2 * WIDTH, WIDTH))
        self.mlp = advnas.Choice({"none": advnas.Zero(), "wide": wide, "gated": gated})

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1])
        x = self.embed(tokens) + self.place(positions)
        x = x + self.attention(self.norms[0](x), mask, positions=positions)
        x = x + self.mlp(self.norms[1](x))
        logits: Tensor = self.head(x[:, 0])
        return logits


def sequences(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (a value, a mark), a mask, labels: the sign of the one marked value, to be told at position 0."""
    lengths = torch.randint(4, LENGTH + 1, (count,))
    marked = (torch.rand(count) * lengths).long()
    values, marks = torch.randn(count, LENGTH), F.one_hot(marked, LENGTH).float()
    labels = values.gather(1, marked[:, None]).squeeze(1).gt(0).long()
    return torch.stack([values, marks], -1), torch.arange(LENGTH) < lengths[:, None], labels


def main(strategy: str = "advantage", epochs: int = 12) -> nn.Module:
    torch.manual_seed(0)
    batches = [sequences(64) for _ in range(64)]
    task = advnas.Task(
        batches[:32], batches[32:], lambda model, batch: F.cross_entropy(model(batch[0], batch[1]), batch[2])
    )
    adam = partial(torch.optim.Adam, lr=0.01)
    search = advnas.Search(Transformer(), strategy, weight_optimizer=adam, architecture_optimizer=adam)
    architecture = search.run(task, epochs=epochs, warmup=epochs // 3)
    print(strategy, dict(architecture))
    return search.derive()


if __name__ == "__main__":
    print(main())
