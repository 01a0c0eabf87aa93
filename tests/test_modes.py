"""Modes for a while: every part gets its own back."""

import pytest
import torch
from torch import nn

from advnas.modes import batch_statistics, evaluating


def network():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), nn.BatchNorm1d(3))
    model[2].eval()
    return model


@pytest.mark.parametrize("mode", [evaluating, batch_statistics])
def test_every_part_gets_its_own_mode_back_also_after_an_error(mode):
    model = network()
    before = [part.training for part in model.modules()]
    with pytest.raises(RuntimeError), mode(model):
        raise RuntimeError
    assert [part.training for part in model.modules()] == before


def test_norms_take_the_statistics_of_the_batch_and_keep_their_own():
    model, x = network(), torch.randn(8, 3)
    before = [buffer.clone() for buffer in model.buffers()]
    with batch_statistics(model):
        output = model(x)
    torch.testing.assert_close(output.mean(0), torch.zeros(3))
    assert all(map(torch.equal, model.buffers(), before))
