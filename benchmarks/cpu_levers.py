"""What makes training on a CPU faster? Each lever as a ratio to the plain way, measured in one run, interleaved.

Weight steps of `random` on the NAS-Bench-201 network, the same uniformly drawn architectures for every variant:
memory layout, 3x3 average pooling as a depthwise convolution, and one or two threads.

    .venv/bin/python benchmarks/cpu_levers.py --json
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from advnas import Search
from advnas.randomness import generator, seed_of
from advnas.search import LossOf
from advnas.spaces.nasbench201 import ConvolutionCellNetwork, nasbench201_candidates


class DepthwisePool(nn.Module):
    """3x3 average pooling that does not count padding, as a convolution of every channel with a box."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("box", torch.ones(channels, 1, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        inside = torch.ones(1, 1, *x.shape[2:])
        count = F.conv2d(inside, torch.ones(1, 1, 3, 3), padding=1)
        return F.conv2d(x, self.box, padding=1, groups=x.shape[1]) / count  # type: ignore[arg-type]


def candidates(channels: int) -> dict[str, nn.Module]:
    return nasbench201_candidates(channels) | {"avg_pool_3x3": DepthwisePool(channels)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--cells", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="architectures, the same for every variant")
    parser.add_argument("--repeats", type=int, default=3, help="the fastest of these counts")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ratios = measure(options.channels, options.cells, options.steps, options.repeats)
    if options.json:
        print(json.dumps(ratios, indent=1))
    else:
        for name, ratio in ratios.items():
            print(f"{name:40s} {ratio:.2f}")


def measure(channels: int, cells: int, steps: int, repeats: int) -> dict[str, float]:
    layouts = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
    pools = {"avg_pool2d": None, "depthwise pool": candidates}
    variants: dict[str, Callable[[int], float]] = {}
    for layout_name, layout in layouts.items():
        loss_of = make_loss(layout)
        for pool_name, make in pools.items():
            network = partial(make_network, channels, cells, layout, make)
            for threads in (1, 2):
                label = f"{layout_name}, {pool_name}, {threads} threads".replace("1 threads", "1 thread")
                variants[label] = partial(seconds, network, loss_of, threads)
    fastest: dict[str, list[float]] = {name: [float("inf")] * steps for name in variants}
    for number in range(steps):
        print(f"architecture {number + 1} of {steps}", file=sys.stderr)
        for _ in range(repeats):
            for name, variant in variants.items():
                fastest[name][number] = min(fastest[name][number], variant(number))
    first = sum(next(iter(fastest.values())))
    return {name: round(sum(times) / first, 3) for name, times in fastest.items()}


def make_network(channels: int, cells: int, layout: torch.memory_format, make: object, seed: int) -> Search:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(0))
        network = ConvolutionCellNetwork(channels=channels, cells=cells, candidates=make)  # type: ignore[arg-type]
    return Search(network.to(memory_format=layout), "random", seed=seed)  # type: ignore[call-overload]


def make_loss(layout: torch.memory_format) -> LossOf:
    random = generator(0)
    images = torch.randn(64, 3, 32, 32, generator=random).to(memory_format=layout)
    labels = torch.randint(10, (64,), generator=random)
    return lambda model: F.cross_entropy(model(images), labels)


def seconds(make: Callable[[int], Search], loss_of: LossOf, threads: int, number: int) -> float:
    """A weight step of the architecture that a search with this seed draws first."""
    torch.set_num_threads(threads)
    search = make(number)
    start = time.perf_counter()
    search.weight_step(loss_of)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
