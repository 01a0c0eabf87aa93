import copy

import pytest
import torch
from torch import nn

from advnas import Architecture, Choice, Draw, Search, SearchSpace, Zero


class Tracer(nn.Linear):
    """Remembers that it was copied."""

    copies = 0

    def __deepcopy__(self, memo):
        Tracer.copies += 1
        copied = Tracer(self.in_features, self.out_features)
        copied.load_state_dict(self.state_dict())
        memo[id(self)] = copied
        return copied


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Choice({"linear": nn.Linear(3, 3), "skip": nn.Identity()}, name="first")
        self.second = Choice({"linear": nn.Linear(3, 3), "skip": nn.Identity(), "zero": Zero()}, name="second")

    def forward(self, x):
        return self.second(self.first(x)) + x


def nested():
    """outer: leaf | inner(deep: a | b, or flat)"""
    deepest = Choice({"a": nn.Linear(3, 3), "b": nn.Identity()}, name="deepest")
    inner = Choice({"deep": nn.Sequential(nn.Linear(3, 3), deepest), "flat": nn.Identity()}, name="inner")
    return nn.Sequential(Choice({"leaf": nn.Linear(3, 3), "branch": inner}, name="outer"), nn.Linear(3, 2))


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


# Finding decisions


def test_choices_are_named_by_their_path_unless_they_have_a_name():
    model = nn.Sequential(
        nn.Linear(3, 3), Choice({"a": nn.Identity()}), nn.Sequential(Choice({"b": nn.Identity()}, name="mine"))
    )
    assert [decision.name for decision in SearchSpace(model).decisions] == ["1", "mine"]
    assert [decision.name for decision in SearchSpace(nn.ModuleDict({"cell": model})).decisions] == [
        "cell.1",
        "mine",
    ]
    assert SearchSpace(Choice({"a": nn.Identity()})).decisions[0].name == "choice"


def test_equal_names_are_one_decision():
    space = SearchSpace(nn.Sequential(Cell(), Cell(), Cell()))
    assert [decision.name for decision in space.decisions] == ["first", "second"]
    assert [len(decision.choices) for decision in space.decisions] == [3, 3]
    assert space.size == 6


def test_one_choice_in_two_places_is_one_choice():
    choice = Choice({"a": nn.Identity(), "b": Zero()}, name="edge")
    space = SearchSpace(nn.Sequential(choice, choice))
    assert len(space.decisions[0].choices) == 1


def test_nested_choices_are_decisions_of_their_own():
    assert [decision.name for decision in SearchSpace(nested()).decisions] == ["outer", "inner", "deepest"]


def test_a_model_without_a_choice_is_refused_with_the_line_to_write():
    with pytest.raises(ValueError, match=r"Sequential has no Choice.*for example advnas\.Choice\(\{'conv'"):
        SearchSpace(nn.Sequential(nn.Linear(3, 3)))


@pytest.mark.parametrize("other", [{"b": nn.Identity()}, {"b": nn.Identity(), "a": nn.Identity()}])
def test_tied_choices_need_the_same_candidates_in_the_same_order(other):
    one = {"a": nn.Identity(), "b": nn.Identity()}
    message = rf"'edge' has \['a', 'b'\] in one place and \[{', '.join(map(repr, other))}\] in another"
    with pytest.raises(ValueError, match=message):
        SearchSpace(nn.Sequential(Choice(one, name="edge"), Choice(other, name="edge")))


def test_tied_choices_lie_between_the_same_nodes():
    edges = [("in", "middle"), ("middle", "out")]
    model = nn.Sequential(*[Choice({"skip": nn.Identity()}, name="edge", edge=edge) for edge in edges])
    with pytest.raises(ValueError, match=r"edge \('in', 'middle'\) in one place and \('middle', 'out'\)"):
        SearchSpace(model)


def test_the_space_counts_and_enumerates_its_architectures():
    space = SearchSpace(Cell())
    architectures = list(space.architectures())
    assert repr(space) == "SearchSpace(2 decisions, 6 architectures)"
    assert len(space) == 2
    assert space.sizes == (2, 3)
    assert len(set(architectures)) == space.size == 6
    assert architectures[0] == {"first": "linear", "second": "linear"}
    assert architectures[1] == {"first": "linear", "second": "skip"}


def test_architectures_and_one_hot_tensors_are_the_same_thing():
    space = SearchSpace(Cell())
    for architecture in space.architectures():
        assert space.architecture(space.one_hot(architecture)) == architecture
    assert space.one_hot({"first": "skip", "second": "zero"}).tolist() == [[0, 1, 0], [0, 0, 1]]


