"""check_strategy: what every search strategy must hold, yours included."""

import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from advnas.architecture import Draw
from advnas.choice import Choice
from advnas.search import LossOf, Policy, Search, constant
from advnas.strategies import Feedback, Phase, State, Strategy

_SIZES = (2, 3, 4)  # decisions of different sizes, so that there is padding
_STEPS = 200


def check_strategy(strategy: Strategy | Callable[[], Strategy], *, independent: bool = True) -> None:
    """Raise an AssertionError that names the rule, if a strategy breaks one.

        def test_my_strategy():
            check_strategy(MyStrategy(temperature=2.0))

    strategy: an object, or whatever makes one when it is called (a class, say).
    independent: False where theta follows from one model of all decisions, so that a decision may move without
        having been reached.
    """
    made = cast(Strategy, strategy if _is_made(strategy) else cast(Callable[[], Strategy], strategy)())
    rules: dict[str, Callable[[], None]] = {
        "hyper-parameters are a frozen dataclass": partial(_check_frozen, made),
        "a draw runs real candidates, as many as declared": partial(_check_draws, made),
        "a pass executes as many operations as the draw": partial(_check_executed, made),
        "searches side by side know nothing of each other": partial(_check_batch, made),
        "the state is a value that survives a checkpoint": partial(_check_state, made),
        "the seed decides everything": partial(_check_seed, made),
        "a decision that was not reached stays as it is": partial(_check_unreached, made, independent),
        "theta finds the better operation": partial(_check_learns, made),
    }
    for rule, check in rules.items():
        try:
            check()
        except Exception as error:
            raise AssertionError(f"{type(made).__name__} breaks the rule that {rule}: {error}") from error


def _is_made(strategy: object) -> bool:
    return hasattr(strategy, "draw") and not isinstance(strategy, type)


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise AssertionError(problem)


def _check_frozen(strategy: Strategy) -> None:
    parameters = getattr(strategy, "__dataclass_params__", None)
    _require(parameters is not None and parameters.frozen, "write @dataclass(frozen=True, kw_only=True) over it")
    for declared in ("weight_operations", "architecture_operations"):
        count = getattr(strategy, declared)
        _require(
            count is None or (isinstance(count, int) and count > 0),
            f"{declared} must be a positive integer, or None for all of them, got {count!r}",
        )


def _check_draws(strategy: Strategy) -> None:
    for progress in (0.0, 0.5, 1.0):
        for phase in Phase:
            rehearsal = _Rehearsal(strategy, seed=1)
            for _ in range(10):
                rehearsal.step(progress=progress, draw_for=phase)


def _check_executed(strategy: Strategy) -> None:
    network, watched = _Network([[1.0, 2.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]]), _Watched(strategy)
    search = _search(network, watched, steps=12, warmup=4)
    for turn in range(12):
        steps: list[Callable[[LossOf], object]] = [search.weight_step]
        if turn >= 4:
            steps.append(partial(_architecture_step, search))
        for step in steps:
            network.passes.clear()
            step(_loss_of)
            drawn = watched.draws[-1].active
            _require(
                torch.equal(network.passes[0], drawn.long()),
                f"the network executed {network.passes[0].tolist()}, the draw was {drawn.long().tolist()}",
            )
            for executed in network.passes[1:]:
                _require(
                    bool((executed.sum(-1) <= drawn.sum(-1)).all()),
                    f"a further pass executed {executed.tolist()}, more than the draw: {drawn.long().tolist()}",
                )


def _check_batch(strategy: Strategy) -> None:
    alone, batched = _Rehearsal(strategy, seed=2), _Rehearsal(strategy, seed=2, batch=(1,))
    for number in range(10):
        alone.step()
        batched.step()
        _require(
            torch.allclose(alone.theta, batched.theta[0], atol=1e-6),
            f"a batch of one search differs from the search alone after step {number + 1}",
        )
    calm, disturbed = (_Rehearsal(strategy, seed=3, batch=(3,)) for _ in range(2))
    disturbed.cost[0] = 7 - disturbed.cost[0]
    for number in range(10):
        calm.step()
        disturbed.step()
        _require(
            torch.equal(calm.theta[1:], disturbed.theta[1:]),
            f"other losses in one search changed the theta of its neighbours after step {number + 1}",
        )


