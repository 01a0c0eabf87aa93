"""Is the answer of a search better than random architectures, where choices stand in series?

A chain of five layers for the digits; each is a convolution (3 x 3, 1 x 1 or depthwise, with BatchNorm and ReLU), a
pooling or a skip connection. 60 epochs, 30 of them warm-up, theta's rate 0.05, everything else as `Search` has it.
Reported per seed: the loss of the argmax on the test digits with the shared weights and the statistics of the
batch, and how many of 100 random architectures are worse under the same weights.

    .venv/bin/python benchmarks/chain_answer.py --json
    .venv/bin/python benchmarks/chain_answer.py --strategy advantage --seeds 900
"""

import argparse
import json
from functools import partial

import torch

from advnas import Choice, Search, strategies
from advnas.architecture import Draw
from advnas.distribution import Distribution
from advnas.modes import batch_statistics
from advnas.randomness import generator, seed_of, seeded
from advnas.records.provenance import provenance
from advnas.tasks import digits
from credit_structures import digit_network, layers

EPOCHS, WARMUP, RANDOM = 60, 30, 100
THETA = partial(
    torch.optim.Adam, lr=0.05, betas=(0.5, 0.999), weight_decay=3e-3, fused=True
)  # but for lr the paper's


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)
    rows = [measure(options.strategy, seed) for seed in options.seeds]
    if options.json:
        print(json.dumps({"strategy": options.strategy, "rows": rows, "source": provenance()}, indent=1))
        return
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", default="contrast", choices=strategies.names())
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(60, 66)))
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measure(strategy: str, seed: int) -> dict[str, float]:
    """Search once, and compare the answer with random architectures under the same weights."""
    with seeded(seed_of(seed)):
        network = digit_network(lambda: Choice(layers(8) | {"skip": torch.nn.Identity()}), places=5)
    task = digits.build(batch=50)
    search = Search(network, strategy, architecture_optimizer=THETA, seed=seed)
    search.run(task, epochs=EPOCHS, warmup=WARMUP)
    uniform = Distribution(torch.where(search.distribution.logits.isfinite(), 0.0, -torch.inf))
    random = generator(seed, 1)
    others = sorted(loss(search, uniform.sample(random)) for _ in range(RANDOM))
    answer = loss(search, search.distribution.mode())
    return {
        "seed": seed,
        "loss": round(answer, 4),
        "median_random_loss": round(others[RANDOM // 2], 4),
        "worse_of_100": sum(other > answer for other in others),
        "entropy": round(search.distribution.entropy().mean().item(), 3),
    }


def loss(search: Search, chosen: torch.Tensor) -> float:
    """Mean loss of an architecture on all test digits."""
    test = list(digits.build(batch=50).test or [])
    with search.space.running(Draw.bare(chosen)), batch_statistics(search.model), torch.no_grad():
        return sum(torch.nn.functional.cross_entropy(search.model(x), y).item() for x, y in test) / len(test)


if __name__ == "__main__":
    main()
