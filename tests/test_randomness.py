import itertools

import pytest
import torch

from advnas.randomness import generator, seed_of


def test_a_seed_is_the_same_on_every_machine():
    assert seed_of(0) == 3_717_377_838_864_110_079
    assert seed_of(3, 1, 2) == 4_989_968_299_961_232_316


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_a_seed_is_one_that_torch_takes(length):
    for path in itertools.product((0, 1, 2**32, 2**63 - 1), repeat=length):
        assert 0 <= seed_of(*path) < 2**63
        generator(*path)


def test_different_paths_never_share_a_stream():
    paths = [path for length in range(4) for path in itertools.product(range(6), repeat=length)]
    assert len({seed_of(*path) for path in paths}) == len(paths)


def test_a_path_and_its_continuation_by_zeros_differ():
    assert len({seed_of(1), seed_of(1, 0), seed_of(1, 0, 0), seed_of(0, 1)}) == 4


def test_generators_of_one_path_are_equal_and_of_others_not():
    one, same, other = (torch.rand(8, generator=generator(*path)) for path in ((1, 2), (1, 2), (2, 1)))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_global_randomness_is_left_alone():
    before = torch.get_rng_state()
    torch.rand(3, generator=generator(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_negative_seed_is_refused():
    with pytest.raises(ValueError):
        seed_of(-1)
