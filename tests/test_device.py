import pytest
import torch

from advnas.device import Device


def test_a_batch_is_placed_with_all_its_tensors():
    batch = {"x": torch.zeros(2), "more": (torch.ones(1), "text")}
    placed = Device("meta").place(batch)
    assert placed["x"].device.type == placed["more"][0].device.type == "meta"
    assert placed["more"][1] == "text"


def test_operations_run_in_the_precision():
    matrix = torch.ones(2, 2)
    with Device("cpu", "bfloat16").computing():
        assert (matrix @ matrix).dtype == torch.bfloat16
    with Device("cpu").computing():
        assert (matrix @ matrix).dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "precision", "message"),
    [("abacus", "float32", "device 'abacus' cannot be used here"), ("cpu", "int8", "precision must be one of")],
)
def test_what_cannot_be_used_is_told(name, precision, message):
    with pytest.raises(ValueError, match=message):
        Device(name, precision)
