"""Minibatches of CIFAR-10 as a pure function of a seed and a step: nothing to save, nothing to fall out of step."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from advnas.randomness import generator

# NAS-Bench-201's constants, so that accuracies may be compared with its table.
MEAN = torch.tensor([125.3, 123.0, 113.9]).view(3, 1, 1)
STD = torch.tensor([63.0, 62.1, 66.7]).view(3, 1, 1)
IMAGE = (3, 32, 32)
_BORDER = 8  # one part in so many of the image: 4 pixels of 32, 2 of 16
_AT_ONCE = 1000  # images as float32 numbers
_ORDER, _AUGMENT = 2, 3  # set these streams apart from the others of the same seed


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images: pixels uint8 [n, 3, side, side], labels int64 [n]."""

    pixels: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        pixels, labels = self.pixels, self.labels
        side = pixels.shape[-1]
        if pixels.dtype != torch.uint8 or pixels.dim() != 4 or pixels.shape[1:] != (3, side, side):
            raise ValueError(f"pixels must be uint8 [n, 3, side, side], got {pixels.dtype} {list(pixels.shape)}.")
        if labels.dtype != torch.int64 or labels.shape != pixels.shape[:1]:
            raise ValueError(
                f"labels must be int64 [{len(pixels)}], one per image, got {labels.dtype} {list(labels.shape)}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def halved(self) -> "Images":
        """The same images at half the resolution: averages of 2 x 2 pixels, rounded."""
        means = (F.avg_pool2d(part.float(), 2).round_().byte() for part in torch.split(self.pixels, _AT_ONCE))
        return Images(torch.cat(list(means)), self.labels)


class ImageStream:
    """Minibatch number `step` of a stream without end, always the same one for the same seed and step.

    Every epoch has an order of its own, and drops the images that do not fill a last minibatch. A search goes on
    exactly where it stopped from nothing but its step, and two methods with one seed see the same minibatches.
    Give the streams of a search that should not move together different seeds.

    images, indices: the images this stream draws from are images.pixels[indices]; indices int64 [n].
    augment: flip each image with probability 1/2, and shift it by up to an eighth of its side.
    """

    def __init__(self, images: Images, indices: Tensor, *, batch: int, seed: int, augment: bool = True) -> None:
        _check(images, indices, batch)
        self._images = images
        self._indices = indices
        self._size = batch
        self._seed = seed
        self._augment = augment
        self._order: tuple[int, Tensor] | None = None

    def __len__(self) -> int:
        """Minibatches per epoch."""
        return len(self._indices) // self._size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The minibatches of epoch 0, the same every time."""
        return (self.batch(step) for step in range(len(self)))

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Minibatch number `step`, counted from 0 across epochs: x float32 [batch, 3, side, side] in
        channels_last and y int64 [batch].
        """
        if step < 0:
            raise ValueError(f"step counts minibatches from 0 across epochs, got {step}.")
        epoch, place = divmod(step, len(self))
        chosen = self._order_of(epoch)[place * self._size : (place + 1) * self._size]
        pixels = self._images.pixels[chosen]
        if self._augment:
            pixels = augment(pixels, generator(self._seed, _AUGMENT, step))
        return normalise(pixels), self._images.labels[chosen]

    def _order_of(self, epoch: int) -> Tensor:
        if self._order is None or self._order[0] != epoch:
            shuffled = torch.randperm(len(self._indices), generator=generator(self._seed, _ORDER, epoch))
            self._order = epoch, self._indices[shuffled]
        return self._order[1]


def augment(pixels: Tensor, randomness: torch.Generator) -> Tensor:
    """Flip each image with probability 1/2, then shift it by up to an eighth: [n, 3, side, side] to the same.

    What the shift uncovers is black, as in torchvision's RandomCrop(32, padding=4) before the normalisation.
    """
    count, side = len(pixels), pixels.shape[-1]
    border = side // _BORDER
    flip = torch.rand(count, generator=randomness) < 0.5
    top, left = torch.randint(2 * border + 1, (2, count), generator=randomness)
    flipped = torch.where(flip.view(-1, 1, 1, 1), pixels.flip(-1), pixels)
    padded = F.pad(flipped, [border] * 4)
    windows = padded.unfold(2, side, 1).unfold(
        3, side, 1
    )  # a view of all crops: [n, 3, 9, 9, 32, 32] where side is 32
    return windows[torch.arange(count), :, top, left]


def normalise(pixels: Tensor) -> Tensor:
    """uint8 [n, 3, side, side] to float32 in channels_last; of mean 0 and variance 1 over CIFAR-10, side 32."""
    # Planes first, layout last: arithmetic with one constant a plane takes a third of the time.
    return pixels.float().sub_(MEAN).div_(STD).contiguous(memory_format=torch.channels_last)


def _check(images: Images, indices: Tensor, batch: int) -> None:
    if indices.dim() != 1 or indices.dtype != torch.int64:
        raise ValueError(f"indices must be int64 [n], got {indices.dtype} {list(indices.shape)}.")
    if not 1 <= batch <= len(indices):
        raise ValueError(f"batch must lie in 1 .. {len(indices)}, the number of indices, got {batch}.")
    if indices.min() < 0 or indices.max() >= len(images):
        raise ValueError(
            f"indices must lie in 0 .. {len(images) - 1}, as there are {len(images)} images, "
            f"got {int(indices.min())} .. {int(indices.max())}."
        )
