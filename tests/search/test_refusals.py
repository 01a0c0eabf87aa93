"""What would give wrong results silently is refused, and nothing of the user's is run twice."""

import threading
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import prune

from advnas import Choice, Search, Zero

SGD = partial(torch.optim.SGD, lr=0.1)
STEPS = ["weight_step", "architecture_step", "joint_step"]
X = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))


def network(*candidates):
    named = {str(number): candidate for number, candidate in enumerate(candidates)}
    choice = Choice(named or {"linear": nn.Linear(4, 4), "skip": nn.Identity()}, name="edge")
    return nn.Sequential(nn.Linear(3, 4), choice, nn.Linear(4, 1))


def loss_of(model):
    return F.mse_loss(model(X), torch.ones(8, 1))


def everything(search):
    weights = {name: value.clone() for name, value in search.model.state_dict().items()}
    return {**weights, "theta": search.distribution.logits.clone()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# A loss without a graph


def under(context, model):
    with context():
        return loss_of(model)


LOST = {
    "no_grad": partial(under, torch.no_grad),
    "inference_mode": partial(under, torch.inference_mode),
    "detached": lambda model: loss_of(model).detach(),
    "detached output": lambda model: F.mse_loss(model(X).detach(), torch.ones(8, 1)),
    "data": lambda model: loss_of(model).data,
    "a new tensor": lambda model: torch.tensor(loss_of(model).item()),
}


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("loss", LOST.values(), ids=LOST)
@pytest.mark.parametrize("strategy", ["advantage", "contrast", "darts"])
def test_a_loss_without_a_graph_is_refused(kind, loss, strategy):
    search = Search(network(), strategy)
    before = everything(search)
    if kind == "architecture_step":  # whoever puts a cost alone into the loss comes here too
        words = r"The loss has no gradient at the operations.*detach\(\), no_grad\(\).*advnas\.costs"
    else:
        words = r"The loss has no graph.*no_grad\(\).*detach\(\).*Return it as"
    with pytest.raises(ValueError, match=words):
        getattr(search, kind)(loss)
    assert same(before, everything(search))


@pytest.mark.parametrize("kind", STEPS)
def test_a_path_of_zeros_needs_no_graph(kind):
    model = nn.Sequential(nn.Linear(3, 4), Choice({"zero": Zero()}, name="edge"))
    getattr(Search(model, "random"), kind)(lambda model: model(X).mean())


def test_a_network_without_trainable_weights_needs_no_graph():
    model = network().requires_grad_(False)
    search = Search(model, "advantage")
    search.weight_step(loss_of)
    search.architecture_step(loss_of)
    assert (search.weight_steps, search.architecture_steps) == (1, 1)


def test_a_strategy_that_asks_for_no_slopes_may_get_a_loss_without_a_graph():
    Search(network(), "reinforce").architecture_step(LOST["no_grad"])


# Failures are explained without running anything again


class Counts(nn.Module):
    """Keeps notes of its runs, and statistics."""

    def __init__(self, width):
        super().__init__()
        self.linear, self.norm, self.seen = nn.Linear(4, width), nn.BatchNorm1d(width), []

    def forward(self, x):
        self.seen.append(x.detach())
        return self.norm(self.linear(x))


def runs(search):
    return sum(len(candidate.seen) for candidate in search.model[1].candidates)


@pytest.mark.parametrize("kind", STEPS)
def test_a_failing_loss_runs_once_and_no_other_candidate_does(kind):
    search = Search(network(Counts(4), Counts(4), Counts(4)), "random")
    before, calls = everything(search), []

    def fails(model):
        calls.append(model(X))
        raise ValueError("labels out of range")

    with pytest.raises(ValueError, match="labels out of range"):
        getattr(search, kind)(fails)
    assert len(calls) == runs(search) == 1
    assert same(before, everything(search))


@pytest.mark.parametrize("kind", STEPS)
def test_shapes_that_differ_are_explained_without_running_the_others(kind):
    search = Search(network(Counts(5), Counts(6)), "random")
    before = everything(search)
    message = r"choice 'edge' '0' returned \(8, 5\), '1' returned \(8, 6\) for the same input \(\(8, 4\),\)"
    with pytest.raises(ValueError, match=message):
        getattr(search, kind)(loss_of)
    assert runs(search) == 1
    assert same(before, everything(search))


def test_candidates_elsewhere_are_explained_too():
    """Their weights are not loaded, and need not be."""
    search = Search(network(nn.Linear(4, 5), nn.Linear(4, 6)), "random", weights="disk", memory_budget="1MB")
    with pytest.raises(ValueError, match=r"'0' returned \(8, 5\), '1' returned \(8, 6\)"):
        search.weight_step(loss_of)


# Other wrappers, and modules that change later


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_a_parallel_wrapper_around_the_network_is_refused():
    with pytest.raises(ValueError, match=r"wrapped in DistributedDataParallel.*Search\(model, group=\.\.\.\)"):
        Search(DistributedDataParallel(network()))
    with pytest.raises(ValueError, match=r"wrapped in DataParallel.*group="):
        Search(nn.DataParallel(network()))


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("kind", STEPS)
def test_a_parallel_wrapper_inside_the_loss_is_refused(kind):
    model = network()
    search = Search(model, "advantage")
    before = everything(search)
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    with pytest.raises(ValueError, match=r"through DistributedDataParallel.*group="):
        getattr(search, kind)(lambda _: loss_of(wrapped))
    assert same(before, everything(search))


def test_data_parallel_cannot_copy_a_choice():
    with pytest.raises(TypeError, match=r"cannot be run by DataParallel.*group="):
        Choice({"skip": nn.Identity()})._replicate_for_data_parallel()


def replace_shared(model):
    model[2] = nn.Linear(4, 1)


def replace_candidate(model):
    model[1].candidates[0] = nn.Linear(4, 4)


def replace_inside(model):
    nn.SyncBatchNorm.convert_sync_batchnorm(model)


def replace_parameter(model):
    model[0].weight = nn.Parameter(torch.zeros(4, 3))


def prune_later(model):
    prune.random_unstructured(model[0], "weight", amount=0.5)


def add_layer(model):
    model.append(nn.Linear(1, 1))


SURGERY = [replace_shared, replace_candidate, replace_inside, replace_parameter, prune_later, add_layer]


@pytest.mark.parametrize("change", SURGERY)
@pytest.mark.parametrize("kind", STEPS)
def test_modules_that_are_replaced_after_the_search_was_made_are_told(change, kind):
    model = network(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    search = Search(model, "random")
    change(model)
    with pytest.raises(ValueError, match=r"after the Search was made.*Change the model.*then make the Search"):
        getattr(search, kind)(loss_of)


def test_other_numbers_in_the_same_parameters_are_no_change():
    search = Search(network(), "random")
    search.model.load_state_dict(network().state_dict())
    search.model.double().float()
    search.weight_step(loss_of)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_weights_that_have_no_shape_yet_are_told():
    with pytest.raises(ValueError, match=r"'1\.candidates\.0\.weight' has no shape yet.*lazy module.*run every"):
        Search(network(nn.LazyLinear(4)))


# Threads


def test_searches_in_two_threads_find_what_they_find_alone():
    def steps(seed, found):
        search = Search(parents[seed], "advantage", seed=seed, weight_optimizer=SGD)
        for _ in range(40):
            search.weight_step(dropped)
            search.architecture_step(dropped)
        found[seed] = everything(search)

    def dropped(model):
        return F.mse_loss(F.dropout(model(X), 0.5), torch.ones(8, 1))

    def make_parents():
        torch.manual_seed(0)
        return {seed: network() for seed in (0, 1)}

    alone, together = {}, {}
    parents = make_parents()
    for seed in (0, 1):
        steps(seed, alone)
    parents = make_parents()
    before = torch.get_rng_state()
    threads = [threading.Thread(target=steps, args=(seed, together)) for seed in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(before, torch.get_rng_state())
    assert all(same(alone[seed], together[seed]) for seed in (0, 1))
