"""Parent: the weight-sharing network, run one draw at a time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from advnas.architecture import Draw
from advnas.choice import check_is_module
from advnas.gates import Lend, Trace, at_hand
from advnas.randomness import alone, seed_of, seeded
from advnas.records.interrupts import held_interrupts, interruptible
from advnas.search.compiled import warn_if_compiled
from advnas.search.precision import Precision
from advnas.search.schedule import Progress
from advnas.search.step import UNTOUCHED, Accumulated, LossOf, NonFinite, NonFiniteLoss, check_loss
from advnas.space import SearchSpace
from advnas.task import explaining_gradients


class Parent:
    """The model of a search, its space, and the randomness of its forward passes.

    rank: of this process among those that search together; rank 0 draws what a single process would.
    lend: keeps the weights of a rival at hand while it runs; what is there anyway, by default.
    reached: the places of the decisions that any pass came to; None before the first.
    """

    def __init__(self, model: nn.Module, seed: int, progress: Progress) -> None:
        check_is_module(model)
        warn_if_compiled(model)
        _refuse_wrappers(model)
        _refuse_lazy(model)
        self.model, self.space = model, SearchSpace(model)
        self.rank = 0
        self.precision = Precision()
        self.lend: Lend = at_hand
        self.reached: set[int] | None = None
        self._seed, self._progress = seed, progress

    @contextmanager
    def running(self, draw: Draw) -> Iterator[Trace]:
        """For one step, forward and backward: the model computes the draw, with the step's own randomness."""
        self.space.check_unchanged(draw)
        with self.space.running(draw, self.lend) as trace, self.randomness():
            yield trace
        came_to = {place for place, route in enumerate(trace.routes) if route.reached}
        self.reached = came_to if self.reached is None else self.reached | came_to
        if trace.wrapped:
            raise ValueError(f"The loss calls the network through DistributedDataParallel. {_USE_A_GROUP}")

    @contextmanager
    def randomness(self) -> Iterator[None]:
        """Seed torch's global generators from the numbers of the steps for a while, then put them back."""
        own = [self.rank] if self.rank else []
        taken = self._progress
        with seeded(seed_of(self._seed, taken.weight_steps, taken.architecture_steps, *own), self.space.device):
            yield

    def loss(self, loss_of: LossOf, trace: Trace | None = None) -> Tensor:
        """Compute the minibatch loss of the draw that is running. Ctrl-C is let through here.

        Args:
            loss_of: of the user; called once.
            trace: of the pass, if its loss will be differentiated.

        Raises:
            ValueError: it is not a scalar tensor, it has no graph although it should have one, or candidates of one
                choice disagree about their output shape.
        """
        try:
            with interruptible(), explaining_gradients(), self.precision.computing(self.space.device):
                found = loss_of(self.model)
        except BaseException as error:
            self.space.put_back()
            mismatch = self.space.mismatch() if isinstance(error, RuntimeError | ValueError | IndexError) else None
            if mismatch is not None:
                raise ValueError(mismatch) from error
            raise
        loss = check_loss(found)
        if trace is not None and not loss.requires_grad and not trace.may_lack_graph:
            raise ValueError(
                "The loss has no graph, so that nothing can be learned from it: it was computed under "
                "torch.no_grad() or torch.inference_mode(), or cut off by .detach(), .data or torch.tensor(...). "
                "Return it as the network gives it, for example F.cross_entropy(model(x), y)."
            )
        return loss

    def passes(self, loss_of: LossOf, trace: Trace | None = None) -> Iterator[tuple[Tensor, bool]]:
        """Compute the loss in the parts it has; yield each part's share of it, and whether another part follows.

        Whoever takes the backward pass of a part, and lets go of its share, before asking for the next, never keeps
        more than one graph.
        """
        if not isinstance(loss_of, Accumulated):
            yield self.loss(loss_of, trace), False
            return
        count = len(loss_of.parts)
        for number, part in enumerate(loss_of.parts, start=1):
            yield self.loss(part, trace) / count, number < count

    @contextmanager
    def step(self, name: str, draw: Draw) -> Iterator[None]:
        """Take a step: alone in this process, without interrupts but where the loss is computed, errors located.

        torch's generators are one per process, so that steps in several threads take turns.
        """
        graph = torch.is_grad_enabled()
        with alone(), held_interrupts(), self.located(name, draw):
            try:
                yield
            finally:
                torch.set_grad_enabled(graph)  # an interrupt may have come between a block and its end

    def check_slope(self, gradient: Tensor | None, draw: Draw, trace: Trace) -> None:
        """Raise ValueError where a loss has no gradient at the gates that the pass came to.

        A drawn zero operation may cut all others off from the loss; that is no mistake.
        """
        if gradient is None and draw.weights.requires_grad and not trace.may_lack_graph:
            raise ValueError(
                "The loss has no gradient at the operations that were drawn, which this strategy learns from. "
                "Compute it from the model's output without detach(), no_grad() or inference_mode(). What an "
                "architecture costs does not belong into the loss: write Search(..., limit={'parameters': "
                "100_000}) or penalty={...} with costs of advnas.costs."
            )

    @contextmanager
    def located(self, step: str, draw: Draw) -> Iterator[None]:
        """Say of every error inside in which step it happened, and what ran."""
        try:
            yield
        except NonFinite as error:
            raise NonFiniteLoss(f"{error} in {self._where(step, draw)}. {UNTOUCHED}") from None
        except Exception as error:
            error.add_note(f"This happened in {self._where(step, draw)}.")
            raise

    def _where(self, step: str, draw: Draw) -> str:
        taken = self._progress.weight_steps if step == "weight step" else self._progress.architecture_steps
        what = self.space.architecture(draw.weights).to_json() if draw.one_hot else "a mixture of all operations"
        return f"{step} {taken + 1}, running {what}"


