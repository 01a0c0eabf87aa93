"""A candidate behind a gate of 0 runs inside the backward pass: its slope is exact, and it leaves no trace."""

import pytest
import torch
from torch import nn

from advnas import Choice, Draw, Search, SearchSpace
from advnas.search.plan import saved_bytes


class Doubled(nn.Module):
    """Takes several inputs and returns containers."""

    def __init__(self, factor):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x, pair, *, shift=0.0, flag="no"):
        assert flag == "yes"
        return {"sum": (x + pair[0]) * self.factor + shift, "list": [pair[1].sin() * self.factor, (x * x,)]}


def conv(**options):
    return nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3, **options), nn.ReLU())


def images(candidates):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 3, 1), Choice(candidates(), name="one"), nn.Flatten(), nn.Linear(48, 2))


CANDIDATES = {
    "convolutions": lambda: {"a": conv(), "b": conv(affine=False), "c": nn.Identity()},
    "pooling": lambda: {"a": nn.AvgPool2d(3, 1, 1), "b": nn.MaxPool2d(3, 1, 1), "c": nn.Conv2d(3, 3, 1)},
    "skip first": lambda: {"a": nn.Identity(), "b": conv(), "c": nn.Tanh()},
}


def draw_of(chosen, rivals):
    return Draw.contrasted(torch.tensor(chosen), torch.tensor(rivals))


def slopes_of(model, draw, x):
    space = SearchSpace(model)
    with space.running(draw):
        loss = model(x).square().mean()
        return torch.autograd.grad(loss, draw.weights)[0]


def slopes_by_definition(model, draw, x, e=1e-5):
    """Central differences of the loss in every weight of the mixture sum_k w_k O_k(x)."""
    space, slopes = SearchSpace(model), torch.zeros_like(draw.weights)
    for place in draw.active.nonzero().tolist():
        losses = []
        for sign in (1, -1):
            weights = draw.weights.detach().clone()
            weights[tuple(place)] += sign * e
            with torch.no_grad(), space.running(Draw(weights, draw.active)):
                losses.append(model(x).square().mean().item())
        slopes[tuple(place)] = (losses[0] - losses[1]) / (2 * e)
    return slopes


@pytest.mark.parametrize("name", CANDIDATES)
@pytest.mark.parametrize("rivals", [[0.0, 1.0, 0.0], [0.0, 0.5, 0.5]])
def test_the_slope_of_a_rival_is_that_of_its_weight_in_the_mixture(name, rivals):
    model, draw = images(CANDIDATES[name]).double(), draw_of([[1.0, 0.0, 0.0]], [rivals])
    draw = Draw(draw.weights.detach().double().requires_grad_(), draw.active)
    x = torch.randn(5, 3, 4, 4, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        slopes_of(model, draw, x), slopes_by_definition(model, draw, x), rtol=1e-6, atol=1e-8
    )


def test_several_inputs_containers_and_keywords_reach_the_rival():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.open = Choice({"a": Doubled(2.0), "b": Doubled(-3.0)}, name="one")

        def forward(self, x):
            found = self.open(x, [x + 1, x - 1], shift=x, flag="yes")
            return found["sum"].sum() + found["list"][0].sum() + found["list"][1][0].sum()

    model, x = Model(), torch.randn(4)
    draw = draw_of([[1.0, 0.0]], [[0.0, 1.0]])
    with SearchSpace(model).running(draw):
        slope = torch.autograd.grad(model(x), draw.weights)[0][0, 1]
    expected = ((2 * x + 1) * -3 + x).sum() + ((x - 1).sin() * -3).sum() + (x * x).sum()
    torch.testing.assert_close(slope, expected)


def test_a_rival_runs_in_the_backward_pass_without_a_graph():
    ran = []

    class Told(nn.Linear):
        def forward(self, x):
            ran.append(torch.is_grad_enabled())
            return super().forward(x)

    model = nn.Sequential(Choice({"a": nn.Linear(3, 3), "b": Told(3, 3)}, name="one"))
    draw = draw_of([[1.0, 0.0]], [[0.0, 1.0]])
    with SearchSpace(model).running(draw):
        loss = model(torch.randn(2, 3)).sum()
        assert ran == []
        loss.backward()
    assert ran == [False]


def test_nothing_of_a_rival_is_kept():
    def kept(rivals):
        torch.manual_seed(0)
        candidates = {"a": conv(), **{f"b{i}": nn.Sequential(conv(), conv(), conv()) for i in range(3)}}
        model, draw = nn.Sequential(Choice(candidates, name="one")), draw_of([[1.0, 0.0, 0.0, 0.0]], [rivals])
        with SearchSpace(model).running(draw):
            return saved_bytes(lambda: model(torch.randn(8, 3, 16, 16)))

    gates = 2 * 4  # bytes of two more gates
    assert kept([0.0, 1.0, 0.0, 0.0]) + gates >= kept([0.0, 0.3, 0.3, 0.4])


def test_running_statistics_and_other_buffers_of_a_rival_stay_as_they_were():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return 2 * x

    model = images(lambda: {"a": conv(), "b": nn.Sequential(conv(), Counts())})
    rival = model[1].candidates[1]
    before = {name: value.clone() for name, value in rival.state_dict().items()}
    slopes_of(model, draw_of([[1.0, 0.0]], [[0.0, 1.0]]), torch.randn(5, 3, 4, 4))
    for name, value in rival.state_dict().items():
        assert torch.equal(value, before[name]), name
    chosen = model[1].candidates[0]
    assert chosen[1].num_batches_tracked == 1  # the drawn one did see a minibatch


