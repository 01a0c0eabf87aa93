import pytest
import torch

from advnas.randomness import generator
from advnas.tasks.cifar10 import Images
from advnas.tasks.image_stream import ImageStream, augment, normalise

COUNT, BATCH = 50, 8
INDICES = torch.arange(COUNT).flip(0)[:43]  # five minibatches and three images over; images 0 to 6 belong to others


def images():
    """Random images, each labelled with its own number."""
    pixels = torch.randint(256, (COUNT, 3, 32, 32), generator=generator(0)).to(torch.uint8)
    return Images(pixels, torch.arange(COUNT))


def stream(**options):
    return ImageStream(images(), INDICES, **{"batch": BATCH, "seed": 3, **options})


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def labels_of_epoch(stream, epoch):
    steps = range(epoch * len(stream), (epoch + 1) * len(stream))
    return torch.cat([stream.batch(step)[1] for step in steps]).tolist()


def test_a_minibatch_is_float_in_channels_last_with_its_labels():
    x, y = stream().batch(0)
    assert (x.shape, x.dtype) == ((BATCH, 3, 32, 32), torch.float32)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert (y.shape, y.dtype) == ((BATCH,), torch.int64)


def test_a_minibatch_is_a_function_of_the_seed_and_the_step_alone():
    straight, jumping = stream(), stream()
    expected = [straight.batch(step) for step in range(13)]
    for step in (12, 3, 7, 3, 0, 5):
        assert same(jumping.batch(step), expected[step])
    assert not same(stream(seed=4).batch(0), expected[0])


def test_an_epoch_shows_every_image_of_the_stream_at_most_once_and_drops_what_fills_no_minibatch():
    shown = labels_of_epoch(stream(), 0)
    assert len(stream()) == 5
    assert len(shown) == len(set(shown)) == 40
    assert set(shown) <= set(INDICES.tolist())


def test_every_epoch_has_its_own_order():
    first, second = (labels_of_epoch(stream(), epoch) for epoch in (0, 1))
    assert first != second
    assert set(first) | set(second) == set(INDICES.tolist())  # what one drops, another shows


def test_iteration_is_epoch_0_time_and_again():
    whole = stream()
    for _ in range(2):
        minibatches = list(whole)
        assert len(minibatches) == len(whole)
        assert all(same(minibatch, whole.batch(step)) for step, minibatch in enumerate(minibatches))


def test_augmentation_changes_neither_the_order_nor_the_labels():
    plain, augmented = stream(augment=False), stream()
    assert labels_of_epoch(plain, 1) == labels_of_epoch(augmented, 1)
    assert not torch.equal(plain.batch(0)[0], augmented.batch(0)[0])


def test_without_augmentation_the_images_come_as_they_are():
    x, y = stream(augment=False).batch(2)
    assert torch.equal(x, normalise(images().pixels[y]))


def test_an_image_augmented_again_is_another_one():
    few = ImageStream(images(), INDICES[:1], batch=1, seed=0)
    assert len({few.batch(step)[0].sum().item() for step in range(5)}) == 5


def one_image_after_the_other(pixels, randomness):
    """The plain way: flip a row, then copy what the shifted window still sees of the image, on black."""
    flip = torch.rand(len(pixels), generator=randomness) < 0.5
    top, left = torch.randint(9, (2, len(pixels)), generator=randomness)
    augmented = torch.zeros_like(pixels)
    for number, image in enumerate(pixels):
        down, right = int(top[number]) - 4, int(left[number]) - 4
        for row in range(max(0, -down), min(32, 32 - down)):
            for column in range(max(0, -right), min(32, 32 - right)):
                source = column + right
                augmented[number, :, row, column] = image[:, row + down, 31 - source if flip[number] else source]
    return augmented


def test_augmentation_equals_the_plain_way_of_one_image_after_the_other():
    pixels = images().pixels[:12]
    assert torch.equal(augment(pixels, generator(5)), one_image_after_the_other(pixels, generator(5)))


def test_flips_and_all_81_shifts_are_equally_likely():
    """A single bright pixel right of the middle tells where the image went."""
    pixels = torch.zeros(16_200, 3, 32, 32, dtype=torch.uint8)
    pixels[:, :, 16, 24] = 255
    found = augment(pixels, generator(0))[:, 0].nonzero()  # the pixel never leaves the image
    assert len(found) == len(pixels)
    rows, columns = found[:, 1], found[:, 2]
    flipped = columns < 16
    assert flipped.float().mean().item() == pytest.approx(0.5, abs=0.02)
    shifts = (rows - 12) * 9 + torch.where(flipped, columns - 3, columns - 20)
    counts = shifts.bincount()
    assert len(counts) == 81
    assert (counts - 200).abs().max() < 5 * 200**0.5


def test_halved_images_are_rounded_averages_of_two_by_two_pixels():
    pixels = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4).expand(2, 3, 4, 4)
    halved = Images(pixels, torch.tensor([3, 4])).halved()
    assert halved.pixels[1, 2].tolist() == [[2, 4], [10, 12]]  # of 2.5, 4.5, 10.5 and 12.5: halves to even
    assert halved.labels.tolist() == [3, 4]


def test_small_images_are_shifted_by_up_to_an_eighth_of_their_side():
    pixels = torch.zeros(2_000, 3, 16, 16, dtype=torch.uint8)
    pixels[:, :, 8, 8] = 255
    found = augment(pixels, generator(0))[:, 0].nonzero()
    assert sorted(set(found[:, 1].tolist())) == [6, 7, 8, 9, 10]


def test_pixels_are_normalised_with_the_constants_of_nasbench201():
    pixels = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 32, 32)
    black, white = normalise(pixels)[:, :, 0, 0]
    mean, std = torch.tensor([125.3, 123.0, 113.9]) / 255, torch.tensor([63.0, 62.1, 66.7]) / 255
    torch.testing.assert_close(black, -mean / std)
    torch.testing.assert_close(white, (1 - mean) / std)


def test_a_stream_does_not_change_its_images():
    given = images()
    before = given.pixels.clone()
    ImageStream(given, INDICES, batch=BATCH, seed=0).batch(0)
    assert torch.equal(given.pixels, before)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"indices": torch.zeros(2, 2, dtype=torch.int64), "batch": 1}, r"int64 \[n\], got torch.int64 \[2, 2\]"),
        ({"indices": torch.ones(COUNT, dtype=torch.bool), "batch": 1}, "got torch.bool"),
        ({"indices": INDICES, "batch": 44}, r"1 \.\. 43, .* got 44"),
        ({"indices": INDICES, "batch": 0}, "got 0"),
        ({"indices": torch.tensor([0, COUNT]), "batch": 1}, r"there are 50 images, got 0 \.\. 50"),
        ({"indices": torch.tensor([-1, 3]), "batch": 1}, r"got -1 \.\. 3"),
    ],
)
def test_what_cannot_be_a_stream_is_refused(options, fault):
    with pytest.raises(ValueError, match=fault):
        ImageStream(images(), seed=0, **options)


def test_steps_count_from_0():
    with pytest.raises(ValueError, match="from 0 across epochs, got -1"):
        stream().batch(-1)
