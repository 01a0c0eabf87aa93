"""SharedWeights: the weights of the parent network, their optimiser, and where the undrawn ones live."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from advnas.architecture import Draw
from advnas.arguments import check_count
from advnas.gates.buffers import BufferSnapshot, still
from advnas.parallel.group import Group
from advnas.parallel.reductions import average_weights
from advnas.records.plain import plain
from advnas.records.restoring import (
    check_form,
    check_optimizer,
    load_optimizer,
    optimizer_settings,
    rolled_back_on_failure,
)
from advnas.search.optimizers import weight_optimizer_of
from advnas.search.precision import Precision
from advnas.search.schedule import Annealing, Rates
from advnas.search.step import NonFinite, OptimizerOf, check_finite, clip_gradient
from advnas.search.undo import are_finite, undone_on_failure
from advnas.space import SearchSpace
from advnas.stores import Store, load_shared_weights


class SharedWeights:
    """All weights of the parent. A draw touches those of its active candidates and the shared ones.

    Args:
        space: of the parent.
        optimizer: called with all parameters, or an optimiser of them.
        annealing: maps the share of the weight steps already taken to a factor on the learning rates.
        clip: largest norm of a path's gradient; None for any.
        store: where undrawn candidates live.
    """

    def __init__(
        self,
        space: SearchSpace,
        optimizer: OptimizerOf | Optimizer,
        annealing: Annealing,
        clip: float | None,
        store: Store,
    ) -> None:
        parameters = list(space.model.parameters())
        if not parameters:
            raise ValueError(
                f"{type(space.model).__name__} has no weights, so there is nothing to train while searching. Put "
                "the Choice into a module with some."
            )
        self.space, self.clip, self.store = space, clip, store
        self.optimizer = weight_optimizer_of(optimizer, space.model)
        self.settings = optimizer_settings(self.optimizer)
        self.store.attach(space, self.optimizer)
        self._groups = {
            id(parameter): number  # hashing a tensor is slow
            for number, group in enumerate(self.optimizer.param_groups)
            for parameter in group["params"]
        }
        everything = all(id(parameter) in self._groups for parameter in parameters)
        self._is_one_group = everything and len(self.optimizer.param_groups) == 1
        self.rates = Rates(self.optimizer, annealing)
        self.group = Group()
        self.precision = Precision()
        self.gradient_norm = 0.0  # of the latest step, before clipping

    def loaded(self, draw: Draw) -> AbstractContextManager[None]:
        """While this is open, the candidates of a draw are at hand, to be read."""
        return self.store.loaded(draw, training=False)

    @contextmanager
    def training(self, draw: Draw) -> Iterator["DrawnPath"]:
        """While this is open, the candidates of a draw are at hand, to be trained.

        Its parameters begin and end without gradients, and no others are stepped.
        Where it fails, all buffers get back their values: one bad minibatch would spoil statistics for good.
        """
        path = DrawnPath(self, self.space.parameters(draw), self.space.norms(draw))
        with self.store.loaded(draw, training=True):
            buffers = BufferSnapshot(self.space.buffered(draw))
            try:
                path.clear_gradients()
                yield path
            except BaseException:
                buffers.put_back()
                raise
            finally:
                path.clear_gradients()

    @contextmanager
    def frozen(self, draw: Draw) -> Iterator[None]:
        """Tell the operations that nobody will ask for weight gradients, so that they may keep less.

        Buffers stay as the weight steps left them.
        """
        parameters = self.space.parameters(draw)
        try:
            for parameter in parameters:
                parameter.requires_grad_(False)
            with self.still(draw):
                yield
        finally:
            for parameter in parameters:
                parameter.requires_grad_(True)

    def still(self, draw: Draw) -> AbstractContextManager[None]:
        """Keep buffers as the weight steps left them."""
        return still(self.space.buffered(draw))

    def step(self, parameters: list[nn.Parameter], progress: float | None) -> None:
        """Let the optimiser take its step with the gradients of some parameters; the others have none.

        Raises:
            NonFinite: it made a weight infinite or not a number.
        """
        self.rates.anneal(progress)
        self._step(parameters)
        if not are_finite(parameters):
            raise NonFinite("The optimiser made a weight infinite or not a number")

    def _step(self, parameters: list[nn.Parameter]) -> None:
        groups = self.optimizer.param_groups
        own = [parameters] if self._is_one_group else self._sorted_by_group(parameters)
        whole = [group["params"] for group in groups]
        try:
            for group, some in zip(groups, own, strict=True):
                group["params"] = some
            self.optimizer.step()
        finally:
            for group, all_of_them in zip(groups, whole, strict=True):
                group["params"] = all_of_them

    def _sorted_by_group(self, parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
        own: list[list[nn.Parameter]] = [[] for _ in self.optimizer.param_groups]
        for parameter in parameters:
            number = self._groups.get(id(parameter))  # None: somebody trains it elsewhere
            if number is not None:
                own[number].append(parameter)
        return own

    def save(self, folder: Path | None, step: int) -> dict[str, Any]:
        """Return everything that decides how the weights go on, without copying it.

        Args:
            folder: where the state will be kept. A disk store then writes what has changed since the last time
                into a file of its own there, and the state refers to it.
            step: names that file.
        """
        weights = {"model": self.space.model.state_dict(), "optimizer": self.optimizer.state_dict(), "steps": step}
        return weights if folder is None else self.store.pack(weights, folder, step)

    def check(self, saved: Mapping[str, Any], folder: Path | None) -> None:
        """Raise ValueError if a state cannot be of weights like these; nothing is changed."""
        check_form(saved, [{"model": {}, "optimizer": {}, "steps": 0}], "weights")
        check_count("weights.steps", saved["steps"], least=0)
        model = plain(self.space.model.state_dict(), "weights.model")
        if "units" in saved:
            if folder is None:
                raise ValueError("This state refers to files in its folder. Write restore(state, folder).")
            self.store.check(saved["units"], folder)
            model = {name: value for name, value in model.items() if name in saved["model"]}
        check_form(saved["model"], [model], "weights.model")
        check_optimizer(self.optimizer, saved["optimizer"], "weights.optimizer", whole="units" not in saved)

    def load(self, saved: Mapping[str, Any], folder: Path | None) -> None:
        """Take over a state, sharing no memory with it.

        Raises:
            ValueError: it cannot be of weights like these; they are as before.
        """
        self.check(saved, folder)
        with rolled_back_on_failure(partial(self._put, self._snapshot(saved))):
            self._put(saved)
        if "units" in saved and folder is not None:
            self.store.unpack(saved["units"], folder)

    def _put(self, saved: Mapping[str, Any]) -> None:
        if "units" in saved:
            load_shared_weights(self.space, saved["model"])
        else:
            self.space.model.load_state_dict(saved["model"])
        load_optimizer(self.optimizer, saved["optimizer"])
        self.store.sync()

    def _snapshot(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Copy what putting `saved` overwrites: not weights that lie in files of their own, which may be many."""
        now = self.save(None, 0)
        if "units" in saved:
            now |= {"units": saved["units"]}
            now["model"] = {name: value for name, value in now["model"].items() if name in saved["model"]}
        return copy.deepcopy(now)