def test_dropout_in_a_rival_is_reproducible_and_leaves_the_random_state_alone():
    model = images(lambda: {"a": nn.Dropout(0.5), "b": nn.Dropout(0.5), "c": nn.Identity()})
    x = torch.randn(5, 3, 4, 4)

    def run(rivals):
        torch.manual_seed(3)
        slopes = slopes_of(model, draw_of([[1.0, 0.0, 0.0]], [rivals]), x)
        return slopes, torch.get_rng_state()

    slopes, state = run([0.0, 1.0, 0.0])
    torch.testing.assert_close(slopes[0, 1], slopes[0, 0])  # both got the same random numbers
    assert torch.equal(slopes, run([0.0, 1.0, 0.0])[0])
    assert torch.equal(state, run([0.0, 0.0, 1.0])[1])


FULL, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


def autocast(dtype):
    return torch.autocast("cpu", dtype=None if dtype is FULL else dtype, enabled=dtype is not FULL)


@pytest.mark.parametrize(
    ("forward", "backward"), [(BF16, FULL), (BF16, FP16), (FULL, BF16), (FULL, FULL), (BF16, BF16)]
)
@pytest.mark.parametrize("gives_input", [True, False])
def test_a_rival_computes_in_the_precision_of_the_forward_pass(forward, backward, gives_input):
    seen = []

    class Told(nn.Linear):
        def forward(self, x=1.0):
            output = super().forward(x * torch.ones(2, 3))
            seen.append(output.dtype)
            return output

    choice = Choice({"a": Told(3, 3), "b": Told(3, 3)}, name="one")
    with SearchSpace(nn.Sequential(choice)).running(draw_of([[1.0, 0.0]], [[0.0, 1.0]])):
        with autocast(forward):
            loss = (choice(torch.randn(2, 3)) if gives_input else choice()).float().sum()
        with autocast(backward):
            loss.backward()
    assert seen == [forward, forward], "first the drawn operation, then its rival"


def test_places_of_a_tied_decision_add_up():
    torch.manual_seed(0)
    model = nn.Sequential(*(Choice({"a": nn.Linear(3, 3), "b": nn.Tanh()}, name="tied") for _ in range(3))).double()
    x, draw = torch.randn(4, 3, dtype=torch.double), draw_of([[1.0, 0.0]], [[0.0, 1.0]])
    draw = Draw(draw.weights.detach().double().requires_grad_(), draw.active)
    torch.testing.assert_close(
        slopes_of(model, draw, x), slopes_by_definition(model, draw, x), rtol=1e-6, atol=1e-8
    )


def test_a_rival_with_decisions_inside_runs_their_draw_and_they_learn_nothing():
    inner = Choice({"double": nn.Linear(3, 3), "tanh": nn.Tanh()}, name="inner")
    model = nn.Sequential(Choice({"a": nn.Identity(), "b": nn.Sequential(inner)}, name="outer"))
    space = SearchSpace(model)
    draw = draw_of([[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]])
    x = torch.randn(4, 3)
    with space.running(draw) as trace:
        slopes = torch.autograd.grad(model(x).sum(), draw.weights)[0]
    torch.testing.assert_close(slopes[0, 1], x.tanh().sum())
    assert slopes[1].tolist() == [0.0, 0.0]
    assert trace.reached.tolist() == [True, False]


def test_changing_the_input_afterwards_is_told_by_name():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.open = nn.Linear(3, 3), Choice({"a": nn.ReLU(), "b": nn.Tanh()}, name="one")

        def forward(self, x):
            x = self.first(x)
            x += self.open(x)
            return x

    with pytest.raises(ValueError, match=r"input of choice 'one' was changed in place.* x = x \+"):
        slopes_of(Model(), draw_of([[1.0, 0.0]], [[0.0, 1.0]]), torch.randn(2, 3))


class ReluInPlace(nn.Module):
    def forward(self, x):
        return x.relu_() + 1


@pytest.mark.parametrize("candidates", [(ReluInPlace(), nn.Tanh()), (nn.Tanh(), nn.ReLU(inplace=True))])
def test_candidates_that_work_in_place_are_told(candidates):
    model = nn.Sequential(nn.Linear(3, 3), Choice(dict(zip("ab", candidates, strict=True)), name="one"))
    with pytest.raises(ValueError, match="changes its input in place"):
        slopes_of(model, draw_of([[1.0, 0.0]], [[0.0, 1.0]]), torch.randn(2, 3))


def test_a_rival_of_another_shape_is_told():
    model = nn.Sequential(Choice({"a": nn.Linear(3, 3), "b": nn.Linear(3, 4)}, name="one"))
    with pytest.raises(ValueError, match=r"must return the same shape.*'b' returned \(2, 4\)"):
        slopes_of(model, draw_of([[1.0, 0.0]], [[0.0, 1.0]]), torch.randn(2, 3))


@pytest.mark.parametrize("weights", ["host", "disk"])
def test_the_weights_of_a_rival_are_fetched_when_it_runs(weights):
    """So that a search needs room for one architecture and one rival at a time."""
    from advnas import stores

    at_hand = []

    class Told(nn.Linear):
        def forward(self, x):
            at_hand.append(sum(candidate.loaded for candidate in store._candidates))
            return super().forward(x)

    torch.manual_seed(0)
    model = nn.Sequential(*(Choice({name: Told(8, 8) for name in "abc"}, name=str(i)) for i in range(3)))
    store = stores.Host() if weights == "host" else stores.Disk("2MB")
    search = Search(model, "contrast", weights=store)
    search.architecture_step(lambda net: net(torch.randn(4, 8)).square().mean())
    assert at_hand == [3, 3, 3, 4, 4, 4]
