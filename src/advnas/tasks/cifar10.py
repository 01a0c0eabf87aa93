"""CIFAR-10 from its official binary files, every one checked, and its split into two halves for a search."""

import hashlib
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from advnas.randomness import generator
from advnas.task import Task
from advnas.tasks.data_folder import data_folder
from advnas.tasks.image_stream import IMAGE, Images, augment, normalise
from advnas.tasks.images import Shuffled, accuracy, cross_entropy

ARCHIVE = "cifar-10-binary.tar.gz"
SPLIT = "cifar-split.json"
FILES = {
    "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("test_batch.bin",),
}
MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    ARCHIVE: "c32a1d4ab5d03f1284b67883e8d87530",
}
_RECORD = 1 + 3 * 32 * 32  # the label, then the red, green and blue planes
_TRAINING = 50_000
_HALVES = 4  # sets this stream apart from the others of the same seed
_SUBSET = 0  # the first number of the paths of the streams that choose a part of each half
_TEST_BATCH = 500


def build(*, images: int = 6_400, batch: int = 64) -> Task:
    """Build the task: one half for the weights, the other for theta, the official test images to judge by.

    Args:
        images: how many of each half.
        batch: of how many images a minibatch is.

    Returns:
        The task, with random flips and shifts of the images that are learnt from.
    """
    folder = data_folder()
    known, test = read_once(folder, "train"), read_once(folder, "test")
    training, validation = (
        Shuffled(known.pixels[half], known.labels[half], batch, _augmented) for half in parts(folder, images)
    )
    return Task(training, validation, cross_entropy, test=_TestImages(test), metric=accuracy, examples=batch)


def parts(folder: Path, images: int) -> tuple[Tensor, Tensor]:
    """Return which images the weights and theta are trained on: a random part of each half, always the same."""
    read_once(folder, "train")
    both = halves(folder)
    if images > min(map(len, both)):
        raise ValueError(f"Each half of CIFAR-10 has {min(map(len, both)):,} images, got images={images:,}.")
    training, validation = (
        half[torch.randperm(len(half), generator=generator(_SUBSET, number))[:images]]
        for number, half in enumerate(both)
    )
    return training, validation


@dataclass(frozen=True)
class _TestImages:
    """Minibatches of the test images; they are normalised when they are asked for."""

    images: Images

    def __len__(self) -> int:
        return -(-len(self.images) // _TEST_BATCH)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self.images), _TEST_BATCH):
            rows = slice(start, start + _TEST_BATCH)
            yield normalise(self.images.pixels[rows]), self.images.labels[rows]


def _augmented(pixels: Tensor) -> Tensor:
    return normalise(augment(pixels, torch.default_generator))


@lru_cache(maxsize=2)
def read_once(folder: Path, part: Literal["train", "test"]) -> Images:
    """Read a part, and keep it for the next call."""
    return read(folder, part)


def read(folder: Path, part: Literal["train", "test"]) -> Images:
    """The 50,000 training images or the 10,000 test images found in a data folder, in the official order."""
    if part not in FILES:
        raise ValueError(f"part must be 'train' or 'test', got {part!r}.")
    place = _find(folder, FILES[part])
    blocks = [np.frombuffer(block, np.uint8).reshape(-1, _RECORD) for block in _checked(place, FILES[part])]
    pixels = np.concatenate([block[:, 1:] for block in blocks])
    labels = np.concatenate([block[:, 0] for block in blocks])
    return Images(torch.from_numpy(pixels).view(-1, *IMAGE), torch.from_numpy(labels).long())


def check(folder: Path) -> Path:
    """Where in a data folder the whole of CIFAR-10 lies: a folder of .bin files or the archive, hashes checked."""
    names = FILES["train"] + FILES["test"]
    place = _find(folder, names)
    for path in [place] if place.is_file() else [place / name for name in names]:
        _check_hash(path, path.read_bytes())
    return place


def halves(folder: Path | None = None, *, seed: int | None = None) -> tuple[Tensor, Tensor]:
    """Indices of the training images for the weights and for theta: two int64 [25000] that share nothing.

    NAS-Bench-201's own split where the data folder has its cifar-split.json; a random one of the seed where it
    does not, or where a seed is given.
    """
    path = find_split(data_folder(folder))
    if path is not None and seed is None:
        return read_split(path)
    order = torch.randperm(_TRAINING, generator=generator(seed or 0, _HALVES))
    first, second = order.chunk(2)
    return first.sort().values, second.sort().values


def find_split(folder: Path) -> Path | None:
    """NAS-Bench-201's split file in a data folder, if it is there."""
    return next((path for base in _bases(folder) if (path := base / SPLIT).is_file()), None)


def read_split(path: Path) -> tuple[Tensor, Tensor]:
    """The two halves, int64 [25000] each, of a file {"train": [indices], "valid": [indices]}."""
    try:
        split = json.loads(path.read_bytes())
        train, valid = split["train"], split["valid"]
        whole = sorted(train + valid) == list(range(_TRAINING)) and len(train) == len(valid)
        whole = whole and all(type(index) is int for index in train + valid)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(_bad_split(path, f"{type(error).__name__}: {error}")) from error
    if not whole:
        raise ValueError(_bad_split(path, f"got {len(train):,} and {len(valid):,} entries"))
    return torch.tensor(train), torch.tensor(valid)


def _bad_split(path: Path, found: str) -> str:
    return (
        f'{path} must be {{"train": [25,000 indices], "valid": [25,000 indices]}} with every one of 0 .. 49,999 '
        f"exactly once ({found}). Fetch NAS-Bench-201's file anew, or delete it to use a random split."
    )


def _bases(folder: Path) -> tuple[Path, Path]:
    return folder, folder / "cifar10"


def _find(folder: Path, names: tuple[str, ...]) -> Path:
    """The folder that has all the files, or the archive."""
    unpacked = [place for base in _bases(folder) for place in (base / "cifar-10-batches-bin", base)]
    for place in unpacked:
        if all((place / name).is_file() for name in names):
            return place
    archives = [base / ARCHIVE for base in _bases(folder)]
    for archive in archives:
        if archive.is_file():
            return archive
    places = "\n".join(f"  {place}" for place in [*(place / names[0] for place in unpacked), *archives])
    missing = {place: [name for name in names if not (place / name).is_file()] for place in unpacked}
    partial = [f"{place} lacks {', '.join(gaps)}. " for place, gaps in missing.items() if len(gaps) < len(names)]
    raise FileNotFoundError(
        f"No CIFAR-10 in {folder}. {''.join(partial)}Write `advnas data get cifar10`, or say where it is with "
        f"--data-folder or the environment variable ADVNAS_DATA.\nLooked for\n{places}"
    )


def _checked(place: Path, names: tuple[str, ...]) -> list[bytes]:
    """The contents of the files, in the order of the names."""
    if place.is_dir():
        contents = {name: (place / name).read_bytes() for name in names}
        for name, content in contents.items():
            _check_hash(place / name, content)
    else:
        _check_hash(place, place.read_bytes())
        contents = dict(_members(place, names))
    return [contents[name] for name in names]


def _members(archive: Path, names: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """In the archive's order: going back in a compressed file means to unpack it again from its start."""
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            name = Path(member.name).name
            file = tar.extractfile(member) if name in names else None
            if file is not None:
                yield name, file.read()


def _check_hash(path: Path, content: bytes) -> None:
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != MD5[path.name]:
        raise ValueError(
            f"{path} is damaged or not the official file: its MD5 must be {MD5[path.name]}, and is {found} "
            f"({len(content):,} bytes). Delete it and write `advnas data get cifar10`."
        )
