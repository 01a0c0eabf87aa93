"""The quick CIFAR-10 study on made-up images, as a program that a test can kill: study_to_kill.py FOLDER [JOBS].

With ray for JOBS it runs on a cluster of this machine with two workers.
"""

import importlib
import os
import sys
from functools import lru_cache, partial
from pathlib import Path

import torch

from advnas.paper.cifar10 import PRESETS, Cifar10
from advnas.paper.image_search import loss_at
from advnas.randomness import generator
from advnas.search import TwoStreams
from advnas.studies.engines import Processes, Ray
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

    def make_search(self, strategy, seed):
        note(strategy)
        return super().make_search(strategy, seed)

    def make_data(self, seed):
        training, validation = stream(seed, self.settings.images), stream(seed + 1, self.settings.images)
        return TwoStreams(partial(noted_loss_at, training), partial(loss_at, validation))


def note(what):
    """Who begins which search, and takes which step, in the file that NOTES names."""
    if "NOTES" in os.environ:
        with Path(os.environ["NOTES"]).open("a") as file:
            file.write(f"{os.getpid()} {what}\n")


def noted_loss_at(stream, step):
    note(step)
    return loss_at(stream, step)


def run(folder, engine=None):
    torch.set_num_threads(1)
    experiment = MadeUp(PRESETS["quick"], Path())
    execute(experiment, plan(experiment, STRATEGIES, [3]), folder, engine=engine)


def run_on_a_cluster(folder):
    """The engine finds the cluster by its address, as it would find one of many machines."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        run(folder, Ray(cluster.address))
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    folder, *jobs = sys.argv[1:]
    if jobs == ["ray"]:
        # By its name as a module, which is how the workers know it.
        importlib.import_module("study_to_kill").run_on_a_cluster(Path(folder))
    else:
        run(Path(folder), Processes(int(jobs[0])) if jobs else None)