def _check_state(strategy: Strategy) -> None:
    straight, resumed = _Rehearsal(strategy, seed=4), _Rehearsal(strategy, seed=4)
    for _ in range(5):
        straight.step()
        resumed.step()
    file = io.BytesIO()
    torch.save(resumed.policy.state, file)
    file.seek(0)
    resumed.policy.state = torch.load(file, weights_only=True)
    _require(
        _equal(straight.policy.state, resumed.policy.state), "torch.load(weights_only=True) gave back another state"
    )
    for number in range(10):
        straight.step()
        resumed.step()
        _require(
            torch.equal(straight.theta, resumed.theta),
            f"{number + 1} steps after loading its state, theta is not what it is without a break",
        )


def _check_seed(strategy: Strategy) -> None:
    def run(seed: int) -> tuple[Tensor, _Watched]:
        network, watched = _Network([[1.0, -1.0], [0.5, -1.0, 2.0], [0.5, 1.0, -2.0, 3.0]]), _Watched(strategy)
        search = _search(network, watched, steps=12, seed=seed)
        for _ in range(12):
            search.weight_step(_loss_of)
            _architecture_step(search, _loss_of)
        weights = [weight.detach().flatten() for weight in network.parameters()]
        return torch.cat([search.distribution.logits.flatten(), *weights]), watched

    (first, watched), (second, _), (_, other) = run(5), run(5), run(6)
    _require(torch.equal(first, second), "two searches with one seed ended with different theta or weights")
    same = all(torch.equal(a.weights, b.weights) for a, b in zip(watched.draws, other.draws, strict=True))
    _require(not (watched.stochastic and same), "two searches with different seeds drew the same")


def _check_unreached(strategy: Strategy, independent: bool) -> None:
    inner = Choice({"a": _Scale(1.0), "b": _Scale(-1.0)}, name="inner")
    outer = Choice({"leaf": _Scale(-1.0), "nest": nn.Sequential(_Scale(1.0), inner)}, name="outer")
    watched = _Watched(strategy)
    search = _search(nn.Sequential(outer), watched, steps=20)
    for number in range(20):
        before = search.distribution.logits[1]
        _architecture_step(search, _loss_of)
        reached = bool(watched.draws[-1].weights[0, 1] != 0)
        _require(
            reached or not independent or torch.equal(before, search.distribution.logits[1]),
            f"step {number + 1} moved the logits of a nested decision that lay off the drawn path",
        )


def _check_learns(strategy: Strategy) -> None:
    network = _Network([[-1.0, 1.0], [1.0, -1.0, -1.0]])  # one operation of each decision fits, see _loss_of
    search = _search(network, strategy, steps=_STEPS)
    start = search.distribution.logits
    for _ in range(_STEPS):
        _architecture_step(search, _loss_of)
    if not strategy.learns:
        _require(torch.equal(start, search.distribution.logits), "theta moved, though it says learns = False")
        return
    probability = search.distribution.probabilities
    better = [probability[0, 1].item(), probability[1, 0].item()]
    _require(
        better[0] > 1 / 2 and better[1] > 1 / 3 and dict(search.argmax()) == {"0": "1", "1": "0"},
        f"after {_STEPS} steps the plainly better operations have probabilities {better[0]:.3f} of 2 and "
        f"{better[1]:.3f} of 3 operations",
    )


