import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from advnas import Architecture
from advnas.tables.nasbench_macro import (
    COLUMNS,
    LAYERS,
    Table,
    all_networks,
    find,
    from_string,
    load,
    query,
    to_string,
)

HEADER = "arch,test_1,test_2,test_3,params,flops"

# The names of networks


def test_a_digit_names_the_operation_of_every_layer():
    assert isinstance(from_string("01200000"), Architecture)
    assert from_string("01200000") == {
        **dict.fromkeys(LAYERS, "identity"),
        "layer 1": "bottleneck_3x3_e3",
        "layer 2": "bottleneck_5x5_e6",
    }


def test_digits_and_architectures_are_the_same_for_every_network():
    assert [to_string(from_string(network)) for network in all_networks()] == list(all_networks())


def test_there_are_three_operations_in_eight_layers():
    assert len(set(all_networks())) == 3**8 == 6_561
    assert (all_networks()[0], all_networks()[1], all_networks()[-1]) == ("00000000", "00000001", "22222222")


def test_the_order_of_the_decisions_makes_no_difference():
    assert to_string({layer: from_string("01201201")[layer] for layer in reversed(LAYERS)}) == "01201201"


@pytest.mark.parametrize(
    ("text", "explanation"),
    [
        ("0120", "it has 4 digits and must have 8"),
        ("012012012", "it has 9 digits"),
        ("", "it has 0 digits"),
        ("01231201", "layer 3 has '3', where 0, 1 or 2 belongs"),
        ("0120120 ", "layer 7 has ' ', where 0, 1 or 2 belongs"),
    ],
)
def test_an_error_points_at_the_wrong_digit(text, explanation):
    with pytest.raises(ValueError, match=explanation) as error:
        from_string(text)
    assert str(error.value).startswith(f"{text!r} is not a NAS-Bench-Macro network")
    assert str(error.value).endswith("A right one: '22212220'.")


@pytest.mark.parametrize(
    ("change", "explanation"),
    [
        ({"layer 2": "bottleneck_3x3"}, "layer 2 has the unknown operation 'bottleneck_3x3' .did you mean"),
        ({"layer 2": None}, "layer 2 has the unknown operation None"),
        ({"layer 8": "identity"}, "there is no 'layer 8', only layer 0, "),
    ],
)
def test_a_wrong_architecture_has_no_digits(change, explanation):
    with pytest.raises(ValueError, match=rf"{explanation}.*A right one: {{'layer 0'"):
        to_string({**from_string("01201201"), **change})


def test_a_layer_left_out_is_named():
    with pytest.raises(ValueError, match="layer 3 has no operation"):
        to_string({layer: "identity" for layer in LAYERS if layer != "layer 3"})


# The table


@pytest.fixture(scope="module")
def table():
    """Accuracies that rise with a network's place among all, by groups of three that tie."""
    place = np.arange(len(all_networks()))
    accuracy = 1 + np.floor(place / 3) / 100
    return Table(all_networks(), np.stack([accuracy - 1, accuracy, accuracy + 1, place, 10 * place], axis=1))


def test_an_entry_is_all_there_is_about_a_network(table):
    entry = table.entry(all_networks()[301])
    assert entry.network == all_networks()[301]
    assert (entry.accuracy, entry.trainings) == (2.0, (1.0, 2.0, 3.0))
    assert (entry.params, entry.flops) == (0.000301, 0.00301)


def test_a_network_is_asked_for_by_its_digits_or_its_architecture(table):
    network = from_string("01201201")
    assert table.entry(network) == table.entry(dict(network)) == table.entry("01201201")


def test_networks_that_tie_share_the_best_of_their_ranks(table):
    assert [table.rank(network) for network in all_networks()[-4:]] == [4, 1, 1, 1]


def test_equal_trainings_in_another_order_tie():
    values = np.tile([90.1, 90.2, 90.4, 1.0, 1.0], (len(all_networks()), 1))
    values[0, :3] = 90.4, 90.1, 90.2
    assert Table(all_networks(), values).rank("00000001") == Table(all_networks(), values).rank("00000000") == 1


def test_the_percentile_counts_the_networks_that_are_strictly_worse(table):
    assert table.percentile(all_networks()[2]) == 0
    assert table.percentile(all_networks()[3]) == 100 * 3 / 6_561


def test_the_first_of_the_best_networks_is_the_best_and_has_no_regret(table):
    assert table.best().network == all_networks()[-3]
    assert table.regret(all_networks()[-1]) == 0
    assert table.regret(all_networks()[-4]) == pytest.approx(0.01)


