"""A small language model of characters in which every layer is open: attention, convolution, MLP or nothing."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from advnas.arguments import check_count
from advnas.choice import Choice, Zero

_HEADS = 4


class Attention(nn.Module):
    """Causal self-attention: [batch, time, width] to the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inwards, self.outwards = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Mix every place with those before it."""
        batch, time, width = x.shape
        query, key, value = self.inwards(x).view(batch, time, 3, _HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.outwards(mixed.transpose(1, 2).reshape(batch, time, width))  # type: ignore[no-any-return]


class CausalConvolution(nn.Module):
    """A depthwise convolution over the past, GELU, and a linear layer: [batch, time, width] to the same."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.past = kernel - 1
        self.conv, self.outwards = nn.Conv2d(width, width, (1, kernel), groups=width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Mix every place with the few before it."""
        # A picture of height 1 whose channels lie last in memory, as they do in x: on a CPU depthwise convolutions
        # of these take two thirds of the time of Conv1d.
        picture = F.pad(x, (0, 0, self.past, 0)).transpose(1, 2).unsqueeze(2)
        mixed = self.conv(picture).squeeze(2).transpose(1, 2)
        return self.outwards(F.gelu(mixed))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """A residual layer: x + choice(norm(x))."""

    def __init__(self, width: int, number: int) -> None:
        super().__init__()
        mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        convolutions = {f"conv{kernel}": CausalConvolution(width, kernel) for kernel in (3, 9)}
        candidates = {"attention": Attention(width), **convolutions, "mlp": mlp, "none": Zero()}
        self.norm, self.choice = nn.LayerNorm(width), Choice(candidates, name=f"layer {number}")

    def forward(self, x: Tensor) -> Tensor:
        """[batch, time, width] to the same."""
        return x + self.choice(self.norm(x))  # type: ignore[no-any-return]


class CharacterModel(nn.Module):
    """Embeddings of characters and places, residual layers of which each is a choice, and a classifier.

    The transformer that people write has attention and MLP in turn.

    Args:
        width: of all layers; a multiple of 4, the heads of the attention.
        layers: how many choices there are.
        context: how many characters are seen at a time.
        characters: how many different ones there are.
    """

    def __init__(self, *, width: int = 32, layers: int = 16, context: int = 64, characters: int = 128) -> None:
        super().__init__()
        for name, value in (("layers", layers), ("context", context), ("characters", characters)):
            check_count(name, value)
        if check_count("width", width) % _HEADS:
            raise ValueError(f"width must be a multiple of {_HEADS}, the heads of the attention, got {width}.")
        self.words, self.places = nn.Embedding(characters, width), nn.Embedding(context, width)
        self.body = nn.Sequential(*(Layer(width, number) for number in range(layers)))
        self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, characters))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, time] to the logits of every next character: [batch, characters, time]."""
        places = self.places(torch.arange(x.shape[1], device=x.device))
        return self.last(self.body(self.words(x) + places)).transpose(1, 2)  # type: ignore[no-any-return]


def build(*, width: int = 32, layers: int = 16, context: int = 64, characters: int = 128) -> CharacterModel:
    """Build the network; see `CharacterModel`."""
    return CharacterModel(width=width, layers=layers, context=context, characters=characters)