class _Watched(Strategy):
    """A strategy under observation: every call is checked, every draw is kept."""

    weight_operations: ClassVar[int | None] = None
    architecture_operations: ClassVar[int | None] = None

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.draws: list[Draw] = []
        self.stochastic = False

    def init(self, logits: Tensor, zeros: Tensor, generator: torch.Generator) -> State:
        state: State = self._call("init", logits, zeros, generator)
        _check_state_type(state)
        return state

    def draw(
        self, logits: Tensor, state: State, phase: Phase, progress: float | None, generator: torch.Generator
    ) -> Draw:
        before = generator.get_state()
        draw: Draw = self._call("draw", logits, state, phase, progress, generator)
        self.stochastic |= not torch.equal(before, generator.get_state())
        theta = phase is Phase.ARCHITECTURE
        _check_draw(
            draw, logits, self.strategy.architecture_operations if theta else self.strategy.weight_operations
        )
        self.draws.append(draw)
        return draw

    def gradient(self, feedback: Feedback, draw: Draw, logits: Tensor, state: State) -> tuple[Tensor | None, State]:
        gradient, state = self._call("gradient", feedback, draw, logits, state)
        _check_state_type(state)
        if gradient is not None:
            _require(
                gradient.shape == logits.shape,
                f"the gradient has shape {tuple(gradient.shape)}, the logits have {tuple(logits.shape)}",
            )
            _require(bool(gradient.isfinite().all()), "the gradient is not finite")
            _require(not bool((gradient * logits.isneginf()).any()), "the gradient is not 0 at padding")
        return gradient, state

    def project(self, before: Tensor, after: Tensor, draw: Draw, state: State) -> Tensor:
        projected: Tensor = self._call("project", before, after, draw, state)
        _require(projected.shape == before.shape, f"project returned shape {tuple(projected.shape)}")
        _require(bool(projected[before.isfinite()].isfinite().all()), "project returned logits that are not finite")
        return projected

    def _call(self, method: str, *args: Any) -> Any:
        """Whatever the method does, it must leave its arguments, its own fields and the global generator alone."""
        randomness, fields = torch.get_rng_state(), dict(vars(self.strategy))
        values = [_values(argument) for argument in args]
        result = getattr(self.strategy, method)(*args)
        _require(torch.equal(randomness, torch.get_rng_state()), f"{method} used torch's global random generator")
        _require(fields == vars(self.strategy), f"{method} changed the strategy itself; put it into the state")
        for value, argument in zip(values, args, strict=True):
            _require(_equal(value, _values(argument)), f"{method} changed one of its arguments in place")
        return result


def _values(argument: object) -> State:
    """A copy of the tensors that a method was given."""
    if isinstance(argument, Draw):
        argument = {"weights": argument.weights, "active": argument.active}
    elif isinstance(argument, Feedback):
        argument = {"loss": argument.loss, "reached": argument.reached}
    elif isinstance(argument, Tensor):
        argument = {"tensor": argument}
    return {key: value.detach().clone() for key, value in argument.items()} if isinstance(argument, dict) else {}


def _equal(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[key]) for key, value in one.items())


def _check_state_type(state: object) -> None:
    _require(isinstance(state, dict), f"the state must be a dict of tensors, got {type(state).__name__}")
    for key, value in cast(State, state).items():
        _require(
            isinstance(key, str) and isinstance(value, Tensor),
            f"the state must be a dict of tensors, but {key!r} holds {type(value).__name__}",
        )


def _check_draw(draw: Draw, logits: Tensor, declared: int | None) -> None:
    weights, active, padding = draw.weights.detach(), draw.active, logits.detach().isneginf()
    for name, tensor in (("weights", weights), ("active", active)):
        _require(
            tensor.shape == logits.shape,
            f"the draw's {name} have shape {tuple(tensor.shape)}, the logits have {tuple(logits.shape)}",
        )
    _require(active.dtype is torch.bool, f"the draw's active must be bool, it is {active.dtype}")
    _require(bool(weights.isfinite().all()), "the draw's weights are not finite")
    _require(not bool((active & padding).any()), "the draw runs padding, which is no candidate")
    _require(not bool(weights[padding].any()), "the draw gives padding, which is no candidate, a weight")
    _require(
        draw.constants or not bool(weights[~active].any()),
        "the draw gives a weight to a candidate that it does not run",
    )
    available = (~padding).sum(-1)
    wanted = available if declared is None else available.clamp(max=declared)
    _require(
        torch.equal(active.sum(-1), wanted),
        f"the draw runs {active.sum(-1).tolist()} operations per decision; declared are {declared or 'all'} "
        f"of {available.tolist()}",
    )


