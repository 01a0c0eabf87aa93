"""What does our own Python cost, where the layers themselves cost next to nothing?

A chain of 64 choices, each between linear layers of 4 x 4, next to plain training of the derived chain with the
same optimiser and the same clipping. One thread; every step is timed in turn with plain training, because machines
change their speed from minute to minute; medians over all rounds. A step of plain training is forward pass,
backward pass, clipping and the optimiser's step. `joint_by_hand` is the least that torch itself takes for a joint
step: the derived chain, each layer's output times a scalar of its own, and besides the optimiser of the weights one
step of Adam on 64 vectors of logits. Nothing is drawn, routed, seeded or reported there.

    .venv/bin/python benchmarks/python_overhead.py --json
    .venv/bin/python benchmarks/python_overhead.py --profile weight_step
"""

import argparse
import cProfile
import json
import pstats
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from advnas import Choice, Search, strategies
from advnas.search import PAPER_THETA, PAPER_WEIGHTS

WIDTH, BATCH = 4, 16


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    steps = make_steps(options.choices, options.candidates, options.strategy)
    if options.profile:
        profile(steps[options.profile], options.rounds)
        return
    seconds = measure(steps, options.rounds)
    plain = seconds["plain"]
    found = {
        name: {"ratio": own / plain, "microseconds_per_choice": 1e6 * (own - plain) / options.choices}
        for name, own in seconds.items()
        if name != "plain"
    }
    if options.json:
        print(json.dumps({"strategy": options.strategy, "plain_milliseconds": 1e3 * plain, **found}, indent=1))
        return
    for name, row in found.items():
        print(f"{name:18s} {row['ratio']:.2f} of plain, {row['microseconds_per_choice']:.0f} us more per choice")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--strategy", default="advantage", choices=strategies.names())
    parser.add_argument("--choices", type=int, default=64)
    parser.add_argument("--candidates", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=300, help="how often every step is timed")
    parser.add_argument(
        "--profile", choices=("plain", "joint_by_hand", "weight_step", "architecture_step", "joint_step")
    )
    return parser.parse_args()


def chain(choices: int, candidates: int) -> nn.Module:
    return nn.Sequential(
        *(Choice({str(k): nn.Linear(WIDTH, WIDTH) for k in range(candidates)}) for _ in range(choices))
    )


def make_steps(choices: int, candidates: int, strategy: str) -> dict[str, Callable[[], object]]:
    x = torch.randn(BATCH, WIDTH)

    def loss_of(model: nn.Module) -> Tensor:
        output: Tensor = model(x)
        return output.square().mean()

    search = Search(chain(choices, candidates), strategy, steps=1_000_000)
    plain = search.derive()
    weights = list(plain.parameters())
    optimizer = PAPER_WEIGHTS(weights)

    def plain_step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(plain)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        loss.item()

    gates = [torch.ones((), requires_grad=True) for _ in range(choices)]
    logits = [nn.Parameter(torch.ones(candidates)) for _ in range(choices)]
    theta = PAPER_THETA(logits)

    def joint_by_hand() -> None:
        optimizer.zero_grad(set_to_none=True)
        y = x
        for layer, gate in zip(plain.children(), gates, strict=True):
            y = layer(y) * gate
        loss = y.square().mean()
        torch.autograd.backward(loss, inputs=[*gates, *weights])
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        for row, gate in zip(logits, gates, strict=True):
            assert gate.grad is not None
            row.grad, gate.grad = gate.grad.expand(candidates), None
        theta.step()
        optimizer.step()
        loss.item()

    return {
        "plain": plain_step,
        "joint_by_hand": joint_by_hand,
        "weight_step": lambda: search.weight_step(loss_of),
        "architecture_step": lambda: search.architecture_step(loss_of),
        "joint_step": lambda: search.joint_step(loss_of),
    }


def measure(steps: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 10):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if number >= 10:  # the first rounds warm up
                taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in taken.items()}


def profile(step: Callable[[], object], rounds: int) -> None:
    for _ in range(10):
        step()
    profiler = cProfile.Profile()
    profiler.runcall(lambda: [step() for _ in range(rounds)])
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
