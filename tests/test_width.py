import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advnas import Choice, Draw, Search, SearchSpace, Width, costs
from advnas.testing.enumeration import every_architecture

WIDTHS = (2, 5, 8)


def linear():
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 6))


def convolution():
    depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
    last = nn.Conv2d(8, 3, 1, bias=False)
    return nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), depthwise, nn.BatchNorm2d(8), last, nn.BatchNorm2d(3)
    )


def lora():
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.Linear(8, 6, bias=False))


def embedding():
    return nn.Sequential(nn.Embedding(10, 8), nn.RMSNorm(8), nn.Linear(8, 6))


class Gated(nn.Module):
    """A feed-forward layer that is no Sequential."""

    def __init__(self):
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x, *, scale=1.0):
        return self.down(F.silu(self.gate(x)) * self.up(x)) * scale


BODIES = {
    "linear": (linear, (4, 6), {}),
    "convolution": (convolution, (2, 3, 5, 5), {}),
    "lora": (lora, (4, 6), {}),
    "embedding": (embedding, None, {}),
    "gated": (Gated, (4, 6), {"makes": ["up", "gate"], "reads": ["down"]}),
}


@pytest.fixture(params=BODIES)
def width_and_input(request):
    build, shape, options = BODIES[request.param]
    torch.manual_seed(0)
    x = torch.randint(10, (4, 3)) if shape is None else torch.randn(shape, dtype=torch.float64)
    return Width(build().double(), WIDTHS, name="width", **options), x


