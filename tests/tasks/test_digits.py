import pytest
import torch

from advnas.tasks.digits import DigitStream, read


def test_there_are_1797_digits_of_ten_kinds():
    digits = read()
    assert digits.images.shape == (1797, 1, 8, 8)
    assert digits.labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (digits.images.min(), digits.images.max()) == (0, 1)


def test_the_order_is_mixed_and_always_the_same():
    first, second = read(), read()
    assert torch.equal(first.labels, second.labels)
    assert first.labels[:10].tolist() != list(range(10))  # as in the file


def test_an_epoch_gives_every_digit_once_and_every_epoch_another_order():
    digits = read()[:90]
    stream = DigitStream(digits, batch=30, seed=1)
    epochs = [torch.cat([stream.at(3 * epoch + step).images for step in range(3)]) for epoch in range(2)]
    for epoch in epochs:
        assert sorted(epoch.flatten(1).tolist()) == sorted(digits.images.flatten(1).tolist())
    assert not torch.equal(*epochs)


def test_a_minibatch_depends_on_the_seed_and_the_step_alone():
    streams = [DigitStream(read()[:100], batch=10, seed=seed) for seed in (1, 1, 2)]
    streams[0].at(3)
    minibatches = [stream.at(7).images for stream in streams]
    assert torch.equal(minibatches[0], minibatches[1])
    assert not torch.equal(minibatches[0], minibatches[2])


@pytest.mark.parametrize("batch", [0, 101])
def test_a_minibatch_has_at_least_one_digit_and_at_most_all(batch):
    with pytest.raises(ValueError, match=f"1 to 100 digits here, got {batch}"):
        DigitStream(read()[:100], batch=batch, seed=0)