def test_the_zero_operations_are_known():
    assert SearchSpace(Cell()).zeros.tolist() == [[False, False, False], [False, False, True]]


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ({"first": "skip"}, "has no operation at decision 'second'; choose one of linear, skip, zero"),
        ({"first": "zero", "second": "skip"}, "has 'zero' at decision 'first'; choose one of linear, skip"),
        ({"first": "skip", "second": "skip", "third": "skip"}, "no decision named third"),
    ],
)
@pytest.mark.parametrize(
    "use",
    [SearchSpace.one_hot, SearchSpace.derive, lambda space, architecture: space.running(architecture).__enter__()],
    ids=["one_hot", "derive", "running"],
)
def test_an_architecture_of_another_space_is_refused(architecture, message, use):
    with pytest.raises(ValueError, match=message):
        use(SearchSpace(Cell()), architecture)


# Running


def test_the_model_computes_the_architecture_while_it_is_running_and_only_then():
    model = Cell()
    space, x = SearchSpace(model), randn(2, 3)
    with space.running({"first": "skip", "second": "zero"}):
        assert torch.equal(model(x), x)
    with pytest.raises(RuntimeError, match="no architecture"):
        model(x)


def test_an_error_ends_the_running_too():
    model = Cell()
    space = SearchSpace(model)
    with pytest.raises(RuntimeError), space.running({"first": "linear", "second": "zero"}):
        model(randn(2, 7))
    with pytest.raises(RuntimeError, match="no architecture"):
        model(randn(2, 3))


def test_running_inside_running_gives_the_outer_architecture_back():
    model, x = Cell(), randn(2, 3)
    space = SearchSpace(model)
    with space.running({"first": "skip", "second": "zero"}):
        with space.running({"first": "skip", "second": "skip"}):
            assert torch.equal(model(x), 2 * x)
        assert torch.equal(model(x), x)


def test_tied_choices_share_their_gate_and_add_their_slopes():
    model = nn.Sequential(*[Choice({"skip": nn.Identity()}, name="edge") for _ in range(3)])
    draw = Draw.gated(torch.ones(1, 1))
    with SearchSpace(model).running(draw):
        output = model(torch.tensor([2.0]))
    assert torch.autograd.grad(output, draw.weights)[0].item() == 3 * 2


@pytest.mark.parametrize(
    ("architecture", "reached"),
    [
        ({"outer": "leaf", "inner": "deep", "deepest": "a"}, [True, False, False]),
        ({"outer": "branch", "inner": "flat", "deepest": "a"}, [True, True, False]),
        ({"outer": "branch", "inner": "deep", "deepest": "b"}, [True, True, True]),
    ],
)
@pytest.mark.parametrize(("draw", "graph"), [(Draw.gated, True), (Draw.bare, True), (Draw.bare, False)])
def test_a_run_knows_which_decisions_it_reached(architecture, reached, draw, graph):
    model = nested()
    space = SearchSpace(model)
    with space.running(draw(space.one_hot(architecture))) as run, torch.set_grad_enabled(graph):
        model(randn(2, 3))
    assert run.reached.tolist() == reached


def test_a_decision_that_is_run_only_behind_a_gate_of_0_counts_as_not_reached():
    model = nested()
    space = SearchSpace(model)
    weights = space.one_hot({"outer": "leaf", "inner": "deep", "deepest": "a"}).requires_grad_()
    with space.running(Draw(weights, torch.ones(3, 2, dtype=torch.bool))) as run:
        model(randn(2, 3))
    assert run.reached.tolist() == [True, False, False]


def test_the_weights_of_a_draw_are_the_shared_ones_and_those_of_its_active_candidates():
    model = Cell()
    model.shared = nn.Linear(3, 3)
    model.frozen = nn.Linear(3, 3).requires_grad_(False)
    space = SearchSpace(model)
    drawn = space.parameters(Draw.bare(space.one_hot({"first": "linear", "second": "zero"})))
    assert set(drawn) == {*model.shared.parameters(), *model.first.candidates[0].parameters()}


def test_a_weight_that_two_candidates_share_belongs_to_both_and_is_listed_once():
    linear = nn.Linear(3, 3)
    space = SearchSpace(Choice({"a": linear, "b": nn.Sequential(linear, nn.ReLU())}))
    for draw in (Draw.bare(torch.tensor([[1.0, 0.0]])), Draw.bare(torch.tensor([[0.0, 1.0]]))):
        assert space.parameters(draw) == [*linear.parameters()]
    both = Draw(torch.full((1, 2), 0.5), torch.ones(1, 2, dtype=torch.bool))
    assert space.parameters(both) == [*linear.parameters()]


# Explaining a failure


