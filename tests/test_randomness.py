import contextlib
import itertools
import re
from pathlib import Path

import pytest
import torch

import advnas
from advnas.randomness import GeneratorStates, generator, seed_of, seeded


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


def test_global_randomness_is_changed_in_one_module_alone():
    changes = re.compile(
        r"manual_seed_all|torch\.(\w+\.)?(manual_seed|seed|set_rng_state|fork_rng)\(|random\.seed\("
    )
    package = Path(advnas.__file__).parent
    files = {str(path.relative_to(package)) for path in package.rglob("*.py") if changes.search(path.read_text())}
    assert files == {"randomness.py"}


def test_a_negative_seed_is_refused():
    with pytest.raises(ValueError):
        seed_of(-1)


class FakeMps:
    """torch.mps as it is on a machine that has it: one device, one generator, no argument for either."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(5)

    def manual_seed(self, seed):
        self.generator.manual_seed(seed)

    def get_rng_state(self):
        return self.generator.get_state()

    def set_rng_state(self, state):
        self.generator.set_state(state)

    def draw(self):
        return torch.rand(3, generator=self.generator)

    def state(self):
        return self.get_rng_state()


class FakeXpu:
    """torch.xpu with two devices: `manual_seed` is of the current one, as torch.cuda has it."""

    def __init__(self):
        self.generators = [torch.Generator().manual_seed(number) for number in (5, 6)]
        self.current = 0

    @contextlib.contextmanager
    def device(self, device):
        self.current, before = device.index, self.current
        yield
        self.current = before

    def manual_seed(self, seed):
        self.generators[self.current].manual_seed(seed)

    def get_rng_state(self, device):
        return self.generators[device.index].get_state()

    def set_rng_state(self, state, device):
        self.generators[device.index].set_state(state)

    def draw(self):
        return torch.rand(3, generator=self.generators[1])

    def state(self):
        return torch.cat([generator.get_state() for generator in self.generators])


@pytest.fixture(params=[("mps", FakeMps, "mps"), ("xpu", FakeXpu, "xpu:1")], ids=["mps", "xpu"])
def other(request, monkeypatch):
    """A device with a generator of its own, and the module of torch that has it."""
    kind, fake, device = request.param
    module = fake()
    monkeypatch.setattr(torch, kind, module)
    return torch.device(device), module


def test_the_generator_of_any_device_is_seeded_and_put_back(other):
    device, module = other
    before, drawn = module.state(), []
    for _ in range(2):
        with seeded(3, device):
            drawn.append(module.draw())
        assert torch.equal(module.state(), before)
    assert torch.equal(*drawn)
    with seeded(4, device):
        assert not torch.equal(module.draw(), drawn[0])


def test_the_generator_of_any_device_gives_the_same_numbers_again(other):
    device, module = other
    states = GeneratorStates([device])
    first, second = module.draw(), module.draw()
    with states.again():
        assert torch.equal(module.draw(), first)
    third = module.draw()
    states.restore()
    assert torch.equal(module.draw(), first)
    assert torch.equal(module.draw(), second)
    assert torch.equal(module.draw(), third)


def test_devices_without_a_generator_are_no_matter():
    with seeded(3, torch.device("meta"), torch.device("cpu")):
        drawn = torch.rand(3)
    with seeded(3):
        assert torch.equal(torch.rand(3), drawn)
    assert GeneratorStates([torch.device("meta"), torch.device("cpu")]).devices == []
