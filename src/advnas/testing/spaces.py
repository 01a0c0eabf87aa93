"""check_space: what every module with Choices must hold to be searched."""

import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from advnas.architecture import Architecture, Draw
from advnas.choice import Choice
from advnas.randomness import seeded
from advnas.space import SearchSpace
from advnas.structure import covering


def check_space(
    model_factory: Callable[[], nn.Module],
    *example_inputs: Any,
    example_kwargs: Mapping[str, Any] | None = None,
    architectures: int = 64,
) -> None:
    """Raise an AssertionError that names the rule, if a space breaks one.

        def test_my_space():
            check_space(MyNetwork, torch.zeros(2, 3, 32, 32))

    model_factory: makes the parent network, the same one every time but for its random weights.
    example_inputs, example_kwargs: what the network is called with; a batch of at least two for BatchNorm.
    architectures: a space with more than this many is checked on a sample: one architecture for every candidate
        of every decision, and random ones up to this number.
    """
    with seeded(0):
        space = _found(model_factory)
        run = _Runner(space, example_inputs, dict(example_kwargs or {}))
        sample = list(_sample(space, architectures))
        rules: dict[str, Callable[[], None]] = {
            "every call of the factory makes the same space": partial(_check_factory, space, model_factory),
            "all candidates of a choice return the same shape": partial(_check_shapes, run, sample),
            "every architecture can be run": partial(_check_runs, run, sample),
            "every architecture can be derived": partial(_check_derived, run, sample),
            "a gate scales its operation and has a finite slope": partial(_check_gates, run, sample),
            "nodes are the sums that the edges of its choices tell": partial(_check_edges, run, sample),
            "an architecture trains its own weights only": partial(_check_weights, run, sample),
            "the weights survive a state_dict": partial(_check_state_dict, run, sample[0], model_factory),
        }
        for rule, check in rules.items():
            try:
                check()
            except Exception as error:
                raise AssertionError(
                    f"{type(space.model).__name__} breaks the rule that {rule}: {error}"
                ) from error


class _Runner:
    """Calls modules on the example, each time with the same randomness."""

    def __init__(self, space: SearchSpace, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.space = space
        self._arguments = inputs, kwargs

    def call(self, module: nn.Module) -> Any:
        """The module's output; operations that work in place get a copy of the example."""
        args, kwargs = pytree.tree_map_only(Tensor, Tensor.clone, self._arguments)
        with seeded(1, self.space.device):
            return module(*args, **kwargs)

    def tensors(self, module: nn.Module) -> list[Tensor]:
        """The tensors in the module's output."""
        return [leaf for leaf in pytree.tree_leaves(self.call(module)) if isinstance(leaf, Tensor)]

    def parent(self, what: Draw | Architecture, *, training: bool) -> list[Tensor]:
        """The tensors that the parent network returns under a draw or an architecture."""
        self.space.model.train(training)
        with self.space.running(what):
            return self.tensors(self.space.model)

    def loss(self, draw: Draw) -> Tensor:
        """A scalar that depends on everything the network returns."""
        outputs = self.parent(draw, training=True)
        return torch.stack([output.square().mean() for output in outputs if output.is_floating_point()]).sum()


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise AssertionError(problem)


def _found(model_factory: Callable[[], nn.Module]) -> SearchSpace:
    try:
        return SearchSpace(model_factory())
    except ValueError as error:
        raise AssertionError(f"The factory's module is no search space: {error}") from error


def _sample(space: SearchSpace, count: int) -> Iterator[Architecture]:
    """All architectures of a small space; of a large one enough to see every candidate, and some more."""
    if space.size <= count:
        yield from space.architectures()
        return
    enough = list(covering(space))
    yield from enough
    for _ in range(count - len(enough)):
        yield Architecture(
            {d.name: d.operations[int(torch.randint(len(d.operations), ()))] for d in space.decisions}
        )


def _check_factory(space: SearchSpace, model_factory: Callable[[], nn.Module]) -> None:
    again = SearchSpace(model_factory())
    one, other = ([(d.name, d.operations) for d in s.decisions] for s in (space, again))
    _require(one == other, f"one call gave {one}, another {other}")


def _check_shapes(run: _Runner, sample: list[Architecture]) -> None:
    model = run.space.model.train()
    for architecture in sample:
        with run.space.running(architecture), torch.no_grad():
            with suppress(Exception):  # `_check_runs` will meet it
                run.call(model)
            disagreement = run.space.mismatch()
        _require(disagreement is None, str(disagreement))


def _check_runs(run: _Runner, sample: list[Architecture]) -> None:
    for architecture in sample:
        for training in (True, False):
            with torch.no_grad():
                outputs = run.parent(architecture, training=training)
            _require(bool(outputs), f"{architecture} returns no tensor")
            finite = all(bool(output.isfinite().all()) for output in outputs)
            _require(finite, f"{architecture} returns a number that is not finite")


def _check_derived(run: _Runner, sample: list[Architecture]) -> None:
    for architecture in sample:
        plain = run.space.derive(architecture)
        left = [path for path, module in plain.named_modules() if isinstance(module, Choice)]
        _require(not left, f"the module derived for {architecture} still holds a Choice at {', '.join(left)}")
        for training in (False, True):
            with torch.no_grad():
                ours, theirs = run.parent(architecture, training=training), run.tensors(plain.train(training))
            equal = torch.allclose if training else torch.equal
            _require(
                len(ours) == len(theirs) and all(equal(a, b) for a, b in zip(ours, theirs, strict=True)),
                f"the module derived for {architecture} returns something else than its parent in "
                f"{'train' if training else 'eval'} mode",
            )


def _check_gates(run: _Runner, sample: list[Architecture]) -> None:
    for architecture in sample:
        chosen = run.space.one_hot(architecture)
        draw = Draw.gated(chosen)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*declares a last_norm")
            loss = run.loss(draw)
        _require(loss.requires_grad, f"the output of {architecture} does not depend on its gates; is it detached?")
        (slope,) = torch.autograd.grad(loss, draw.weights)
        broken = [d.name for d, row in zip(run.space.decisions, slope, strict=True) if not row.isfinite().all()]
        _require(not broken, f"the slope at {', '.join(broken)} is not finite for {architecture}")
        half, gated = Draw(chosen / 2, chosen != 0), Draw((chosen / 2).requires_grad_(), chosen != 0)
        with torch.no_grad():
            outputs = run.parent(half, training=False), run.parent(gated, training=False)
        _require(
            all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(*outputs, strict=True)),
            f"with gates of 1/2, {architecture} does not halve its operations' outputs; is an attribute "
            "`last_norm` the last thing that scales the output?",
        )


