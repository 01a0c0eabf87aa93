import torch

from advnas.search.plan import saved_bytes

MEGABYTE = 2**20
X = torch.ones(MEGABYTE // 4, requires_grad=True)


def test_what_is_kept_for_the_backward_pass_is_counted():
    assert saved_bytes(lambda: (X * 2).exp().sum().backward()) == MEGABYTE  # exp keeps its result


def test_memory_that_several_operations_keep_counts_once():
    def step():
        y = X * 2
        (y.sin() + y.cos() + y[:10].square().sum()).sum().backward()

    assert saved_bytes(step) == MEGABYTE


def test_parameters_and_steps_without_a_graph_keep_nothing():
    assert saved_bytes(lambda: X.square().sum().backward()) == 0
    with torch.no_grad():
        assert saved_bytes(lambda: (X * 2).exp().sum()) == 0
