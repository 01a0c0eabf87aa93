import os

import pytest
import torch
from torch import nn

from advnas import Choice, Search
from advnas import stores as weights


class Wide(nn.Module):
    """Three decisions between four candidates of 1 MB each."""

    def __init__(self):
        super().__init__()
        candidates = (Choice({f"{k}": nn.Linear(500, 500, bias=False) for k in range(4)}) for _ in range(3))
        self.layers = nn.Sequential(*candidates)

    def forward(self, x):
        return self.layers(x)


def square(model):
    return model(torch.ones(2, 500)).square().mean()


def test_no_more_than_the_budget_is_in_memory(resident_bytes):
    before = resident_bytes()
    search = Search(Wide(), "random", weights="disk", memory_budget="9MB")
    for _ in range(10):
        search.weight_step(square)
        assert resident_bytes() < before + 10_000_000
    total = sum(each.bytes for each in search.weights.store._candidates)
    assert total > 18_000_000


def test_candidates_much_smaller_than_a_mapping_do_not_bring_their_neighbours_along(resident_bytes):
    before = resident_bytes()
    model = nn.Sequential(*(Choice({f"{k}": nn.Linear(100, 100) for k in range(20)}) for _ in range(5)))
    search = Search(model, "random", weights="disk", memory_budget="1.5MB")
    for _ in range(20):
        search.weight_step(lambda model: model(torch.ones(2, 100)).square().mean())
        assert resident_bytes() <= before + 1_500_000


def test_the_least_recently_drawn_candidates_leave_first():
    search = Search(Wide(), "random", weights="disk", memory_budget="9MB")
    drawn = []
    for _ in range(12):
        drawn += [f"{d} {o}" for d, o in search.weight_step(square).architecture.items()]
    in_memory = {name.split(" ", 1)[1] for name in search.weights.store._recent}
    last_drawn = sorted(set(drawn), key=lambda name: -max(i for i, other in enumerate(drawn) if other == name))
    assert in_memory == set(last_drawn[: len(in_memory)])
    assert 3 <= len(in_memory) <= 4


def test_a_draw_that_does_not_fit_is_refused():
    search = Search(Wide(), "darts", weights="disk", memory_budget="5MB")
    with pytest.raises(ValueError, match=r"One draw needs 12\.8 MB .* memory_budget is 5 MB\. Give more"):
        search.weight_step(square)


def test_a_model_built_in_the_file_has_the_numbers_of_one_built_in_memory(lab):
    resident = Search(lab.network(), "advantage", seed=1, steps=30)
    store = weights.Disk(600_000)
    with store.building():
        model = lab.network()
    assert all(map(torch.equal, model.state_dict().values(), resident.model.state_dict().values()))
    other = Search(model, "advantage", seed=1, steps=30, weights=store)
    for search in (resident, other):
        lab.take_steps(search, 5)
    lab.assert_equal(resident, other)


def test_building_stays_within_the_budget(resident_bytes):
    before = resident_bytes()
    store, seen = weights.Disk("3MB"), []

    class Spy(nn.Module):
        def __init__(self, index):
            super().__init__()
            self.linear = nn.Linear(500, 500, bias=False)
            seen.append(resident_bytes())

        def forward(self, x):
            return self.linear(x)

    with store.building():
        model = Choice({f"{k}": Spy(k) for k in range(12)})
    assert max(seen) < before + 4_000_000
    Search(model, "random", weights=store).weight_step(square)
    assert resident_bytes() < before + 4_000_000


def test_only_what_is_built_inside_is_in_the_file(lab):
    store = weights.Disk("4MB")
    with store.building():
        inside = nn.Linear(2, 2)
    outside = nn.Linear(2, 2)
    assert store._arena.holds(inside.weight)
    assert not store._arena.holds(outside.weight)


def test_shared_weights_leave_the_file_when_the_search_is_made(lab):
    store = weights.Disk("4MB")
    with store.building():
        model = lab.network()
    Search(model, weights=store)
    assert not any(store._arena.holds(tensor) for tensor in (model.stem.weight, model.last.weight))
    assert store._arena.holds(model.body[0].candidates[0][0].weight)


@pytest.mark.parametrize("cached", [True, False])
def test_what_was_released_returns(lab, cached, resident_bytes):
    store, resident = weights.Disk("4MB"), lab.search_with("resident")
    search = lab.search_with(store)
    for one in (search, resident):
        lab.take_steps(one, 2)
    before = resident_bytes()
    store.release(cached=cached)
    assert resident_bytes() < before
    for one in (search, resident):
        lab.take_steps(one, 2, start=2)
    lab.assert_equal(search, resident)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("kind", ["weight_step", "architecture_step", "joint_step"])
def test_a_forked_process_may_not_take_steps_in_the_scratch_file_of_its_parent(kind):
    """They have it in common: a step of the child would change the weights of the parent."""
    search = Search(
        nn.Sequential(Choice({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})), weights=weights.Disk("1MB")
    )
    before = {name: value.clone() for name, value in search.model.state_dict().items()}
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            getattr(search, kind)(lambda model: model(torch.ones(2, 3)).square().mean())
        except RuntimeError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    message = os.read(reading, 10_000).decode()
    os.close(reading)
    assert "forked from one that searches with weights='disk'" in message
    assert "Make the Search in this process" in message
    assert all(torch.equal(before[name], value) for name, value in search.model.state_dict().items())
    getattr(search, kind)(lambda model: model(torch.ones(2, 3)).square().mean())  # the parent may
