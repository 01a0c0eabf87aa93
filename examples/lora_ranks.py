"""Ranks of LoRA corrections, one per layer of a frozen network: which layers need how much?

A small transformer learns one half of a text and is frozen. Every linear layer of it gets a correction of low rank,
and the ranks are searched while the corrections adapt to the other half, within a number of parameters.
"""

from functools import partial

import torch
from torch import Tensor, nn

import advnas
from advnas.retrain import Recipe, retrain
from advnas.spaces.character_model import CharacterModel
from advnas.tasks.python_source import Pieces, bits_per_character, texts

BATCH, CONTEXT, WIDTH = 16, 64, 32
RANKS = (1, 2, 4, 8)


class Corrected(nn.Module):
    """A frozen layer and a correction whose rank is open: W x + U D x."""

    def __init__(self, frozen: nn.Linear, name: str) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        down = nn.Linear(frozen.in_features, max(RANKS), bias=False)
        up = nn.Linear(max(RANKS), frozen.out_features, bias=False)
        nn.init.zeros_(up.weight)
        self.rank = advnas.Width(nn.Sequential(down, up), RANKS, name=name)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.rank(x)  # type: ignore[no-any-return]


def task_of(text: Tensor, steps: int) -> advnas.Task:
    """Two thirds of a text for the weights, one for the decisions."""
    cut = 2 * len(text) // 3
    weights, theta = (Pieces(part, BATCH, CONTEXT, steps) for part in (text[:cut], text[cut:]))
    return advnas.Task(weights, theta, bits_per_character, examples=BATCH * CONTEXT)


def pretrain(text: Tensor, layers: int, steps: int) -> nn.Module:
    """Attention and MLP in turn, trained on a text."""
    space = advnas.SearchSpace(CharacterModel(width=WIDTH, layers=layers, context=CONTEXT))
    turns = {f"layer {number}": ("attention", "mlp")[number % 2] for number in range(layers)}
    recipe = Recipe(optimizer=partial(torch.optim.AdamW, lr=3e-3))
    return retrain(space.derive(turns), task_of(text, steps), epochs=2, recipe=recipe).model


def with_corrections(base: nn.Module) -> nn.Module:
    """Freeze a network, and correct all of its inner linear layers."""
    base.train().requires_grad_(False)  # `retrain` returns it in evaluation mode
    inner = [name for name, module in base.named_modules() if type(module) is nn.Linear and name.startswith("body")]
    for name in inner:
        place, _, attribute = name.rpartition(".")
        setattr(base.get_submodule(place), attribute, Corrected(base.get_submodule(name), name))  # type: ignore[arg-type]
    return base


def main(layers: int = 4, steps: int = 40, epochs: int = 4, parameters: int = 3_000) -> nn.Module:
    torch.manual_seed(0)
    text = texts()[0]
    half = len(text) // 2
    base = pretrain(text[:half], layers, steps)
    frozen = sum(weight.numel() for weight in base.parameters())
    model = with_corrections(base)
    search = advnas.Search(
        model,
        weight_optimizer=partial(torch.optim.AdamW, lr=3e-3),
        limit={"parameters": frozen + parameters},
    )
    ranks = search.run(task_of(text[half:], steps), epochs=epochs, warmup=epochs // 2)
    for name, rank in ranks.items():
        print(f"{name}: rank {rank}")
    return search.derive()


if __name__ == "__main__":
    main()
