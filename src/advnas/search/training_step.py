"""How a step begins that trains weights, and what makes such a step useless without an error."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from advnas.architecture import Draw
from advnas.search.shared_weights import DrawnPath

if TYPE_CHECKING:
    from advnas.search.search import Search

_CALLER_OF_STEP = 7  # frames up from the warning


class EvaluationModeWarning(UserWarning):
    """A model is searched in evaluation mode."""


class StepsOverWarning(UserWarning):
    """A search goes on after its last step, where learning rates have fallen to 0."""


@contextmanager
def training_step(search: "Search", name: str, draw: Draw) -> Iterator[DrawnPath]:
    """Take a step that trains the candidates of a draw; warn, once per search, where it teaches little."""
    if not search.model.training:
        _warn_of_evaluation_mode(search)
    if search.progress.is_over:
        _warn_of_zero_rates(search)
    with search.parent.step(name, draw), search.weights.training(draw) as path:
        yield path


def _warn_of_evaluation_mode(search: "Search") -> None:
    _warn_once(
        search,
        EvaluationModeWarning,
        "The model is in evaluation mode, so dropout is off and BatchNorm keeps its statistics while it is "
        "searched. Write model.train() before; parts that you put in eval() afterwards stay so.",
    )


def _warn_of_zero_rates(search: "Search") -> None:
    """Warn where a schedule has ended at 0; those of other shapes, and torch's schedulers, may go on."""
    progress = search.progress
    shares = {"the weights": (search.weights.rates, progress.of_weights)}
    if search.strategy.learns:
        shares["theta"] = (search.policy.rates, progress.of_theta)
    frozen = [what for what, (rates, share) in shares.items() if rates.factor(share) == 0]
    if frozen:
        _warn_once(
            search,
            StepsOverWarning,
            f"This search has taken all of its {progress.steps} steps, and the learning rate of "
            f"{' and '.join(frozen)} is 0 from here on. `steps` counts weight steps (minibatches), not epochs: "
            "write Search(..., steps=epochs * minibatches).",
        )


def _warn_once(search: "Search", kind: type[Warning], text: str) -> None:
    if kind not in search.warned:
        search.warned.add(kind)
        warnings.warn(text, kind, stacklevel=_CALLER_OF_STEP)