_USE_A_GROUP = (
    "It averages the gradients of weights alone, so that theta would drift apart between the processes. Give the "
    "search the bare network and let it average both: Search(model, group=...), see docs/scaling_processes.md."
)


_WRAPPERS = {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"}  # the last is slow to import


def _refuse_wrappers(model: nn.Module) -> None:
    for module in model.modules():
        if not _WRAPPERS.isdisjoint(kind.__name__ for kind in type(module).__mro__):
            raise ValueError(f"The network is wrapped in {type(module).__name__}. {_USE_A_GROUP}")


def _refuse_lazy(model: nn.Module) -> None:
    lazy = [name for name, weight in (*model.named_parameters(), *model.named_buffers()) if is_lazy(weight)]
    if lazy:
        raise ValueError(
            f"{lazy[0]!r} has no shape yet: it belongs to a lazy module of torch, and a search must know its "
            "weights. Name the sizes, or run every candidate once before making the Search."
        )


def gradients(
    loss: Tensor, inputs: Sequence[Tensor], *, scale: float = 1.0, again: bool = False
) -> list[Tensor | None]:
    """Compute d loss / d inputs; None for what the drawn path does not touch. A path of zeros may touch nothing.

    A loss that takes gradients itself may have a graph where no input asks for one.

    scale: of the loss on its way back; see `Precision`.
    again: whether the graph between the inputs and the network, such as that of the gates, is needed once more.
    """
    if not (loss.requires_grad and any(one.requires_grad for one in inputs)):
        return [None] * len(inputs)
    if scale != 1.0:
        found = torch.autograd.grad(loss * scale, inputs, allow_unused=True, retain_graph=again)
        return [None if slope is None else slope / scale for slope in found]
    return list(torch.autograd.grad(loss, inputs, allow_unused=True, retain_graph=again))


def loss_and_slope(parent: Parent, loss_of: LossOf, draw: Draw, trace: Trace) -> tuple[Tensor, Tensor | None]:
    """Compute the loss of the draw that is running, and its d loss / d weights, part by part."""
    total, slope = None, None
    for loss, follows in parent.passes(loss_of):  # `check_slope` tells where nothing can be learnt from it
        part = gradients(loss, [draw.weights], scale=parent.precision.scale, again=follows)[0]
        if part is not None:
            slope = part if slope is None else slope + part
        total = loss.detach() if total is None else total + loss.detach()
        del loss  # and with it the graph, before the next part is computed
    assert total is not None
    parent.check_slope(slope, draw, trace)
    return total, gate_slope(slope, draw)


def gate_slope(gradient: Tensor | None, draw: Draw) -> Tensor | None:
    """d loss / d weights; 0 where the pass came to no gate, None where the draw asks for none."""
    if gradient is None and draw.weights.requires_grad:
        return torch.zeros_like(draw.weights, requires_grad=False)
    return gradient
