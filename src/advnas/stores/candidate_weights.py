"""CandidateWeights: what is loaded together, and how a tensor is loaded from its backing and written back."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from advnas.space import SearchSpace

Place = Callable[[Tensor], Tensor]
"""Gives a tensor a backing: another tensor with the same values and layout."""

VALUE = ""
"""The key of a parameter itself, next to the keys of its optimiser state."""


@dataclass
class OffloadedTensor:
    """A tensor that model and optimiser refer to, and the memory where its numbers are between the steps."""

    tensor: Tensor
    backing: Tensor

    def load(self, device: torch.device) -> None:
        """Copy the numbers to a device. From pinned memory this does not wait; the device keeps the order."""
        self.tensor.data = self.backing.to(device, copy=True, non_blocking=True)

    def write_back(self) -> None:
        """Copy the numbers to the backing, changed or not."""
        self.backing.copy_(self.tensor.data)
        self.tensor.data = self.backing

    def discard(self) -> None:
        """Drop the copy on the device: nothing has changed."""
        self.tensor.data = self.backing


@dataclass
class CandidateWeights:
    """The weights of one candidate of one decision, in all tied choices, without those of nested candidates.

    Attributes:
        name: Decision and candidate.
        parameters: By their names in the model.
        tensors: By parameter and by VALUE or the optimiser's own key.
        bytes: The size of all tensors.
        loaded: Whether it is in use.
    """

    name: str
    parameters: dict[str, nn.Parameter]
    tensors: dict[tuple[str, str], OffloadedTensor] = field(default_factory=dict)
    bytes: int = 0
    loaded: bool = False

    @property
    def backings(self) -> list[Tensor]:
        """Where the numbers are between the steps."""
        return [offloaded.backing for offloaded in self.tensors.values()]

    def sync(self, optimizer: Optimizer, place: Place) -> None:
        """Give a backing to whatever has none: the parameters, and state that the optimiser has just made."""
        tensors = dict(self._tensors(optimizer))
        obsolete = self.tensors.keys() - tensors.keys()  # the optimiser was set back to before it had this state
        for key in obsolete:
            del self.tensors[key]
        new = [key for key, tensor in tensors.items() if not self._has(key, tensor)]
        for key in new:
            self._offload(key, tensors[key], place)
        if obsolete or new:
            self.bytes = sum(backing.nbytes for backing in self.backings)

    def _tensors(self, optimizer: Optimizer) -> Iterator[tuple[tuple[str, str], Tensor]]:
        for name, parameter in self.parameters.items():
            yield (name, VALUE), parameter
            for key, value in optimizer.state.get(parameter, {}).items():
                # Step counters and factored moments are small, and only the optimiser knows where they must be.
                if isinstance(value, Tensor) and value.dim() > 0 and value.shape == parameter.shape:
                    yield (name, key), value

    def _has(self, key: tuple[str, str], tensor: Tensor) -> bool:
        """Whether a tensor is in its backing. One that was replaced, or converted by model.to(...), is not."""
        known = self.tensors.get(key)
        return known is not None and known.tensor is tensor and tensor.data_ptr() == known.backing.data_ptr()

    def _offload(self, key: tuple[str, str], tensor: Tensor, place: Place) -> None:
        known = self.tensors.pop(key, None)
        if known is not None and _alike(known.backing, tensor):  # an optimiser that makes new state in every step
            backing = known.backing.copy_(tensor.data)
        elif _is_dense(tensor):
            backing = place(tensor.data)
        else:
            return
        self.tensors[key] = OffloadedTensor(tensor, backing)
        tensor.data = backing


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.stride() == other.stride() and one.dtype == other.dtype


def _is_dense(tensor: Tensor) -> bool:
    """Whether every number has its own place in memory and no place is left out, in whatever order."""
    strided = tensor.layout is torch.strided and tensor.numel() > 0
    return strided and bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


def find_candidate_weights(space: SearchSpace) -> dict[tuple[int, ...], CandidateWeights]:
    """Find the weights of the candidates of a space.

    Weights that more than one candidate uses, or that share their memory with anything else, belong to no candidate
    and stay on the compute device, as buffers do.

    Args:
        space: The space.

    Returns:
        The weights by (decision, candidate).
    """
    names = {parameter: name for name, parameter in space.model.named_parameters()}
    users = Counter(_storage(buffer) for buffer in space.model.buffers())
    for holding in (space.shared, *space.owned.values()):
        users.update(_storage(weight) for weight in dict.fromkeys(holding.weights))
    found: dict[tuple[int, ...], CandidateWeights] = {}
    for (row, column), holding in space.owned.items():
        decision = space.decisions[row]
        own = [w for w in dict.fromkeys(holding.weights) if _is_dense(w) and users[_storage(w)] == 1]
        name = f"{row}.{column} {decision.name} {decision.operations[column]}"
        found[row, column] = CandidateWeights(name, {names[weight]: weight for weight in own})
    return found


def load_shared_weights(space: SearchSpace, weights: Mapping[str, Tensor]) -> None:
    """Load a state_dict of the model in which the weights of candidates may be missing, but nothing else.

    Args:
        space: The space.
        weights: The state_dict.

    Raises:
        ValueError: It is of another model.
    """
    loaded = space.model.load_state_dict(weights, strict=False)
    owned = {weight for holding in space.owned.values() for weight in holding.weights}
    names = {name for name, weight in space.model.named_parameters(remove_duplicate=False) if weight in owned}
    wrong = [*loaded.unexpected_keys, *(name for name in loaded.missing_keys if name not in names)]
    if wrong:
        raise ValueError(
            f"The checkpoint is of another network: they differ in {', '.join(wrong)}. Make the model as it was "
            "made when the search began."
        )


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def check_unused(store: object) -> None:
    """Raise ValueError if a store has the candidates of a search already."""
    if hasattr(store, "_candidates"):
        raise ValueError(
            f"This {type(store).__name__} store already keeps the candidates of a search. Make a new one per "
            "search."
        )


class AllCandidateWeights:
    """All candidates of a search; their weights are in the backings between the steps."""

    def __init__(self, space: SearchSpace, optimizer: Optimizer, place: Place) -> None:
        self._candidates, self._optimizer, self._place = find_candidate_weights(space), optimizer, place

    def __iter__(self) -> Iterator[CandidateWeights]:
        return iter(self._candidates.values())

    def of(self, places: Sequence[tuple[int, ...]]) -> list[CandidateWeights]:
        """Find the candidates at some places (decision, candidate), without those already loaded."""
        drawn = (self._candidates[place] for place in places)
        return [candidate for candidate in drawn if not candidate.loaded]

    def sync(self, candidates: Iterable[CandidateWeights]) -> None:
        """Give a backing to whatever has none yet."""
        for candidate in candidates:
            candidate.sync(self._optimizer, self._place)

    def move_rest(
        self, space: SearchSpace, device: torch.device, must_leave: Callable[[Tensor], bool] = lambda _: False
    ) -> None:
        """Move what belongs to no candidate to the compute device, unless it is there already.

        Args:
            space: The space.
            device: The compute device.
            must_leave: Tells what may not stay where it is even then.
        """
        offloaded = {id(parameter) for candidate in self for parameter in candidate.parameters.values()}
        for tensor in (*space.model.parameters(), *space.model.buffers()):
            if id(tensor) not in offloaded:
                tensor.data = tensor.data.to(device, copy=must_leave(tensor))

    @contextmanager
    def loaded(
        self, candidates: list[CandidateWeights], device: torch.device | None, *, training: bool
    ) -> Iterator[None]:
        """Keep candidates on a device while the block runs.

        Args:
            candidates: Those that `of` found.
            device: The device, or None if they can be used in their backings.
            training: Load the optimiser's state too, and write everything back at the end.
        """
        self.sync(candidates)
        tensors = [] if device is None else list(_offloaded(candidates, training))
        for candidate in candidates:
            candidate.loaded = True
        try:
            for offloaded in tensors:
                offloaded.load(device)  # type: ignore[arg-type]
            yield
        finally:
            for offloaded in tensors:
                offloaded.write_back() if training else offloaded.discard()
            for candidate in candidates:
                candidate.loaded = False
            if training:
                self.sync(candidates)


def _offloaded(candidates: list[CandidateWeights], training: bool) -> Iterator[OffloadedTensor]:
    for candidate in candidates:
        for (_, key), offloaded in candidate.tensors.items():
            if training or key == VALUE:
                yield offloaded