def _check_edges(run: _Runner, sample: list[Architecture]) -> None:
    """A scale that all makers of a node put on it, and all its readers take off again, changes nothing."""
    for architecture in sample:
        draw = Draw.bare(run.space.one_hot(architecture))
        for node in run.space.scalable_nodes(draw):
            weights = draw.weights.clone()
            weights[list(node.makers)] *= 2
            weights[list(node.readers)] /= 2
            with torch.no_grad():
                outputs = (run.parent(one, training=False) for one in (draw, Draw(weights, draw.active)))
                same = all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(*outputs, strict=True))
            makers, readers = (
                ", ".join(run.space.decisions[row].name for row in rows) for rows in (node.makers, node.readers)
            )
            _require(
                same,
                f"{readers} should read just the sum of what {makers} return, and nobody else should read it. That "
                f"is not so in {architecture}; leave `edge` out there",
            )


def _check_weights(run: _Runner, sample: list[Architecture]) -> None:
    for architecture in sample:
        draw = Draw.bare(run.space.one_hot(architecture))
        weights = {w: name for name, w in run.space.model.named_parameters() if w.requires_grad}
        loss = run.loss(draw)
        if not loss.requires_grad:
            continue
        slopes = torch.autograd.grad(loss, list(weights), allow_unused=True)
        own = set(run.space.parameters(draw))
        strange = [
            weights[w] for w, slope in zip(weights, slopes, strict=True) if slope is not None and w not in own
        ]
        _require(
            not strange,
            f"{architecture} uses {', '.join(strange)}, which belongs to an operation it does not have; hold "
            "shared modules outside the candidates, or in each candidate that uses them",
        )


def _check_state_dict(run: _Runner, architecture: Architecture, model_factory: Callable[[], nn.Module]) -> None:
    file = io.BytesIO()
    torch.save(run.space.model.state_dict(), file)
    file.seek(0)
    twin = _Runner(SearchSpace(model_factory()), *run._arguments)
    twin.space.model.load_state_dict(torch.load(file, weights_only=True))
    with torch.no_grad():
        ours, theirs = (runner.parent(architecture, training=False) for runner in (run, twin))
    _require(
        all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)),
        f"a second network with the first one's state_dict returns something else for {architecture}",
    )