@pytest.mark.parametrize("no_network", [17, None, ["identity"]])
def test_what_is_no_network_at_all_is_told_what_one_is(table, no_network):
    with pytest.raises(TypeError, match=r"string or an architecture, got .* Write for example '22212220'"):
        table.entry(no_network)


def test_a_table_cannot_be_changed(table):
    with pytest.raises(ValueError, match="read-only"):
        table.values[0, 0] = 100.0


def test_a_table_introduces_itself(table):
    assert repr(table) == "<NAS-Bench-Macro table of 6,561 networks>"
    assert len(table) == 6_561


def test_a_query_is_ready_for_json(table):
    answer = query(table, from_string(all_networks()[301]))
    assert json.loads(json.dumps(answer)) == answer
    assert (answer["cell"], answer["params"], answer["flops"]) == (all_networks()[301], 0.000301, 0.00301)
    assert answer["datasets"] == {
        "cifar10": {
            "test": 2.0,
            "rank_test": 6_561 - 303 + 1,
            "percentile_test": 100 * 300 / 6_561,
            "trainings": [1.0, 2.0, 3.0],
        }
    }


def test_a_query_for_another_dataset_is_told_which_there_is(table):
    assert query(table, "00000000", "cifar10") == query(table, "00000000")
    with pytest.raises(ValueError, match="no dataset 'cifar100', only cifar10"):
        query(table, "00000000", "cifar100")


# Its file


def lines_of(table):
    return [HEADER] + [
        ",".join([network, *(f"{number:.2f}" for number in row)])
        for network, row in zip(table.networks, table.values.tolist(), strict=True)
    ]


@pytest.mark.parametrize("name", ["nasbench_macro.csv", "nasbench_macro.csv.gz"])
def test_the_file_is_found_and_loaded(table, tmp_path, name):
    content = "\n".join(lines_of(table)).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    loaded = load(find(tmp_path))
    assert loaded.networks == table.networks
    assert np.allclose(loaded.values, table.values)


def test_a_folder_without_a_table_is_told_what_one_is(tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"no nasbench_macro.csv.gz .* in .*{HEADER}"):
        find(tmp_path)


@pytest.mark.parametrize(
    ("spoil", "explanation"),
    [
        (
            lambda lines: ["arch,accuracy", *lines[1:]],
            "begins with 'arch,accuracy'; a NAS-Bench-Macro table",
        ),
        (lambda lines: [], "begins with ''"),
        (lambda lines: lines[:-1], "1 of the 6,561 networks are missing, the first is 22222222"),
        (lambda lines: [*lines, lines[1]], "the network 00000000 occurs 2 times"),
        (lambda lines: [*lines[:5], lines[5][:-20], *lines[6:]], "line 6 does not have 6 fields"),
        (
            lambda lines: [*lines[:5], lines[5].replace(",4", ",four"), *lines[6:]],
            "line 6 has 'four.*' where a",
        ),
        (lambda lines: [*lines[:5], "00000011,1,2,nan,4,5", *lines[6:]], "00000011 has nan for test_3, where"),
        (lambda lines: [*lines[:5], "00000031,1,2,3,4,5", *lines[6:]], "layer 6 has '3', where 0, 1 or 2"),
    ],
    ids=["header", "empty", "missing", "twice", "cut", "word", "nan", "digit"],
)
def test_a_bad_table_is_told_where_and_what(table, tmp_path, spoil, explanation):
    path = tmp_path / "table.csv"
    path.write_text("\n".join(spoil(lines_of(table))))
    with pytest.raises(ValueError, match=explanation) as error:
        load(path)
    assert str(error.value).startswith(str(path))
    assert str(error.value).count(str(path)) == 1


def test_a_table_needs_all_columns():
    with pytest.raises(ValueError, match=rf"shape \(6561, 2\) .* make \(6561, {len(COLUMNS)}\)"):
        Table(all_networks(), np.zeros((6_561, 2)))


# What is known of the published table


@pytest.fixture(scope="module")
def published():
    folder = os.environ.get("ADVNAS_DATA") or Path(__file__).parents[3] / "shared" / "data"
    try:
        return load(find(Path(folder)))
    except FileNotFoundError as error:
        pytest.skip(str(error))


def test_the_published_best_network_and_the_mean_of_all(published):
    assert (published.rank("22212220"), published.regret("22212220")) == (1, 0)
    assert round(published.accuracy("22212220"), 2) == 93.13
    assert round(float(np.mean([published.accuracy(network) for network in all_networks()])), 2) == 90.25


def test_published_networks_that_compute_the_same_have_the_same_accuracy(published):
    """An identity may stand before or behind another layer of its stage, unless that changes the shape."""
    assert published.accuracy("00000001") == published.accuracy("00000010")
    assert published.accuracy("00000100") != published.accuracy("00000010")
