"""Layers that torch computes by kernels of their own cost what their matrix multiplications cost."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advnas import Choice, SearchSpace, costs

WIDTH, TOKENS = 32, 10
PROJECTIONS = 4 * TOKENS * WIDTH * WIDTH  # queries, keys, values and the output
SCORES = 2 * TOKENS * TOKENS * WIDTH  # of every token for every other, and the sums that they weigh
X = torch.zeros(1, TOKENS, WIDTH)


class SelfAttention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.attention, self.options = nn.MultiheadAttention(WIDTH, 4, batch_first=True), options

    def forward(self, x):
        return self.attention(x, x, x, **self.options)[0]


class Fused(nn.Module):
    """Attention by torch's own function."""

    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.layer = kind(WIDTH, WIDTH, batch_first=True, **options)

    def forward(self, x):
        return self.layer(x)[0][..., :WIDTH]


GATE = 2 * TOKENS * WIDTH * WIDTH  # of the input, and of the hidden state
LAYERS = {
    "attention": (SelfAttention, PROJECTIONS + SCORES),
    "attention without its weights": (lambda: SelfAttention(need_weights=False), PROJECTIONS + SCORES),
    "scaled_dot_product_attention": (Fused, SCORES),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(WIDTH, 4, 64, batch_first=True),
        PROJECTIONS + SCORES + 2 * TOKENS * WIDTH * 64,
    ),
    "lstm": (lambda: Recurrent(nn.LSTM), 4 * GATE),
    "lstm in both directions": (lambda: Recurrent(nn.LSTM, bidirectional=True), 8 * GATE),
    "gru": (lambda: Recurrent(nn.GRU), 3 * GATE),
    "rnn": (lambda: Recurrent(nn.RNN), GATE),
}


def space_of(layer):
    return SearchSpace(nn.Sequential(Choice({"skip": nn.Identity(), "layer": layer}, name="one")))


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_costs_its_matrix_multiplications(name):
    make, expected = LAYERS[name]
    found = costs.multiply_adds(space_of(make()), X)
    assert (found.of({"one": "layer"}), found.of({"one": "skip"})) == (expected, 0)


def switches():
    return (
        torch.backends.mha.get_fastpath_enabled(),
        torch.backends.mkldnn.enabled,
        torch.backends.cudnn.enabled,
        torch.backends.cuda.flash_sdp_enabled(),
    )


class Broken(nn.Module):
    def forward(self, x):
        raise OSError("broken")


def test_torchs_switches_are_as_before_also_after_an_error():
    before = switches()
    costs.multiply_adds(space_of(nn.Linear(WIDTH, WIDTH)), X)
    assert switches() == before
    with pytest.raises(OSError, match="broken"):
        costs.multiply_adds(space_of(Broken()), X)
    assert switches() == before


def test_what_torch_counts_as_nothing_costs_nothing():
    """As the docstring says."""

    class Uncounted(nn.Module):
        def __init__(self):
            super().__init__()
            self.two = nn.Bilinear(WIDTH, WIDTH, WIDTH)

        def forward(self, x):
            rows = x[0]
            return self.two(x, x) + torch.mv(rows, rows[0]).dot(rows[:, 0]) + torch.cdist(x, x).sum() + x.tanh()

    assert costs.multiply_adds(space_of(Uncounted()), X).of({"one": "layer"}) == 0
