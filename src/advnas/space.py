"""SearchSpace: the decisions of any nn.Module; runs a draw through it and derives plain modules from it."""

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from advnas.architecture import Architecture, Draw, check_is_mapping
from advnas.choice import Choice, Zero, check_is_module, choices_by_name
from advnas.fresh import check_fresh, moments, reset
from advnas.gates import ActiveCandidate, Lend, Node, Rival, Route, Trace, at_hand
from advnas.notebook import table
from advnas.ownership import Ownership, find_owners
from advnas.width import Outlines, Sliced, check_slices


@dataclass(frozen=True)
class Decision:
    """One row of theta: a name, the operations to choose from, and the (tied) choices it decides."""

    name: str
    operations: tuple[str, ...]
    choices: tuple[Choice, ...]


class SearchSpace:
    """All architectures that a module with Choices can take.

    Finds every Choice inside `model`, ties those with equal names and names the others by their module path.
    """

    def __init__(self, model: nn.Module) -> None:
        check_is_module(model)
        self.model = model
        groups = choices_by_name(model)
        if not groups:
            raise ValueError(
                f"{type(model).__name__} has no Choice, so there is nothing to search. Put one where a layer is "
                "open, for example advnas.Choice({'conv': nn.Conv2d(...), 'skip': nn.Identity()})."
            )
        self.decisions = tuple(_tie(name, choices) for name, choices in groups.items())
        check_slices(model, {choice: decision.name for decision in self.decisions for choice in decision.choices})
        self.sizes = tuple(len(decision.operations) for decision in self.decisions)
        self.shared, self.owned = find_owners(
            model, {choice: row for row, decision in enumerate(self.decisions) for choice in decision.choices}
        )
        owners = (self.shared, *self.owned.values())
        everywhere = [id(weight) for ownership in owners for weight in ownership.weights]
        self._overlaps = len(everywhere) > len(set(everywhere))  # some weights are used in several places
        self._has_norms = any(ownership.norms for ownership in owners)
        self._has_buffers = any(ownership.buffered for ownership in owners)
        for decision in self.decisions:
            for choice in decision.choices:
                choice.slot = decision.choices[0].slot
                choice.prepare()
        known = {id(weight): moments(weight) for weight in model.parameters()}
        self._initial = {key: value for key, value in known.items() if value is not None}
        self._bare = {place: (ActiveCandidate(place[1], None, 1.0),) for place in self.owned}
        self._slots = [decision.choices[0].slot for decision in self.decisions]
        self._nodes = _find_nodes(self.decisions)
        self._nesting = {
            (row, column)
            for row, decision in enumerate(self.decisions)
            for choice in decision.choices
            for column, candidate in enumerate(choice.candidates)
            if any(isinstance(module, Choice) for module in candidate.modules())
        }
        self._passing = {
            (row, column)
            for row, decision in enumerate(self.decisions)
            for column in range(len(decision.operations))
            if all(choice.passes_scale(column) for choice in decision.choices)
        }

    def __len__(self) -> int:
        """How many decisions there are."""
        return len(self.decisions)

    def __repr__(self) -> str:
        digits = sum(map(math.log10, self.sizes))
        size = f"{self.size:,}" if digits < 15 else f"about 10^{digits:.0f}"
        return f"SearchSpace({len(self)} decisions, {size} architectures)"

    def _repr_html_(self) -> str:
        rows = ((decision.name, ", ".join(decision.operations)) for decision in self.decisions)
        return table(repr(self), rows, ("decision", "operations"))

    @property
    def size(self) -> int:
        """How many architectures there are."""
        return math.prod(self.sizes)

    @property
    def zeros(self) -> Tensor:
        """Which candidates are the zero operation: bool [decisions, candidates], False at padding."""
        mask = torch.zeros(len(self), max(self.sizes), dtype=torch.bool)
        for row, decision in enumerate(self.decisions):
            for column, candidate in enumerate(decision.choices[0].candidates):
                mask[row, column] = isinstance(candidate, Zero)
        return mask

    def architectures(self) -> Iterator[Architecture]:
        """All of them, the first decision changing slowest; for spaces small enough to enumerate."""
        names = [decision.name for decision in self.decisions]
        for operations in itertools.product(*(decision.operations for decision in self.decisions)):
            yield Architecture(dict(zip(names, operations, strict=True)))

    def architecture(self, chosen: Tensor) -> Architecture:
        """Return the architecture of a one-hot tensor [decisions, candidates]; ties go to the first operation."""
        return Architecture(self.operations(chosen))

    def operations(self, chosen: Tensor) -> dict[str, str]:
        """Return the same as a plain dict: the operation by decision."""
        columns = chosen.detach().argmax(-1).tolist()
        return {d.name: d.operations[column] for d, column in zip(self.decisions, columns, strict=True)}

    def drawn_operations(self, draw: Draw) -> dict[str, str]:
        """The operation by decision of a draw of one architecture."""
        rows = zip(self.decisions, draw.values, strict=True)
        return {decision.name: decision.operations[row.index(1)] for decision, row in rows}

    def one_hot(self, architecture: Mapping[str, str]) -> Tensor:
        """The one-hot tensor [decisions, candidates] of an architecture."""
        self._check(architecture)
        chosen = torch.zeros(len(self), max(self.sizes))
        for row, decision in enumerate(self.decisions):
            chosen[row, decision.operations.index(architecture[decision.name])] = 1
        return chosen

    @contextmanager
    def running(self, what: Draw | Mapping[str, str], lend: Lend = at_hand) -> Iterator[Trace]:
        """While this is open, the model computes one draw, or one architecture.

        with space.running(architecture):
            prediction = model(x)

        Args:
            what: the draw, or the architecture.
            lend: called with (decision, candidate), keeps the weights of a rival at hand while it runs.
        """
        draw = what if isinstance(what, Draw) else Draw.bare(self.one_hot(what))
        run = Trace(self._routes(draw, lend))
        with self._following(run.routes):
            yield run

    @contextmanager
    def _following(self, routes: tuple[Route, ...]) -> Iterator[None]:
        before = [slot.route for slot in self._slots]
        for slot, route in zip(self._slots, routes, strict=True):
            slot.route = route
        try:
            yield
        finally:
            for slot, earlier in zip(self._slots, before, strict=True):
                slot.route = earlier

    def _routes(self, draw: Draw, lend: Lend) -> tuple[Route, ...]:
        """What each decision runs. A gate is cut out once per step and shared by all tied choices."""
        path, gated = draw.path, draw.weights.requires_grad
        single = draw.one_hot and len(path) == len(self)
        if not gated and not draw.constants and single:
            return tuple(Route(self._bare[place], gated) for place in path)
        gates = self._gates(draw) if gated else {}
        own = [gates.get(place) for place in path]
        if gated and self._nodes and single:
            for node in self.scalable_nodes(draw):
                node.fold_gate(own)
        found: list[list[ActiveCandidate]] = [[] for _ in self.decisions]
        for (row, column), gate in zip(path, own, strict=True):
            found[row].append(ActiveCandidate(column, gate, draw.values[row][column]))
        routes = tuple(Route(active, gated) for active in found)
        for row, column in draw.rival_places:
            lent: Callable[[], AbstractContextManager[object]] = partial(lend, row, column)
            if (row, column) in self._nesting:  # the backward pass may come when another draw is running, or none
                lent = partial(self._lent_with_its_draw, routes, lent)
            routes[row].rivals = (*routes[row].rivals, Rival(column, gates[row, column], lent))
        if draw.constants:
            for route, shift in zip(routes, (draw.weights * ~draw.active).sum(-1).unbind(), strict=True):
                route.shift = shift
        return routes

    @contextmanager
    def _lent_with_its_draw(
        self, routes: tuple[Route, ...], lent: Callable[[], AbstractContextManager[object]]
    ) -> Iterator[None]:
        with lent(), self._following(routes):
            yield

    def _gates(self, draw: Draw) -> dict[tuple[int, ...], Tensor]:
        """One scalar for each active candidate, by its place; in the precision of the weights at least."""
        weights = draw.weights.to(self.device, torch.promote_types(draw.weights.dtype, self._dtype))
        return dict(zip(draw.places, weights[draw.active.to(weights.device)].unbind(), strict=True))

    def scalable_nodes(self, draw: Draw) -> list[Node]:
        """The nodes between decisions whose readers, as drawn, all pass a scale on. draw: of one architecture."""
        drawn = [place in self._passing for place in draw.path]
        nodes = [node for node in self._nodes if all(drawn[reader] for reader in node.readers)]
        return [node for node in nodes if all(self._passes_now(draw.path[reader]) for reader in node.readers)]

    def _passes_now(self, place: tuple[int, ...]) -> bool:
        row, column = place
        return all(choice.passes_scale_now(column) for choice in self.decisions[row].choices)

    @property
    def device(self) -> torch.device:
        """Where the model is computed; candidates may live elsewhere while they are not drawn."""
        parameter = self.shared.weights[0] if self.shared.weights else next(self.model.parameters(), None)
        return torch.device("cpu") if parameter is None else parameter.device

    @property
    def _dtype(self) -> torch.dtype:
        parameter = next(self.model.parameters(), None)
        return torch.float32 if parameter is None else parameter.dtype.to_real()

    def operation_sizes(self) -> dict[str, dict[str, int]]:
        """How many weights every operation of every decision has, over all its tied choices."""
        outlines = Outlines()

        def size(decision: Decision, place: int) -> int:
            own = (outlines.of(choice.candidates[place]).parameters() for choice in decision.choices)
            return sum(weight.numel() for weight in set(itertools.chain.from_iterable(own)))

        return {
            decision.name: {name: size(decision, place) for place, name in enumerate(decision.operations)}
            for decision in self.decisions
        }

    def parameters(self, draw: Draw) -> list[nn.Parameter]:
        """List the trainable weights that a draw can touch: those of its active candidates, and the shared ones."""
        weights: Iterable[nn.Parameter] = itertools.chain.from_iterable(
            ownership.weights for ownership in self._ownerships(draw)
        )
        if self._overlaps:
            weights = dict.fromkeys(weights)
        return [weight for weight in weights if weight.requires_grad]

    def norms(self, draw: Draw) -> list[_NormBase]:
        """The normalisations on a draw's path that keep running statistics."""
        if not self._has_norms:
            return []
        return [norm for holding in self._ownerships(draw) for norm in holding.norms if norm.track_running_stats]

    def _ownerships(self, draw: Draw) -> list[Ownership]:
        return [self.shared, *(self.owned[place] for place in draw.path)]

    def buffered(self, draw: Draw) -> list[nn.Module]:
        """The modules on a draw's path that have buffers."""
        if not self._has_buffers:
            return []
        return [module for ownership in self._ownerships(draw) for module in ownership.buffered]

    def check_unchanged(self, draw: Draw) -> None:
        """Raise ValueError if modules or parameters on a draw's path were replaced since the space was made.

        Gates, optimiser and stores know the old ones: the new ones would not be trained.
        """
        for ownership in self._ownerships(draw):
            changed = ownership.find_changed()
            if changed is not None:
                path = next((path for path, module in self.model.named_modules() if module is changed), "")
                raise ValueError(
                    f"Modules or parameters of the {type(changed).__name__} at {path!r} were replaced, added or "
                    "removed after the Search was made, which knows the old ones alone. Change the model first "
                    "(convert_sync_batchnorm, parametrisations, pruning, load_state_dict(assign=True)), then make "
                    "the Search."
                )

    def put_back(self) -> None:
        """Undo what gates have changed in candidates, after an interrupt at any place."""
        for decision in self.decisions:
            for choice in decision.choices:
                choice.put_back()

    def mismatch(self) -> str | None:
        """Explain a forward pass that failed just now: which candidates disagree about their output shape.

        Only what each choice was called with is looked at; nothing is run again.
        """
        calls = {choice: call for slot in self._slots if slot.route for choice, call in slot.route.calls.items()}
        reports = (choice.compare_shapes(call) for choice, call in calls.items())
        return next((report for report in reports if report is not None), None)

    def derive(
        self, architecture: Mapping[str, str], *, fresh: int | Callable[[], nn.Module] | None = None
    ) -> nn.Module:
        """A plain module: a copy of the model in which every Choice is replaced by the chosen candidate.

        Candidates that were not chosen are never copied.

        Args:
            architecture: the operation at every decision.
            fresh: what the weights are: inherited by default; with a function that makes the model, those of a new
                model, as its own constructor initialises them; with a seed, made by every layer's own
                `reset_parameters`. A seed leaves frozen weights (`requires_grad=False`) as they are, such as
                pretrained ones, and the statistics of layers in which all weights are frozen.

        Raises:
            ValueError: the function makes another space.
            TypeError: a layer does not know `reset_parameters`, or `fresh` is something else.
        """
        self._check(architecture)
        check_fresh(fresh)
        if callable(fresh):
            return self._made_by(fresh).derive(architecture)
        operation = {choice: architecture[d.name] for d in self.decisions for choice in d.choices}
        memo: dict[int, object] = {}

        def derive_choices(module: nn.Module) -> None:
            # Innermost choices first: where deepcopy meets a choice, it takes what stands in `memo` for it.
            if not isinstance(module, Choice):
                for child in module.children():
                    derive_choices(child)
            elif id(module) not in memo:
                chosen = module.candidates[module.operations.index(operation[module])]
                derive_choices(chosen)
                memo[id(module)] = chosen.plain(memo) if isinstance(chosen, Sliced) else copy.deepcopy(chosen, memo)

        derive_choices(self.model)
        plain = copy.deepcopy(self.model, memo)
        if fresh is not None:
            copies = ((memo.get(key), known) for key, known in self._initial.items())
            reset(plain, fresh, {id(weight): known for weight, known in copies if weight is not None})
        return plain

    def _made_by(self, make: Callable[[], nn.Module]) -> "SearchSpace":
        """The same space with a new model."""
        made = make()
        if not isinstance(made, nn.Module) or made is self.model:
            what = "the searched model itself" if made is self.model else f"a {type(made).__name__}"
            raise ValueError(f"fresh must make a new model with the same Choices, and returned {what}.")
        other = SearchSpace(made)
        ours, theirs = ({d.name: d.operations for d in space.decisions} for space in (self, other))
        if ours != theirs:
            raise ValueError(f"fresh made a model with other decisions: {theirs} instead of {ours}.")
        return other

    def _check(self, architecture: Mapping[str, str]) -> None:
        check_is_mapping(architecture)
        for decision in self.decisions:
            operation = architecture.get(decision.name)
            if operation not in decision.operations:
                problem = "has no operation" if operation is None else f"has {operation!r}"
                raise ValueError(
                    f"The architecture {problem} at decision {decision.name!r}; "
                    f"choose one of {', '.join(decision.operations)}."
                )
        unknown = set(architecture) - {decision.name for decision in self.decisions}
        if unknown:
            raise ValueError(f"The space has no decision named {', '.join(sorted(unknown))}.")


def _tie(name: str, choices: list[Choice]) -> Decision:
    first = choices[0]
    for other in choices[1:]:
        if other.operations != first.operations:
            raise ValueError(
                f"Choices with one name are one decision and need the same candidates in the same order, but "
                f"{name!r} has {list(first.operations)} in one place and {list(other.operations)} in another. "
                "Give them different names, or none."
            )
        if other.edge != first.edge:
            raise ValueError(
                f"Choices with one name are one decision and lie between the same nodes, but {name!r} has the edge "
                f"{first.edge} in one place and {other.edge} in another. Give them different names, or no edge."
            )
    return Decision(name, first.operations, tuple(choices))


def _find_nodes(decisions: tuple[Decision, ...]) -> list[Node]:
    """The nodes that decisions both make and read, as far as their choices say so."""
    makers: dict[str, list[int]] = {}
    readers: dict[str, list[int]] = {}
    for row, decision in enumerate(decisions):
        edge = decision.choices[0].edge
        if edge is not None:
            readers.setdefault(edge[0], []).append(row)
            makers.setdefault(edge[1], []).append(row)
    return [Node(tuple(makers[node]), tuple(readers[node])) for node in makers if node in readers]
