"""What a search will need, told before it runs: memory and time, measured on single architectures."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from advnas.architecture import Draw
from advnas.arguments import format_size
from advnas.gates.buffers import still
from advnas.notebook import table
from advnas.randomness import generator
from advnas.space import SearchSpace

_SAMPLES, _REPEATS = 3, 3  # architectures that are measured, and how often they are timed


@dataclass(frozen=True)
class Plan:
    """Bytes, except where a name says otherwise; `of_one`: of a single architecture, the largest that was measured.

    weights, weights_of_one: parameters alone. optimizer_factor: bytes the optimiser keeps for a byte of weights.
    activations: kept for the backward pass of one architecture. dense_activations: an upper bound of what all
    candidates together keep, the sum of what they keep one at a time. pass_seconds: a forward and a backward pass.
    available: memory of the compute device that is free now; None where it cannot be told.
    """

    parameters: int
    weights: int
    weights_of_one: int
    optimizer_factor: float
    activations: int
    dense_activations: int
    pass_seconds: float
    available: int | None

    @property
    def sparse_peak(self) -> int:
        """Of a step that runs one candidate per decision, all weights resident."""
        return int(self.weights * (1 + self.optimizer_factor)) + self.weights_of_one + self._in_passing

    @property
    def stored_peak(self) -> int:
        """The same where the weights of undrawn candidates live elsewhere."""
        return int(self.weights_of_one * (2 + self.optimizer_factor)) + self._in_passing

    @property
    def dense_peak(self) -> int:
        """Of a step that runs all candidates; an upper bound."""
        return int(self.weights * (2 + self.optimizer_factor)) + self.dense_activations

    @property
    def _in_passing(self) -> int:
        """Activations, or after them the copy of weights and optimiser state that undoes a step which fails."""
        return max(self.activations, int(self.weights_of_one * (1 + self.optimizer_factor)))

    def fits(self, peak: int) -> bool | None:
        """Whether there is room for it now; None where that cannot be told."""
        return None if self.available is None else peak <= self.available

    def rows(self) -> dict[str, str]:
        """Everything in words, by name."""
        return {
            "parameters": f"{self.parameters:,}",
            "weights of all candidates": format_size(self.weights),
            "weights of one architecture": format_size(self.weights_of_one),
            "optimiser state": f"{self.optimizer_factor:.3g} bytes per byte of weights",
            "activations of one architecture": format_size(self.activations),
            "peak of a sparse step": self._peak(self.sparse_peak),
            "peak with weights='host' or 'disk'": self._peak(self.stored_peak),
            "peak of a dense step, at most": self._peak(self.dense_peak),
            "a forward and a backward pass": f"{self.pass_seconds:.3g} s",
        }

    def _peak(self, peak: int) -> str:
        fits = {True: "fits", False: "does not fit", None: "cannot tell whether it fits"}[self.fits(peak)]
        return f"{format_size(peak)}: {fits}"

    def __repr__(self) -> str:
        return (
            f"Plan({self.parameters:,} parameters; a sparse step needs {self._peak(self.sparse_peak)}; "
            f"a pass takes {self.pass_seconds:.3g} s)"
        )

    def _repr_html_(self) -> str:
        return table("Before anything runs", self.rows().items())


def measure(
    space: SearchSpace,
    loss_of: Callable[[nn.Module], Tensor],
    make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
) -> Plan:
    """Run a few architectures forwards and backwards, one at a time. Weights and statistics stay as they are."""
    with still(space.model.modules()):
        columns = [_kept(space, loss_of, _column(space, place)) for place in range(max(space.sizes))]
        samples = [_sample(space, seed) for seed in range(_SAMPLES)]
        kept = [_kept(space, loss_of, architecture) for architecture in samples]
        seconds = [min(_pass_seconds(space, loss_of, one) for _ in range(_REPEATS)) for one in samples]
    weights = list(space.model.parameters())
    return Plan(
        parameters=sum(weight.numel() for weight in weights),
        weights=sum(weight.nbytes for weight in weights),
        weights_of_one=max(_weights_of(space, architecture) for architecture in samples),
        optimizer_factor=_optimizer_factor(make_optimizer),
        activations=max(kept),
        dense_activations=sum(columns),
        pass_seconds=sum(seconds) / len(seconds),
        available=available_bytes(space.device),
    )


def _column(space: SearchSpace, place: int) -> dict[str, str]:
    """The architecture of the candidates at one place of every decision."""
    return {d.name: d.operations[place % len(d.operations)] for d in space.decisions}


def _sample(space: SearchSpace, seed: int) -> dict[str, str]:
    random = generator(seed)
    return {
        d.name: d.operations[int(torch.randint(len(d.operations), (1,), generator=random))] for d in space.decisions
    }


def _kept(space: SearchSpace, loss_of: Callable[[nn.Module], Tensor], architecture: dict[str, str]) -> int:
    with space.running(architecture):
        return saved_bytes(lambda: loss_of(space.model))


def _pass_seconds(
    space: SearchSpace, loss_of: Callable[[nn.Module], Tensor], architecture: dict[str, str]
) -> float:
    weights = [weight for weight in space.model.parameters() if weight.requires_grad]
    start = time.perf_counter()
    with space.running(architecture):
        loss = loss_of(space.model)
    if loss.requires_grad:
        torch.autograd.grad(loss, weights, allow_unused=True)
    if space.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _weights_of(space: SearchSpace, architecture: dict[str, str]) -> int:
    return sum(weight.nbytes for weight in space.parameters(Draw.bare(space.one_hot(architecture))))


def _optimizer_factor(make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> float:
    """What an optimiser keeps for a parameter, tried on one of its own."""
    parameter = nn.Parameter(torch.ones(64, 64))
    parameter.grad = torch.zeros_like(parameter)
    optimizer = make_optimizer([parameter])
    optimizer.step()
    state = [value for values in optimizer.state.values() for value in values.values()]
    kept = sum(value.nbytes for value in state if isinstance(value, Tensor) and value.dim())
    return kept / parameter.nbytes


def available_bytes(device: torch.device) -> int | None:
    """Free memory of a device; on a CPU what Linux could give to a program."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    path = Path("/proc/meminfo")
    if device.type != "cpu" or not path.exists():
        return None
    lines = dict(line.split(":") for line in path.read_text(encoding="utf-8").splitlines() if ":" in line)
    return int(lines["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in lines else None


def saved_bytes(step: Callable[[], object]) -> int:
    """Bytes of distinct memory that a step's forward pass keeps for its backward pass, parameters aside."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if not tensor.is_leaf or not tensor.requires_grad:
            # Tensor.data_ptr would turn copies that only happen on a write into real ones.
            address: int = torch._C._data_address(tensor)  # type: ignore[attr-defined]
            start = address - int(tensor.storage_offset()) * tensor.itemsize
            kept[start] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step()
    return sum(kept.values())
