"""AllCandidateWeights: what travels together, and how a tensor leaves its backing and returns."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from advnas.architecture import Draw
from advnas.space import SearchSpace

Place = Callable[[Tensor], Tensor]
"""Gives a tensor a backing: another tensor with the same values and layout."""

VALUE = ""
"""The key of a parameter itself, next to the keys of its optimiser state."""


@dataclass
class OffloadedTensor:
    """A tensor that everybody knows by this very object, and the memory where its numbers live between steps."""

    tensor: Tensor
    backing: Tensor

    def load(self, device: torch.device) -> None:
        """Go to a device. From pinned memory this does not wait for the copy; the device keeps the order."""
        self.tensor.data = self.backing.to(device, copy=True, non_blocking=True)

    def write_back(self) -> None:
        """Bring the numbers back, changed or not."""
        self.backing.copy_(self.tensor.data)
        self.tensor.data = self.backing

    def discard(self) -> None:
        """Drop the copy: nothing has changed."""
        self.tensor.data = self.backing


@dataclass
class CandidateWeights:
    """One candidate of one decision, in all the tied choices; a nested choice's candidates are units of their own.

    parameters: by their names in the model. tensors: by parameter and by VALUE or the optimiser's own key.
    """

    name: str
    parameters: dict[str, nn.Parameter]
    tensors: dict[tuple[str, str], OffloadedTensor] = field(default_factory=dict)
    bytes: int = 0
    away: bool = False

    @property
    def backings(self) -> list[Tensor]:
        """Where its numbers are."""
        return [offloaded.backing for offloaded in self.tensors.values()]

    def sync(self, optimizer: Optimizer, place: Place) -> None:
        """Give a backing to whatever has none: the parameters, and state that the optimiser has just made."""
        tensors = dict(self._tensors(optimizer))
        gone = self.tensors.keys() - tensors.keys()  # the optimiser was set back to before it had this state
        for key in gone:
            del self.tensors[key]
        strangers = [key for key, tensor in tensors.items() if not self._knows(key, tensor)]
        for key in strangers:
            self._take_in(key, tensors[key], place)
        if gone or strangers:
            self.bytes = sum(backing.nbytes for backing in self.backings)

    def _tensors(self, optimizer: Optimizer) -> Iterator[tuple[tuple[str, str], Tensor]]:
        for name, parameter in self.parameters.items():
            yield (name, VALUE), parameter
            for key, value in optimizer.state.get(parameter, {}).items():
                # Step counters are too small to travel, and optimisers are particular about where they are.
                if isinstance(value, Tensor) and value.dim() > 0:
                    yield (name, key), value

    def _knows(self, key: tuple[str, str], tensor: Tensor) -> bool:
        """Whether a tensor is at backing. One that was replaced, or converted by model.to(...), is not."""
        known = self.tensors.get(key)
        return known is not None and known.tensor is tensor and tensor.data_ptr() == known.backing.data_ptr()

    def _take_in(self, key: tuple[str, str], tensor: Tensor, place: Place) -> None:
        known = self.tensors.pop(key, None)
        if known is not None and _alike(
            known.backing, tensor
        ):  # an optimiser that makes its state anew in every step
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
    """The units of a space by (decision, candidate).

    Weights that more than one candidate uses, or that share their memory with anything else, belong to no unit
    and stay on the compute device, as buffers do.
    """
    names = {parameter: name for name, parameter in space.model.named_parameters()}
    users = Counter(_storage(buffer) for buffer in space.model.buffers())
    for holding in (space.shared, *space.owned.values()):
        users.update(_storage(weight) for weight in dict.fromkeys(holding.weights))
    units: dict[tuple[int, ...], CandidateWeights] = {}
    for (row, column), holding in space.owned.items():
        decision = space.decisions[row]
        own = [w for w in dict.fromkeys(holding.weights) if _is_dense(w) and users[_storage(w)] == 1]
        name = f"{row}.{column} {decision.name} {decision.operations[column]}"
        units[row, column] = CandidateWeights(name, {names[weight]: weight for weight in own})
    return units


def load_shared_weights(space: SearchSpace, weights: Mapping[str, Tensor]) -> None:
    """Load a state_dict of the model in which the weights of candidates may be missing, but nothing else."""
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
    """A store knows the units of one search."""
    if hasattr(store, "_units"):
        raise ValueError(
            f"This {type(store).__name__} store already keeps the candidates of a search. Make a new one for every "
            "search."
        )


class AllCandidateWeights:
    """All units of a search, at backing between the steps."""

    def __init__(self, space: SearchSpace, optimizer: Optimizer, place: Place) -> None:
        self._units, self._optimizer, self._place = find_candidate_weights(space), optimizer, place

    def __iter__(self) -> Iterator[CandidateWeights]:
        return iter(self._units.values())

    def of(self, draw: Draw) -> list[CandidateWeights]:
        """The units that a draw runs, in the order of the network, without those that are away already."""
        units = (self._units[row, column] for row, column in draw.active.nonzero().tolist())
        return [unit for unit in units if not unit.away]

    def sync(self, units: Iterable[CandidateWeights]) -> None:
        """Give a backing to whatever has none yet."""
        for unit in units:
            unit.sync(self._optimizer, self._place)

    def move_rest(
        self, space: SearchSpace, device: torch.device, must_leave: Callable[[Tensor], bool] = lambda _: False
    ) -> None:
        """Move what belongs to no unit to the compute device, unless it is there already.

        must_leave: tells what may not stay where it is even then.
        """
        travelling = {id(parameter) for unit in self for parameter in unit.parameters.values()}
        for tensor in (*space.model.parameters(), *space.model.buffers()):
            if id(tensor) not in travelling:
                tensor.data = tensor.data.to(device, copy=must_leave(tensor))

    @contextmanager
    def away(self, units: list[CandidateWeights], device: torch.device | None, *, training: bool) -> Iterator[None]:
        """While this is open the units are on a device; on None they can be used where they live.

        The optimiser's state goes with them only where it is needed, and only what may have changed is copied back.
        """
        self.sync(units)
        tensors = [] if device is None else list(_offloaded(units, training))
        for unit in units:
            unit.away = True
        try:
            for offloaded in tensors:
                offloaded.load(device)  # type: ignore[arg-type]
            yield
        finally:
            for offloaded in tensors:
                offloaded.write_back() if training else offloaded.discard()
            for unit in units:
                unit.away = False
            if training:
                self.sync(units)


def _offloaded(units: list[CandidateWeights], training: bool) -> Iterator[OffloadedTensor]:
    for unit in units:
        for (_, key), offloaded in unit.tensors.items():
            if training or key == VALUE:
                yield offloaded
