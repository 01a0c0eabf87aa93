"""Designs by hand are written out for every decision, within the limits of the search."""

import pytest
from torch import nn

import advnas
from hand_designs import architecture_of, designs_of


def search(limit=None):
    """Four layers: a mixer of 20, 30 or 0 parameters, then a feed-forward part of 9 per unit and 4 more."""

    def layer(number):
        mixers = {"a": nn.Linear(4, 4), "b": nn.Linear(4, 6), "none": advnas.Zero()}
        body = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
        return (
            advnas.Choice(mixers, name=f"mixer {number}"),
            advnas.Width(body, (2, 4, 8), name=f"ffn {number}"),
        )

    model = nn.Sequential(*(module for number in range(4) for module in layer(number)))
    return advnas.Search(model, limit=None if limit is None else {"parameters": limit})


@pytest.mark.parametrize(("limit", "width"), [(None, "8"), (384, "8"), (383, "4"), (200, "2")])
def test_a_design_is_as_wide_as_the_limit_allows(limit, width):
    found = architecture_of({"mixer": ("a",)}, search(limit))
    assert {found[f"mixer {number}"] for number in range(4)} == {"a"}
    assert {found[f"ffn {number}"] for number in range(4)} == {width}


def test_operations_come_in_turn():
    found = architecture_of({"mixer": ("a", "none"), "ffn": ("2",)}, search())
    assert [found[f"mixer {number}"] for number in range(4)] == ["a", "none", "a", "none"]
    assert {found[f"ffn {number}"] for number in range(4)} == {"2"}


def test_a_design_outside_of_the_limits_is_refused():
    with pytest.raises(ValueError, match="outside of the limits"):
        architecture_of({"mixer": ("b",)}, search(150))


def test_every_job_names_operations_that_there_are():
    from advnas.studies.own_network import OwnNetworkSettings, OwnNetworkStudy

    study = OwnNetworkStudy(
        OwnNetworkSettings("advnas.studies.built_in:make_search", {"task": "python_source", "steps": 2})
    )
    made = study.begin("random", 0)[0]
    for design in designs_of(study).values():
        architecture = architecture_of(design, made)
        assert len(architecture) == len(made.space)
        made.derive(architecture)


def test_a_job_without_designs_is_named():
    from advnas.studies.own_network import OwnNetworkSettings, OwnNetworkStudy

    with pytest.raises(ValueError, match="no designs by hand for my_module:make"):
        designs_of(OwnNetworkStudy(OwnNetworkSettings("my_module:make")))
