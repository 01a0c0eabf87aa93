"""A small language model in which every layer chooses its mixer and the width of its feed-forward part.

    python examples/hybrid_language_model.py          # seconds: one small search under a limit of parameters
    cd examples && advnas search hybrid_language_model:make_search --epochs 12 --seeds 6 --limit parameters=79k

It reads Penn Treebank, character by character, where ADVNAS_DATA has it, and else the source code of Python.
"""

from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import advnas
from advnas.tasks import penn_treebank, python_source
from advnas.tasks.data_folder import data_folder
from advnas.tasks.python_source import Pieces

WIDTH, HEADS, CONTEXT, BATCH = 32, 4, 64, 16
WIDTHS = range(WIDTH // 2, 4 * WIDTH + 1, WIDTH // 2)  # of the feed-forward parts


def rotated(x: Tensor) -> Tensor:
    """Turn pairs of units by angles that grow with the place, so that attention sees distances (rotary)."""
    half = x.shape[-1] // 2
    place, unit = torch.arange(x.shape[-2], device=x.device), torch.arange(half, device=x.device)
    angle = place[:, None] * 100 ** (-unit / half)
    first, second = x.chunk(2, dim=-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


class Attention(nn.Module):
    """Causal self-attention; over the last `window` places, or over all."""

    seen: Tensor

    def __init__(self, window: int | None = None) -> None:
        super().__init__()
        self.inwards, self.outwards = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        seen = torch.ones(CONTEXT, CONTEXT).tril()
        self.register_buffer("seen", (seen if window is None else seen.triu(1 - window)).bool(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        heads = self.inwards(x).view(batch, time, 3 * HEADS, -1).transpose(1, 2)
        query, key = rotated(heads[:, HEADS:]).chunk(2, dim=1)
        mixed = F.scaled_dot_product_attention(query, key, heads[:, :HEADS], attn_mask=self.seen[:time, :time])
        return self.outwards(mixed.transpose(1, 2).reshape(batch, time, width))  # type: ignore[no-any-return]


class GatedConvolution(nn.Module):
    """A depthwise convolution over the last places, multiplied by a gate."""

    def __init__(self, kernel: int = 7) -> None:
        super().__init__()
        self.past = kernel - 1
        self.conv, self.gate = nn.Conv1d(WIDTH, WIDTH, kernel, groups=WIDTH), nn.Linear(WIDTH, WIDTH)
        self.outwards = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.conv(F.pad(x.transpose(1, 2), (self.past, 0))).transpose(1, 2)
        return self.outwards(mixed * F.silu(self.gate(x)))  # type: ignore[no-any-return]


class LinearRecurrence(nn.Module):
    """h_t = a h_{t-1} + (1 - a) v_t with a decay a per unit, multiplied by a gate; all places at once."""

    def __init__(self) -> None:
        super().__init__()
        self.inwards, self.outwards = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.decay = nn.Parameter(torch.empty(WIDTH))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Decays from 0.5 to 0.99."""
        with torch.no_grad():
            self.decay.copy_(torch.logit(torch.linspace(0.5, 0.99, WIDTH)))

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.inwards(x).chunk(2, dim=-1)
        ago = torch.arange(x.shape[1], device=x.device)
        ago = ago[:, None] - ago  # how long ago place s is for place t
        weight = torch.exp(F.logsigmoid(self.decay)[:, None, None] * ago.clamp_min(0)) * (ago >= 0)
        state = torch.einsum("cts,bsc->btc", weight * torch.sigmoid(-self.decay)[:, None, None], value)
        return self.outwards(state * F.silu(gate))  # type: ignore[no-any-return]


MIXERS = ("attention", "window", "convolution", "recurrence", "none")


class Layer(nn.Module):
    """x + mixer(norm(x)), then x + feed-forward(norm(x)): both are open."""

    def __init__(self, number: int) -> None:
        super().__init__()
        mixers = (Attention(), Attention(window=8), GatedConvolution(), LinearRecurrence(), advnas.Zero())
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixer = advnas.Choice(dict(zip(MIXERS, mixers, strict=True)), name=f"mixer {number}")
        body = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.ffn = advnas.Width(body, WIDTHS, name=f"ffn {number}")

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(self.first(x))
        return x + self.ffn(self.second(x))  # type: ignore[no-any-return]


class LanguageModel(nn.Module):
    """[batch, time] characters to the logits of the next ones, [batch, characters, time]."""

    def __init__(self, layers: int = 8) -> None:
        super().__init__()
        self.words = nn.Embedding(python_source.CHARACTERS, WIDTH)
        self.layers = nn.Sequential(*map(Layer, range(layers)))
        self.last = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, python_source.CHARACTERS))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(self.words(x))).transpose(1, 2)  # type: ignore[no-any-return]


def treebank(steps: int) -> advnas.Task:
    """Half of the training text for the weights, half for the decisions, the validation text to judge by."""
    train, valid = treebank_texts(data_folder())
    half = len(train) // 2
    judged = list(Pieces(valid, BATCH, CONTEXT, 60).drawn(torch.Generator().manual_seed(0)))
    weights, theta = (Pieces(text, BATCH, CONTEXT, steps) for text in (train[:half], train[half:]))
    return advnas.Task(weights, theta, python_source.bits_per_character, test=judged, examples=BATCH * CONTEXT)


@cache
def treebank_texts(folder: Path) -> tuple[Tensor, Tensor]:
    """The training and the validation text of Penn Treebank, read once."""
    corpus = penn_treebank.read(folder)
    train, valid = (" ".join(corpus.vocabulary[word] for word in text) for text in (corpus.train, corpus.valid))
    return characters(train), characters(valid)


def characters(text: str) -> Tensor:
    """ASCII codes, 0 for anything else."""
    codes = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    return codes * (codes < python_source.CHARACTERS)


def make_search(
    strategy: str = "contrast",
    seed: int = 0,
    *,
    layers: int = 8,
    steps: int = 100,
    limit: dict[str, int] | None = None,
) -> tuple[advnas.Search, advnas.Task]:
    """A search of the model and its task, as `advnas search` asks for."""
    try:
        task = treebank(steps)
    except FileNotFoundError:
        task = python_source.build(batch=BATCH, context=CONTEXT, steps=steps)
    torch.manual_seed(seed)
    search = advnas.Search(
        LanguageModel(layers),
        strategy,
        weight_optimizer=partial(torch.optim.AdamW, lr=3e-3, fused=True),
        weight_clip=1.0,
        seed=seed,
        limit=limit,
    )
    return search, task


def main(layers: int = 4, steps: int = 30, epochs: int = 4, parameters: int = 30_000) -> nn.Module:
    search, task = make_search(layers=layers, steps=steps, limit={"parameters": parameters})
    architecture = search.run(task, epochs=epochs, warmup=epochs // 2)
    for number in range(layers):
        print(f"layer {number}: {architecture[f'mixer {number}']}, {architecture[f'ffn {number}']} units")
    network: nn.Module = search.derive()
    print(f"{sum(weight.numel() for weight in network.parameters()):,} parameters")
    return network


if __name__ == "__main__":
    main()