class DrawnPath:
    """The weights of one draw in one training step."""

    def __init__(self, weights: SharedWeights, parameters: list[nn.Parameter], norms: list[_NormBase]) -> None:
        self._weights, self.parameters, self.norms = weights, parameters, norms

    def clear_gradients(self) -> None:
        """Leave no gradient behind."""
        for parameter in self.parameters:
            parameter.grad = None

    def backward(self, passes: Iterable[tuple[Tensor, bool]], gates: Sequence[Tensor] = ()) -> Tensor:
        """Put d loss / d parameters into their .grad: means over the processes, finite and clipped.

        Args:
            passes: the shares of the draw's loss; see `Parent.passes`.
            gates: further leaves whose gradient is wanted.

        Returns:
            The mean loss of all processes.

        Raises:
            NonFinite: the loss or the norm of the gradient is not finite, in any process.
        """
        inputs = [*gates, *self.parameters]
        precision, total = self._weights.precision, None
        for loss, follows in passes:
            if loss.requires_grad and inputs:
                again = follows and bool(gates)  # what leads from the gates to the network, all parts share
                torch.autograd.backward(precision.scaled(loss), inputs=inputs, retain_graph=again)
            total = loss.detach() if total is None else total + loss.detach()
            del loss  # and with it the graph, before the next part is computed
        assert total is not None
        precision.unscale(inputs)
        mean = average_weights(self._weights.group, total, self.parameters, self.norms)
        check_finite("The loss is", mean.item())  # after averaging, so that all ranks stop or none
        norm = clip_gradient(self.parameters, self._weights.clip)
        check_finite("The gradient of the weights has norm", norm.item())
        self._weights.gradient_norm = norm.item()
        return mean

    def undone_on_failure(self) -> AbstractContextManager[None]:
        """If the block fails, weights and optimiser are as before."""
        return undone_on_failure(self._weights.optimizer, self.parameters)

    def step(self, progress: float | None) -> None:
        """Let the optimiser take its step with the gradients that are there, inside `undone_on_failure`.

        It sees the parameters of the path alone, as the time it takes to look at all of them, most of which have no
        gradient, grows with the number of candidates.
        """
        self._weights.step(self.parameters, progress)
