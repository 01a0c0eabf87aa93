"""The memory of an architecture in inference: its weights, and the most that its activations can take."""

import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from advnas.costs.cost import Cost
from advnas.costs.observation import Example, call, computing
from advnas.costs.parameters import owners_of
from advnas.space import SearchSpace
from advnas.structure import ALWAYS, Condition, covering, places_of


def memory(space: SearchSpace, example: Example) -> Cost:
    """Bound the bytes that inference needs: weights and buffers, exactly, plus the largest peak of activations.

        c(a) = bytes of the weights of a + max over all architectures b of (peak of the activations of b)

    A peak is a maximum and no sum, so it is taken at its largest and counted once: no architecture needs more than
    its cost. It is an estimate of what tensors take; the workspace of kernels and what an allocator keeps come on
    top.

    Args:
        space: a few architectures run once on the example, so that every operation is seen.
        example: what the network is called with, a tensor, a tuple of all arguments, or `Arguments`.

    Raises:
        ValueError: operations of different decisions share weights; see `parameters`.
    """
    count = Counter[Condition](dict.fromkeys(places_of(space), 0))
    for weight, conditions in owners_of(space, _parameters_and_buffers).items():
        for condition in conditions:
            count[condition] += weight.nbytes
    peak = max(_peak(space, architecture, example) for architecture in covering(space))
    return Cost("memory", "bytes", count.pop(ALWAYS, 0) + peak, dict(count))


def _parameters_and_buffers(module: nn.Module) -> Iterable[Tensor]:
    return (*module.parameters(recurse=False), *module.buffers(recurse=False))


def _peak(space: SearchSpace, architecture: Mapping[str, str], example: Example) -> int:
    with space.running(architecture), computing(space.model), _Activations() as activations:
        call(space.model, example)
    return int(activations.peak)


class _Activations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the memory of the tensors that operations make while it is open."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak: int = 0
        self._alive = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor):
                self._follow(leaf, new=False)
        output = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(output):
            if isinstance(leaf, Tensor):
                self._follow(leaf, new=True)
        self.peak = max(self.peak, self._alive)
        return output

    def _follow(self, tensor: Tensor, *, new: bool) -> None:
        """Count a storage once, until it is freed. Weights, which were there before, do not count."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._known:
            return
        size = storage.nbytes() if new else 0

        def freed(_: object) -> None:
            self._alive -= size
            del self._known[address]

        self._known[address] = weakref.ref(storage, freed)
        self._alive += size
