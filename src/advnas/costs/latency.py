"""The latency of an architecture on a device: measured per operation, corrected by whole architectures."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from advnas.architecture import Architecture
from advnas.arguments import check_count
from advnas.costs.cost import Cost
from advnas.costs.observation import Example, call, computing, observe
from advnas.randomness import generator
from advnas.space import SearchSpace
from advnas.structure import ALWAYS, Condition, covering, places_of

_WHOLES = 12  # architectures that are measured whole
_WARM = 2  # runs before a clock is read


def latency(
    space: SearchSpace, example: Example, *, device: torch.device | str = "cpu", repeats: int = 10, seed: int = 0
) -> Cost:
    """Measure the milliseconds of a forward pass of every operation, then of whole architectures, and fit the two.

        c(a) = alpha + beta (sum of the medians per operation)

    The sum alone is wrong by what stands between operations, and by what a clock inside the network costs.
    Least squares over a few whole derived networks give alpha and beta; the note tells its R², and what
    was done where the fit would let something cost less than nothing.

    Args:
        space: its model runs in evaluation mode.
        example: what the network is called with, a tensor or a tuple of all arguments; the whole batch counts.
        device: where it is measured; the model is taken there and back.
        repeats: how often every number is measured; the median is taken.
        seed: of the whole architectures.
    """
    check_count("repeats", repeats)
    with _on(space.model, device):
        example = pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), example)
        parts = _medians(space, example, _clock(torch.device(device)), repeats)
        wholes = [_uniform(space, generator(seed, number)) for number in range(_WHOLES)]
        raw = Cost("latency", "ms", parts.pop(ALWAYS), {place: parts.get(place, 0.0) for place in places_of(space)})
        measured = [whole_latency(space.derive(one), example, repeats=repeats) for one in wholes]
    return _corrected(raw, [raw.of(one) for one in wholes], measured)


def whole_latency(model: nn.Module, example: Example, *, repeats: int = 10) -> float:
    """Measure the milliseconds of a forward pass of a module where it is: the median over the repeats."""
    parameter = next(model.parameters(), None)
    clock = _clock(torch.device("cpu") if parameter is None else parameter.device)
    with computing(model):
        times = [_seconds(model, example, clock) for _ in range(_WARM + repeats)]
    return 1000 * statistics.median(times[_WARM:])


def _seconds(model: nn.Module, example: Example, clock: Callable[[], float]) -> float:
    start = clock()
    call(model, example)
    return clock() - start


def _medians(
    space: SearchSpace, example: Example, clock: Callable[[], float], repeats: int
) -> dict[Condition, float]:
    """Milliseconds by condition."""
    seen = defaultdict[Condition, list[float]](list)
    for architecture in covering(space):
        for number in range(_WARM + repeats):
            for condition, seconds in observe(space, architecture, example, clock).items():
                if number >= _WARM:
                    seen[condition].append(1000 * max(seconds, 0.0))
    return {condition: statistics.median(times) for condition, times in seen.items()}


def _corrected(raw: Cost, predicted: list[float], measured: list[float]) -> Cost:
    """Fit measured = alpha + beta predicted, with beta > 0 and alpha + beta constant at least 0.

    So no operation and no architecture costs less than nothing. alpha itself may be negative: the sum counts the
    clock once per operation. The note names the fallback where there is one.
    """
    alpha, beta, fallback = _line(raw.constant, predicted, measured)
    fitted = [alpha + beta * value for value in predicted]
    rest = sum((one - other) ** 2 for one, other in zip(measured, fitted, strict=True))
    total = statistics.pvariance(measured) * len(measured)
    score = 1 - rest / total if total else 1.0
    terms: Mapping[Condition, float] = {condition: beta * value for condition, value in raw.terms.items()}
    note = f"fit to {len(measured)} whole networks: {alpha:.3g} ms + {beta:.3g} x sum, R² = {score:.3f}{fallback}"
    return Cost("latency", "ms", alpha + beta * raw.constant, terms, note)


def _line(constant: float, predicted: list[float], measured: list[float]) -> tuple[float, float, str]:
    """alpha, beta, and in words what was done where least squares do not help."""
    means, fallback = (statistics.fmean(predicted), statistics.fmean(measured)), ""
    spread = statistics.variance(predicted)
    beta = statistics.covariance(predicted, measured) / spread if spread > 0 else 0.0
    if beta <= 0:
        beta, fallback = 1.0, "; what was measured does not rise with the sum, which is only shifted"
    alpha = means[1] - beta * means[0]
    if alpha + beta * constant < 0:
        return 0.0, means[1] / means[0], "; through the origin, since the fixed part would be negative"
    return alpha, beta, fallback


def _uniform(space: SearchSpace, random: torch.Generator) -> Architecture:
    columns = [int(torch.randint(size, (), generator=random)) for size in space.sizes]
    return Architecture({d.name: d.operations[column] for d, column in zip(space.decisions, columns, strict=True)})


def _clock(device: torch.device) -> Callable[[], float]:
    if device.type != "cuda":
        return time.perf_counter

    def synchronized() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return synchronized


@contextmanager
def _on(model: nn.Module, device: torch.device | str) -> Iterator[None]:
    parameter = next(model.parameters(), None)
    before = "cpu" if parameter is None else parameter.device
    model.to(device)
    try:
        yield
    finally:
        model.to(before)
