import pytest
import torch

from advnas import SearchSpace, Zero
from advnas.spaces.mobile import SMALL_IMAGES, STAGES, Layer, MobileNetwork, many_candidates, mobile_candidates
from advnas.testing import check_space

MOBILENET_V2 = ((24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1))
TINY = ((8, 2, 2), (16, 1, 1))


def small(**options):
    return MobileNetwork(inputs=1, width=0.25, classes=3, stem_stride=1, stages=TINY, **options)


def image(side=8):
    return torch.randn(2, 1, side, side, generator=torch.Generator().manual_seed(0))


def on_meta(**options):
    with torch.device("meta"):
        return SearchSpace(MobileNetwork(**options))


def everywhere(space, operation):
    return space.derive({decision.name: operation for decision in space.decisions})


def size(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_with_its_stages_it_is_mobilenet_v2():
    space = on_meta(stages=MOBILENET_V2, affine=True)
    assert size(everywhere(space, "mb6_3x3")) == 3_504_872


def test_there_are_21_decisions_and_a_zero_operation_wherever_a_shortcut_is_left():
    space = on_meta()
    assert len(space) == 21 == sum(layers for _, layers, _ in STAGES)
    layers = [module for module in space.model.modules() if isinstance(module, Layer)]
    for layer, decision in zip(layers, space.decisions, strict=True):
        assert ("zero" in decision.operations) is layer._shortcut
        assert len(decision.operations) == 6 + layer._shortcut
    assert sum(layer._shortcut for layer in layers) == 15


def test_it_is_a_space():
    check_space(small, image(), architectures=0)


@pytest.mark.parametrize("count", [4, 16, 64])
def test_widening_adds_choice_and_not_size(count):
    space = on_meta(candidates=many_candidates(count))
    assert set(space.sizes) == {count}
    parent = size(space.model)
    shared = size(space.model.stem) + size(space.model.last) + size(space.model.classifier)
    average = (parent - shared) / count
    assert average == pytest.approx(2_277_000, rel=0.01)  # of the drawn candidates of one architecture


@pytest.mark.parametrize("count", [2, 5])
def test_a_number_of_candidates_that_cannot_be_is_refused(count):
    with pytest.raises(ValueError, match=f"even and at least 4, got {count}"):
        many_candidates(count)


def test_a_layer_without_its_operation_is_its_shortcut():
    x = image()
    assert torch.equal(Layer(Zero(), shortcut=True)(x), x)


def test_small_images_keep_their_resolution_longer():
    network = MobileNetwork(width=0.25, classes=10, stem_stride=1, stages=SMALL_IMAGES)
    space = SearchSpace(network)
    plain = everywhere(space, "mb3_3x3")
    features = plain.layers(plain.stem(torch.randn(2, 3, 32, 32)))
    assert features.shape[2:] == (4, 4)
    assert plain(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_channels_are_multiples_of_eight_and_the_last_layer_never_shrinks():
    narrow, wide = on_meta(width=0.35).model, on_meta(width=1.4).model
    assert (narrow.stem[0].out_channels, wide.stem[0].out_channels) == (16, 48)
    assert (narrow.classifier.in_features, wide.classifier.in_features) == (1280, 1792)


def test_kernel_and_expansion_are_in_the_name():
    names = list(mobile_candidates(8, 8, 1, kernels=(3, 9), expansions=(1, 2.5)))
    assert names == ["mb1_3x3", "mb1_9x9", "mb2.5_3x3", "mb2.5_9x9", "zero"]