def test_the_narrow_body_is_the_body_with_the_other_units_taken_away():
    """Of a plain MLP: the first rows of the first layer, the first columns of the last."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    x = torch.randn(4, 6)
    first, last = body[0], body[2]
    for candidate, width in zip(Width(body, WIDTHS).candidates, WIDTHS, strict=True):
        hidden = torch.tanh(x @ first.weight[:width].T + first.bias[:width])
        torch.testing.assert_close(candidate(x), hidden @ last.weight[:, :width].T + last.bias)


def test_the_widest_candidate_is_the_body_itself(width_and_input):
    width, x = width_and_input
    reference = copy.deepcopy(width.candidates[0].body)
    torch.testing.assert_close(width.candidates[-1](x), reference(x))


def test_a_derived_body_is_plain_and_computes_the_same(width_and_input):
    width, x = width_and_input
    space = SearchSpace(nn.ModuleList([width]))
    for operation in width.operations:
        plain = space.derive({"width": operation})[0]
        assert not any(type(module).__module__.startswith("advnas") for module in plain.modules())
        with space.running({"width": operation}):
            torch.testing.assert_close(plain(x), width(x), atol=0, rtol=0)
        fewer = sum(parameter.numel() for parameter in plain.parameters())
        assert (fewer < sum(parameter.numel() for parameter in width.parameters())) == (operation != "8")
    assert type(width.candidates[0].body) is type(plain)


def test_a_derived_body_says_its_sizes_and_its_weights_load():
    width = Width(convolution(), WIDTHS, name="width")
    plain = SearchSpace(nn.Sequential(width)).derive({"width": "5"})[0]
    assert (plain[0].out_channels, plain[3].groups, plain[3].in_channels, plain[5].in_channels) == (5, 5, 5, 5)
    assert plain[1].running_mean.shape == (5,)
    assert plain[6].num_features == 3
    other = SearchSpace(nn.Sequential(Width(convolution(), WIDTHS, name="width"))).derive({"width": "5"}, fresh=1)[
        0
    ]
    other.load_state_dict(plain.state_dict())
    assert torch.equal(other[3].weight, plain[3].weight)
    assert width.candidates[0].body[0].out_channels == 8


def everything(chosen):
    """All candidates run, as in dense strategies."""
    return Draw(chosen.requires_grad_(), torch.ones_like(chosen, dtype=torch.bool))


def with_rivals(chosen):
    """The others run inside the backward pass, as in `contrast`."""
    return Draw.contrasted(chosen, 1 - chosen)


@pytest.mark.parametrize("make_draw", [everything, with_rivals])
def test_slopes_of_the_gates_are_those_of_finite_differences(make_draw):
    """Two open widths in series, all architectures and gates, in double precision."""
    torch.manual_seed(0)
    model = nn.Sequential(Width(linear(), WIDTHS, name="first"), Width(lora(), WIDTHS, name="second")).double()
    space, x = SearchSpace(model), torch.randn(4, 6, dtype=torch.float64)

    def loss(draw):
        with space.running(draw):
            return model(x).square().sum()

    for chosen in every_architecture(space.sizes).double():
        draw = make_draw(chosen.clone())
        with space.running(draw):
            slope = torch.autograd.grad(model(x).square().sum(), draw.weights)[0]
        for place in [(row, column) for row in range(2) for column in range(3)]:
            step = torch.zeros_like(chosen)
            step[place] = 1e-5
            with torch.no_grad():
                up, down = (loss(everything(chosen + sign * step)) for sign in (1, -1))
            assert slope[place].item() == pytest.approx((up - down).item() / 2e-5, rel=0, abs=1e-9)


@pytest.mark.parametrize("store", ["resident", "host", "disk"])
@pytest.mark.parametrize("strategy", ["contrast", "advantage", "reinforce", "darts"])
def test_a_width_is_searched_like_any_choice(store, strategy):
    def search_with(kind):
        torch.manual_seed(0)
        other = Choice({"mlp": nn.Linear(6, 6), "skip": nn.Identity()}, name="other")
        model = nn.Sequential(Width(linear(), WIDTHS, name="width"), other, nn.Linear(6, 1))
        budget = {"memory_budget": "1MB"} if kind == "disk" else {}
        return Search(model, strategy, weights=kind, **budget, steps=20, seed=3)

    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    searches = [search_with("resident"), search_with(store)]
    for search in searches:
        for _ in range(4):
            search.weight_step(lambda model: model(x).square().mean())
            search.architecture_step(lambda model: model(x).square().mean())
    torch.testing.assert_close(*(search.distribution.logits for search in searches), atol=0, rtol=0)


def test_a_rival_leaves_running_statistics_and_sizes_as_they_are():
    torch.manual_seed(0)
    model = nn.Sequential(Width(convolution(), WIDTHS, name="width"))
    search, x = Search(model, "contrast", seed=0), torch.randn(4, 3, 5, 5)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    for _ in range(5):
        search.architecture_step(lambda model: model(x).square().mean())
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert model[0].candidates[0].body[3].groups == 8


def test_widths_that_make_no_sense_are_refused():
    for widths, message in (
        ((), "different numbers"),
        ((4, 4), "different numbers"),
        ((4, 9), "9 is more than the 8 units"),
    ):
        with pytest.raises(ValueError, match=message):
            Width(linear(), widths)
    with pytest.raises((TypeError, ValueError), match="width"):
        Width(linear(), (0, 4))


@pytest.mark.parametrize(
    ("body", "options", "message"),
    [
        (Gated, {}, "makes=.*reads="),
        (Gated, {"makes": ["up"], "reads": ["dwon"]}, "no submodule 'dwon'. It has up, gate, down"),
        (Gated, {"makes": "up", "reads": ["down"]}, "lists of names"),
        (lambda: nn.Sequential(nn.Linear(3, 8)), {}, "one that reads them"),
        (lambda: nn.Sequential(nn.Linear(3, 8), nn.Flatten(), nn.Linear(16, 2)), {}, "same number of units"),
        (
            lambda: nn.Sequential(nn.Linear(3, 8), nn.GroupNorm(2, 8), nn.Linear(8, 2)),
            {},
            "'1' of the body is a GroupNorm, which cannot be sliced",
        ),
        (
            lambda: nn.Sequential(nn.Conv1d(3, 8, 1), nn.Conv1d(8, 8, 1, groups=2), nn.Conv1d(8, 3, 1)),
            {},
            "convolution in groups",
        ),
    ],
)
def test_a_body_that_cannot_be_sliced_is_refused_and_told_what_to_write(body, options, message):
    with pytest.raises(ValueError, match=message):
        Width(body(), (2, 4), **options)


@pytest.mark.parametrize("body", [linear, convolution, lora])
def test_costs_of_widths_are_those_of_the_derived_network(body):
    """Tied in two places, and beside another decision."""
    torch.manual_seed(0)
    widths = [Width(body(), WIDTHS, name="width") for _ in range(2)]
    other = Choice({"linear": nn.Linear(5, 5), "skip": nn.Identity()}, name="other")
    image = body is convolution
    model = nn.Sequential(*widths, *([other] if image else []))
    space, example = SearchSpace(model), torch.randn((2, 3, 5, 5) if image else (2, 6))
    numbers, products = costs.parameters(space), costs.multiply_adds(space, example)
    for architecture in space.architectures():
        plain = space.derive(architecture)
        assert numbers.of(architecture) == sum(weight.numel() for weight in plain.parameters())
        alone = costs.multiply_adds(SearchSpace(Choice({"only": plain}, name="all")), example)
        assert products.of(architecture) == alone.of({"all": "only"})
    assert space.operation_sizes()["width"]["2"] < space.operation_sizes()["width"]["8"]


class Beside(nn.Module):
    """An open width, and another module beside it."""

    def __init__(self, width, other):
        super().__init__()
        self.other, self.width = other, width

    def forward(self, x):
        return self.width(x) + self.other(x)


def two_names():
    body = lora()
    return nn.Sequential(Width(body, WIDTHS, name="a"), Width(body, WIDTHS, name="b"))


def body_outside():
    body = lora()
    return Beside(Width(body, WIDTHS, name="a"), body)


def layer_outside():
    body = lora()
    return nn.Sequential(Width(body, WIDTHS, name="a"), nn.Sequential(body[0], nn.Linear(8, 6)))


def whole_in_a_choice_of_that_name():
    body = lora()
    return nn.Sequential(Width(body, (2, 8), name="a"), Choice({"2": body, "8": nn.Identity()}, name="a"))


def other_sides():
    layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
    pairs = [nn.Sequential(layers[0], layers[1]), nn.Sequential(layers[1], layers[2])]
    return nn.Sequential(*(Width(pair, (2, 6), name="a") for pair in pairs))


@pytest.mark.parametrize(
    "build", [two_names, body_outside, layer_outside, whole_in_a_choice_of_that_name, other_sides]
)
def test_a_sliced_layer_that_is_used_in_another_way_is_refused(build):
    """Deriving would make it narrow there, too."""
    with pytest.raises(ValueError, match=r"a Width slices it, but not in the same way at both\..*copy\.deepcopy"):
        SearchSpace(build())


def test_tied_widths_may_share_a_body_and_others_a_layer_that_is_not_sliced():
    torch.manual_seed(0)
    body, activation = lora(), nn.Tanh()
    tied = [Width(body, WIDTHS, name="a") for _ in range(2)]
    own = Width(nn.Sequential(nn.Linear(6, 8), activation, nn.Linear(8, 6)), WIDTHS, name="b")
    model, x = nn.Sequential(*tied, activation, own), torch.randn(4, 6)
    space = SearchSpace(model)
    for architecture in space.architectures():
        with space.running(architecture):
            torch.testing.assert_close(space.derive(architecture)(x), model(x))


def test_a_limit_of_parameters_narrows_a_width():
    torch.manual_seed(0)
    model = nn.Sequential(Width(linear(), WIDTHS, name="first"), Width(lora(), WIDTHS, name="second"))
    search = Search(model, limit={"parameters": 200})
    answer = search.argmax()
    assert sum(weight.numel() for weight in search.derive(answer).parameters()) <= 200
