"""Fresh weights are the user's: made by their constructor, or from a seed where that is the same."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from advnas import Choice, Search, SearchSpace
from advnas.fresh import InitializationWarning


class Bert(nn.Module):
    """Initialised like BERT: matrices normal with 0.02, a bias that knows how rare a class is, a bare parameter."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.place = nn.Parameter(torch.empty(16, 32))
        candidates = {"wide": nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)), "skip": nn.Identity()}
        self.block = Choice(candidates, name="block")
        self.head = weight_norm(nn.Linear(32, 2))
        self.apply(self._initialise)
        nn.init.normal_(self.place, std=0.02)
        nn.init.constant_(self.head.bias, math.log(0.01))

    @staticmethod
    def _initialise(module):
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens):
        return self.head(self.block(self.embedding(tokens) + self.place[: tokens.shape[1]]))


def trained():
    """A search of such a model whose weights have moved far away."""
    search = Search(Bert(), "random")
    with torch.no_grad():
        for weight in search.model.parameters():
            weight.add_(1.0)
    return search


def test_a_constructor_keeps_every_initialisation():
    network = trained().derive({"block": "wide"}, fresh=Bert)
    for weight in (network.embedding.weight, network.place, network.block[0].weight, network.block[2].weight):
        assert weight.std().item() == pytest.approx(0.02, abs=0.002)
        assert abs(weight.mean().item()) < 0.002
    assert network.head.bias.tolist() == pytest.approx([math.log(0.01)] * 2)
    assert not any(isinstance(module, Choice) for module in network.modules())
    assert network(torch.zeros(3, 5, dtype=torch.long)).shape == (3, 5, 2)


def test_a_constructor_draws_from_the_callers_generator():
    search = trained()
    one, same, other = (
        torch.manual_seed(seed) and search.derive({"block": "wide"}, fresh=Bert).place for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_constructor_must_make_the_same_space_anew():
    search = trained()
    with pytest.raises(ValueError, match="returned the searched model itself"):
        search.derive(fresh=lambda: search.model)
    with pytest.raises(ValueError, match="returned a int"):
        search.derive(fresh=lambda: 3)
    other = nn.Sequential(Choice({"wide": nn.Linear(2, 2), "zero": nn.Identity()}, name="block"))
    with pytest.raises(ValueError, match="other decisions"):
        search.derive(fresh=lambda: other)


def test_parameters_that_nobody_resets_are_named_and_nothing_is_changed():
    with pytest.raises(TypeError, match=r"no reset_parameters\(\) sets place, head.*fresh=make_model"):
        trained().derive({"block": "wide"}, fresh=0)


class Scaled(nn.Linear):
    """Its reset_parameters, inherited, does not know about the scale."""

    def __init__(self):
        super().__init__(4, 4)
        self.scale = nn.Parameter(torch.ones(4))


def test_a_parameter_beside_a_reset_that_does_not_know_it_is_found():
    space = SearchSpace(nn.Sequential(Choice({"a": Scaled(), "b": nn.Identity()}, name="x")))
    with pytest.raises(TypeError, match=r"sets 0\.scale"):
        space.derive({"x": "a"}, fresh=0)


def plain(std=None):
    model = nn.Sequential(nn.Linear(64, 64), Choice({"a": nn.Linear(64, 64), "b": nn.LayerNorm(64)}, name="x"))
    if std is not None:
        nn.init.normal_(model[0].weight, std=std)
    return model


def test_a_seed_that_changes_an_initialisation_warns():
    with pytest.warns(InitializationWarning, match=r"initialises 0\.weight otherwise.*write fresh=make_model"):
        SearchSpace(plain(std=0.02)).derive({"x": "a"}, fresh=0)


def test_a_bias_that_was_a_constant_is_told_from_a_few_random_numbers():
    model = plain()
    model[0].bias.data.fill_(math.log(0.01))
    with pytest.warns(InitializationWarning, match=r"initialises 0\.bias otherwise"):
        SearchSpace(model).derive({"x": "a"}, fresh=0)


@pytest.mark.parametrize("seed", range(20))
def test_a_seed_that_does_what_the_constructor_did_does_not_warn(seed):
    """Warnings are errors here. The weights have been trained since the search was made."""
    space = SearchSpace(plain())
    with torch.no_grad():
        for weight in space.model.parameters():
            weight.mul_(3)
    for operation in ("a", "b"):
        space.derive({"x": operation}, fresh=seed)


@pytest.mark.parametrize(
    ("fresh", "told"),
    [(nn.Linear(1, 1), "fresh is a Linear that is made already"), (True, "got True"), ("new", "got 'new'")],
)
def test_something_else_than_a_seed_or_a_function_is_refused(fresh, told):
    with pytest.raises(TypeError, match=rf"{told}\. Write derive\(fresh=make_model\)"):
        trained().derive({"block": "wide"}, fresh=fresh)


class LowRank(nn.Module):
    """A frozen linear layer and what is learnt beside it, as LoRA has it. The frozen scale has no layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.down, self.up = layer.requires_grad_(False), nn.Linear(8, 2), nn.Linear(2, 8)
        self.scale = nn.Parameter(torch.tensor(0.5), requires_grad=False)

    def reset_parameters(self):
        """Also those of the layer, as layers that inherit from nn.Linear do."""
        self.layer.reset_parameters()

    def forward(self, x):
        return self.layer(x) + self.scale * self.up(self.down(x))


def pretrained():
    """A frozen block with statistics, an open layer beside frozen weights, and a BatchNorm that is trained."""
    block = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.BatchNorm1d(8, affine=False)).requires_grad_(False)
    choice = Choice({"lora": LowRank(nn.Linear(8, 8)), "skip": nn.Identity()}, name="x")
    model = nn.Sequential(block, choice, nn.BatchNorm1d(8), nn.Linear(8, 1))
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if "num_batches" not in name:
                tensor.copy_(torch.rand_like(tensor) + 1)
    return SearchSpace(model)


@pytest.mark.filterwarnings("ignore::advnas.fresh.InitializationWarning")
def test_a_seed_leaves_frozen_weights_and_the_statistics_of_frozen_blocks_as_they_are():
    space = pretrained()
    inherited, fresh = (space.derive({"x": "lora"}, fresh=seed).state_dict() for seed in (None, 0))
    kept = {name for name, tensor in fresh.items() if torch.equal(tensor, inherited[name])}
    values = ("weight", "bias", "running_mean", "running_var")
    assert kept - {"2.num_batches_tracked"} == {
        *(f"0.0.{name}" for name in values[:2]),
        *(f"0.1.{name}" for name in (*values, "num_batches_tracked")),
        *(f"0.2.{name}" for name in (*values[2:], "num_batches_tracked")),
        *(f"1.layer.{name}" for name in values[:2]),
        "1.scale",
    }


def test_frozen_weights_that_were_loaded_after_the_search_was_made_do_not_warn():
    space = SearchSpace(plain())
    space.model[0].requires_grad_(False).weight.fill_(3.0)
    assert space.derive({"x": "a"}, fresh=0)[0].weight.unique().tolist() == [3.0]


def test_a_bare_parameter_needs_no_reset_while_it_is_frozen_only():
    space = pretrained()
    space.model[1].candidates[0].scale.requires_grad_(True)
    with pytest.raises(TypeError, match=r"sets 1\.scale\. Write fresh=make_model"):
        space.derive({"x": "lora"}, fresh=0)
