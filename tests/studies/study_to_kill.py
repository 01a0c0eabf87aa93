"""The quick CIFAR-10 study on made-up images, as a program that a test can kill: study_to_kill.py FOLDER [JOBS]."""

import sys
from functools import lru_cache, partial
from pathlib import Path

import torch

from advnas.experiments.cifar10 import PRESETS, Cifar10, loss_at
from advnas.experiments.experiment import TwoStreams
from advnas.randomness import generator
from advnas.studies.execute import execute, plan
from advnas.tasks.cifar10 import Images
from advnas.tasks.image_stream import ImageStream

STRATEGIES = ["advantage", "parsec", "darts"]


@lru_cache
def stream(seed, images):
    random = generator(seed)
    pixels = torch.randint(256, (images, 3, 32, 32), dtype=torch.uint8, generator=random)
    labels = torch.randint(10, (images,), generator=random)
    return ImageStream(Images(pixels, labels), torch.arange(images), batch=64, seed=seed)


class MadeUp(Cifar10):
    """The same study without its data."""

    def make_data(self, seed):
        training, validation = stream(seed, self.settings.images), stream(seed + 1, self.settings.images)
        return TwoStreams(partial(loss_at, training), partial(loss_at, validation))


def run(folder, processes=1):
    torch.set_num_threads(1)
    experiment = MadeUp(PRESETS["quick"], Path())
    execute(experiment, plan(experiment, STRATEGIES, [3]), folder, processes=processes)


if __name__ == "__main__":
    run(Path(sys.argv[1]), *map(int, sys.argv[2:]))
