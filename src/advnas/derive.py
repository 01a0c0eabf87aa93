"""From theta to a network: rank architectures by their inherited weights, and make a derived one fit for use."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from advnas.architecture import Architecture
from advnas.distribution import Distribution
from advnas.randomness import generator, seed_of
from advnas.search import Search, check_count
from advnas.tasks import mean_over

Source = Literal["argmax", "process best", "draw"]


@dataclass(frozen=True)
class Scored:
    """An architecture on inherited weights. score: its mean loss, the lower the better. source: who proposed it."""

    architecture: Architecture
    score: float
    source: Source


def evaluated(
    search: Search,
    batches: Iterable[Any],
    loss: Callable[[nn.Module, Any], Tensor],
    *,
    count: int = 16,
    seed: int = 0,
) -> list[Scored]:
    """Score architectures on all the validation data with the weights they inherit, best first.

    batches: validation minibatches, read once for every architecture; score is the mean over them.
    loss: the scalar loss of a module on a minibatch, such as `task.loss`.
    count: how many different architectures, or all there are. The most likely one and the best of the search
        process are always among them; the others are drawn from theta.
    seed: of the draws, and of what is random in the data or the loss, which is the same for every architecture.

    Modules are in evaluation mode, but normalise with the statistics of the batch: running statistics, where the
    search kept any, are those of all paths together, and this is how theta was trained. It takes one pass; a module
    that is to be used afterwards needs `settle_norms`. The search is left exactly as it was.
    """
    check_count("count", count)
    if isinstance(batches, Iterator):
        raise ValueError(
            f"Every architecture is run on all the batches, and a {type(batches).__name__} can be read only once. "
            "Pass a list or a DataLoader."
        )
    proposals = _proposals(search, count, generator(seed, 0))
    scored = [
        Scored(architecture, _mean_loss(search.derive(architecture), batches, loss, seed_of(seed, 1)), source)
        for architecture, source in proposals.items()
    ]
    return sorted(scored, key=lambda one: math.inf if math.isnan(one.score) else one.score)


def _proposals(search: Search, count: int, random: torch.Generator) -> dict[Architecture, Source]:
    proposals: dict[Architecture, Source] = {search.argmax(): "argmax"}
    if search.process_best is not None:
        proposals.setdefault(search.process_best.architecture, "process best")
    for chosen in draw_different(search.distribution, count, random):
        if len(proposals) < count:
            proposals.setdefault(search.space.architecture(chosen), "draw")
    return proposals


def _mean_loss(
    module: nn.Module, batches: Iterable[Any], loss: Callable[[nn.Module, Any], Tensor], seed: int
) -> float:
    devices = {weight.device for weight in module.parameters() if weight.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)), batch_statistics(module):
        torch.manual_seed(seed)
        return mean_over(module, batches, lambda module, batch: _number(loss(module, batch)))


def _number(loss: Tensor) -> float:
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        raise ValueError(
            f"The loss must be a tensor with one number, got {getattr(loss, 'shape', type(loss).__name__)}. "
            "Return for example F.cross_entropy(model(x), y), or take .mean()."
        )
    return loss.item()


def draw_different(distribution: Distribution, count: int, random: torch.Generator) -> Tensor:
    """Draw from p_theta one after the other without replacement: one-hot [draws, decisions, candidates].

    Gives `count` draws, or all there are, however peaked theta is; drawing until something new comes up could
    take forever. The k largest of log p(a) + Gumbel noise are k such draws. A part of an architecture stands for
    the largest among all that begin with it, so k parts at a time are enough (stochastic beam search, Kool et al.
    2019, https://arxiv.org/abs/1903.06059).
    """
    log_p = noisy = torch.zeros(1, dtype=torch.float64)
    chosen = torch.zeros(1, 0, distribution.logits.shape[-1])
    for row in distribution.logits.detach().double().log_softmax(-1):
        longer = log_p[:, None] + row
        scores = _with_maximum(Distribution(longer).perturbed(random), noisy[:, None]).flatten()
        places = scores.topk(min(count, int(scores.isfinite().sum()))).indices
        log_p, noisy = longer.flatten()[places], scores[places]
        parts, column = places // len(row), places % len(row)
        operation = nn.functional.one_hot(column, len(row)).to(chosen.dtype)
        chosen = torch.cat([chosen[parts], operation[:, None]], dim=1)
    return chosen


def _with_maximum(noisy: Tensor, maximum: Tensor) -> Tensor:
    """Gumbel variables given each row's largest: -log(e^-maximum - e^-largest + e^-noisy), without overflow."""
    largest = noisy.max(-1, keepdim=True).values
    v = maximum - noisy + torch.log1p(-torch.exp(noisy - largest))
    return maximum - v.clamp_min(0) - torch.log1p(torch.exp(-v.abs()))


def settle_norms(module: nn.Module, batches: Iterable[Any], run: Callable[[nn.Module, Any], object]) -> None:
    """Give every BatchNorm of a derived module the statistics of its own path, for use in evaluation mode.

    run: passes a minibatch through the module, such as `lambda module, batch: module(batch[0])`, or a loss.

    Mean and variance are those of all values that reached a layer in one pass over the batches, while the layers
    before it normalised with the statistics of the batch. The variance is the one that training mode divides by, so
    that with all the data in one batch both modes give the same output. Dropout is off, as it will be in use.
    Layers built without running statistics, as those of a search network, get some; a layer without an affine part
    stays so. Modes are left as they were, and a pass that fails changes nothing.
    """
    seen = {norm: _Moments() for norm in module.modules() if isinstance(norm, _BatchNorm)}
    hooks = [norm.register_forward_hook(moments.add) for norm, moments in seen.items()]
    empty = True
    try:
        with torch.no_grad(), batch_statistics(module):
            for batch in batches:
                run(module, batch)
                empty = False
    finally:
        for hook in hooks:
            hook.remove()
    if empty:
        raise ValueError("There are no batches to take statistics from. Pass some of the training data.")
    track_norms(module)
    for norm, moments in seen.items():
        moments.settle(norm)


class _Moments:
    """Sums over everything that reached one layer, in double precision."""

    def __init__(self) -> None:
        self._calls = self._values = 0
        self._sum: Tensor | float = 0.0
        self._squares: Tensor | float = 0.0

    def add(self, norm: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Take in x [batch, channels, ...], which the layer has accepted."""
        x = inputs[0].to(torch.promote_types(inputs[0].dtype, torch.float32))
        others = [dimension for dimension in range(x.dim()) if dimension != 1]
        variance, mean = (moment.double() for moment in torch.var_mean(x, others, correction=0))
        values = x.numel() // x.shape[1]
        self._sum = self._sum + values * mean
        self._squares = self._squares + values * (variance + mean**2)
        self._values += values
        self._calls += 1

    def settle(self, norm: _BatchNorm) -> None:
        """Write mean and variance into the layer; one that nothing reached keeps what it has."""
        if self._calls and norm.running_mean is not None and norm.running_var is not None:
            mean, square = torch.as_tensor(self._sum) / self._values, torch.as_tensor(self._squares) / self._values
            norm.running_mean.copy_(mean)
            norm.running_var.copy_((square - mean**2).clamp_min(0))
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked.fill_(self._calls)


def track_norms(module: nn.Module) -> None:
    """Give running statistics, of mean 0 and variance 1, to every BatchNorm that was built without.

    After this, weights that were exported from a module with settled norms fit into a freshly derived one.
    """
    like = next((weight for weight in module.parameters() if weight.is_floating_point()), torch.zeros(()))
    for norm in module.modules():
        if isinstance(norm, _BatchNorm) and norm.running_mean is None:
            norm.track_running_stats = True
            norm.running_mean = like.new_zeros(norm.num_features)
            norm.running_var = like.new_ones(norm.num_features)
            norm.num_batches_tracked = like.new_zeros((), dtype=torch.long)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """For a while, everything is in evaluation mode."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def batch_statistics(module: nn.Module) -> Iterator[None]:
    """For a while, evaluation mode, except that norms use the statistics of the batch and leave their own alone."""
    norms = [part for part in module.modules() if isinstance(part, _NormBase)]
    tracked = [norm.track_running_stats for norm in norms]
    with evaluating(module):
        for norm in norms:
            norm.training, norm.track_running_stats = True, False
        try:
            yield
        finally:
            for norm, track in zip(norms, tracked, strict=True):
                norm.track_running_stats = track