def test_a_crash_downstream_is_traced_back_to_the_candidates_that_disagree():
    model = nn.Sequential(Choice({"good": nn.Linear(3, 4), "bad": nn.Linear(3, 2)}, name="edge"), nn.Linear(4, 1))
    space = SearchSpace(model)
    with space.running({"edge": "bad"}):
        with pytest.raises(RuntimeError):
            model(randn(5, 3))
        report = space.mismatch()
    assert "choice 'edge' 'good' returned (5, 4), 'bad' returned (5, 2)" in report


def test_there_is_nothing_to_explain_where_candidates_agree():
    space = SearchSpace(Cell())
    with space.running({"first": "skip", "second": "zero"}):
        space.model(randn(5, 3))
        assert space.mismatch() is None


# Deriving


@pytest.mark.parametrize(
    "make", [Cell, nested, lambda: nn.Sequential(Cell(), Cell())], ids=["cell", "nested", "tied"]
)
def test_a_derived_module_holds_no_choice_and_computes_what_its_parent_computes(make):
    model = make()
    space, x = SearchSpace(model), randn(4, 3)
    for architecture in space.architectures():
        plain = space.derive(architecture)
        assert not any(isinstance(module, Choice) for module in plain.modules())
        with space.running(architecture):
            assert torch.equal(plain(x), model(x))


def test_a_derived_module_shares_no_memory_and_no_gradient_with_its_parent():
    model = Cell()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    plain = SearchSpace(model).derive({"first": "linear", "second": "linear"})
    assert all(parameter.grad is None for parameter in plain.parameters())
    assert all(parameter.grad is not None for parameter in model.parameters())
    ours, theirs = ({p.data_ptr() for p in module.parameters()} for module in (plain, model))
    assert not ours & theirs


def test_a_model_that_is_a_choice_derives_to_its_candidate():
    plain = SearchSpace(Choice({"a": nn.Linear(3, 3), "b": nn.Identity()})).derive({"choice": "b"})
    assert type(plain) is nn.Identity


def test_candidates_that_were_not_chosen_are_never_copied():
    model = nn.Sequential(Choice({"a": Tracer(3, 3), "b": nn.Sequential(Tracer(3, 3), Tracer(3, 3))}, name="edge"))
    space = SearchSpace(model)
    for operation, copies in (("a", 1), ("b", 2)):
        Tracer.copies = 0
        space.derive({"edge": operation})
        assert Tracer.copies == copies


def test_modules_that_are_shared_stay_shared():
    linear = nn.Linear(3, 3)
    model = nn.Sequential(
        linear,
        Choice({"again": linear, "skip": nn.Identity()}, name="one"),
        Choice({"again": nn.Sequential(linear), "skip": nn.Identity()}, name="two"),
    )
    plain = SearchSpace(model).derive({"one": "again", "two": "again"})
    assert plain[0] is plain[1] is plain[2][0]
    assert plain[0] is not linear


def test_fresh_weights_depend_on_the_seed_and_on_nothing_else():
    space = SearchSpace(Cell())
    architecture = Architecture({"first": "linear", "second": "linear"})
    before = torch.get_rng_state()
    first = space.derive(architecture, fresh=1).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(99)
    again, other, inherited = (space.derive(architecture, fresh=fresh).state_dict() for fresh in (1, 2, None))
    for name, value in first.items():
        assert torch.equal(value, again[name])
        assert not torch.equal(value, other[name])
        assert not torch.equal(value, inherited[name])


def test_fresh_weights_are_refused_where_a_module_cannot_make_them():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.ones(()))

    space = SearchSpace(nn.Sequential(Choice({"scale": Scale()}, name="edge")))
    with pytest.raises(TypeError, match=r"no reset_parameters\(\) sets 0\.factor"):
        space.derive({"edge": "scale"}, fresh=0)
    assert isinstance(space.derive({"edge": "scale"})[0], Scale)


def test_weights_travel_between_equal_parents_by_state_dict():
    one, other = nested(), nested()
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    architecture = {"outer": "branch", "inner": "deep", "deepest": "a"}
    outputs = [SearchSpace(model).derive(architecture)(randn(2, 3)) for model in (one, other)]
    assert torch.equal(*outputs)


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(Choice({"skip": nn.Identity()}), nn.Linear(2, 2))


def make_model():
    return Net()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Net, r"got the class Net\. Write Net\(\)\."),
        (make_model, r"got a function\. Write make_model\(\)\."),
        (lambda: Net(), r"got a function\. Write make_model\(\)\."),
        ({"net": Net()}, r"got a dict\.$"),
    ],
)
@pytest.mark.parametrize("use", [SearchSpace, Search])
def test_what_is_no_module_is_refused_with_the_line_to_write(given, message, use):
    with pytest.raises(TypeError, match=f"must be an nn.Module with a Choice inside, {message}"):
        use(given)