class _Rehearsal:
    """A search without a network: the loss is the sum of weights times costs, so the slopes are the costs."""

    def __init__(self, strategy: Strategy, *, seed: int, batch: tuple[int, ...] = ()) -> None:
        zeros = torch.zeros(len(_SIZES), max(_SIZES), dtype=torch.bool)
        zeros[:, 0] = True
        self.policy = Policy(
            _Watched(strategy),
            _SIZES,
            zeros,
            optimizer=partial(torch.optim.SGD, lr=0.05),
            generator=torch.Generator().manual_seed(seed),
            batch=batch,
        )
        costs = torch.arange(len(_SIZES) * max(_SIZES)).reshape(len(_SIZES), max(_SIZES)) % 5 / 5
        self.cost = costs.expand(*batch, *costs.shape).clone()

    @property
    def theta(self) -> Tensor:
        """The logits as they stand."""
        return self.policy.distribution.logits

    def step(self, *, progress: float = 0.5, draw_for: Phase = Phase.ARCHITECTURE) -> None:
        """Draw, and if that was for theta, move theta."""
        draw = self.policy.draw(draw_for, progress)
        if draw_for is not Phase.ARCHITECTURE:
            return
        slope = self.cost if draw.constants else self.cost * draw.active
        feedback = Feedback(
            loss=self._loss(draw),
            slope=slope.clone() if draw.weights.requires_grad else None,
            reached=torch.ones(len(_SIZES), dtype=torch.bool),
            probe=self._loss,
            unrolled=slope.clone,
        )
        self.policy.learn(feedback, draw, progress)

    def _loss(self, draw: Draw) -> Tensor:
        return (draw.weights.detach() * self.cost).sum((-2, -1))


class _Scale(nn.Module):
    """x times a factor; counts how often it was run."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.factor


class _Network(nn.Module):
    """The sum of one Choice between factors a decision; keeps what every forward pass executed."""

    def __init__(self, factors: Sequence[Sequence[float]]) -> None:
        super().__init__()
        self.choices = nn.ModuleList(
            Choice({str(column): _Scale(factor) for column, factor in enumerate(row)}, name=str(number))
            for number, row in enumerate(factors)
        )
        self.passes: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        scales: list[list[Any]] = [list(choice.candidates) for choice in self.choices]  # type: ignore[arg-type]
        executed = torch.zeros(len(scales), max(map(len, scales)), dtype=torch.long)
        self.passes.append(executed)  # rivals run later, in the backward pass
        for row, own in enumerate(scales):
            for column, scale in enumerate(own):
                scale.calls = executed[row, column]
        return torch.stack([choice(x) for choice in self.choices]).sum(0)


def _loss_of(model: nn.Module) -> Tensor:
    """Smallest where the factors add up to 2."""
    x = torch.tensor([1.5, 2.0, 2.5])
    loss: Tensor = (model(x) - 2 * x).square().mean()
    return loss


def _search(model: nn.Module, strategy: Strategy, *, steps: int, warmup: int = 0, seed: int = 0) -> Search:
    return Search(
        model,
        strategy,
        steps=steps,
        warmup=warmup,
        seed=seed,
        annealing=constant,
        weight_optimizer=partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
        architecture_optimizer=partial(torch.optim.Adam, lr=0.05, weight_decay=1e-3),
    )


def _architecture_step(search: Search, loss_of: LossOf) -> None:
    search.architecture_step(loss_of, training_loss_of=loss_of)
