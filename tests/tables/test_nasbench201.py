import gzip
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from advnas import Architecture
from advnas.tables.nasbench201 import EDGES, OPERATIONS, Table, all_cells, find, from_string, load, query, to_string

CELL = "|nor_conv_3x3~0|+|none~0|skip_connect~1|+|avg_pool_3x3~0|none~1|nor_conv_1x1~2|"
ACCURACIES = "cifar10_test,cifar10_valid,cifar100_test,cifar100_valid,imagenet16_test,imagenet16_valid"


def uniform(operation):
    """The cell with the same operation everywhere."""
    return to_string(dict.fromkeys(EDGES, operation))


# The names of cells


def test_a_string_names_the_operation_of_every_edge():
    assert isinstance(from_string(CELL), Architecture)
    assert from_string(CELL) == {
        "0->1": "nor_conv_3x3",
        "0->2": "none",
        "1->2": "skip_connect",
        "0->3": "avg_pool_3x3",
        "1->3": "none",
        "2->3": "nor_conv_1x1",
    }


def test_strings_and_architectures_are_the_same_for_every_cell():
    assert [to_string(from_string(cell)) for cell in all_cells()] == list(all_cells())


def test_there_are_five_operations_on_six_edges():
    assert len(set(all_cells())) == 5**6 == 15_625
    assert all_cells()[0] == uniform("none")
    assert all_cells()[1] == "|none~0|+|none~0|none~1|+|none~0|none~1|skip_connect~2|"


def test_the_order_of_the_decisions_makes_no_difference():
    assert to_string({edge: from_string(CELL)[edge] for edge in reversed(EDGES)}) == CELL


@pytest.mark.parametrize(
    ("right", "wrong", "explanation"),
    [
        ("none~1", "zero~1", "edge 1->3 has the unknown operation 'zero'.*operations are none, skip_connect"),
        ("skip_connect", "skip", "edge 1->2 has the unknown operation 'skip' .did you mean 'skip_connect'"),
        ("conv_1x1", "conv_5x5", "edge 2->3 has the unknown operation 'nor_conv_5x5' .did you mean 'nor_conv_"),
        ("connect~1", "connect~2", "edge 1->2, 'skip_connect~2', names the source '2'; write 'skip_connect~1'"),
        ("connect~1", "connect", "edge 1->2, 'skip_connect', does not say its source; write 'skip_connect~1'"),
        ("none~1|", "", "node 3, .*, lacks the edge 2->3"),
        ("~1|nor", "~1nor", "node 3, .*, lacks the edge 2->3"),
        ("|none~1|", "|none~1|none~1|", "node 3, .*, has 'nor_conv_1x1~2' after its last edge 2->3"),
        ("3x3~0|+", "3x3~0+", r"node 1, '\|nor_conv_3x3~0', must begin and end with a bar"),
        ("1x1~2|", "1x1~2", "node 3, .* must begin and end with a bar"),
        ("|nor_conv_3x3~0|+", "", "node 1, .* has 'skip_connect~1' after its last edge 0->1"),
        ("+|avg_pool_3x3~0|none~1|nor_conv_1x1~2|", "", "node 3 is missing"),
        ("1x1~2|", "1x1~2|+|none~0|", r"'\|none~0\|' is one node too many, node 3 is the last"),
        (CELL, "", "node 1, '', must begin and end with a bar"),
    ],
)
def test_an_error_points_at_the_wrong_part_of_a_string(right, wrong, explanation):
    text = CELL.replace(right, wrong)
    with pytest.raises(ValueError, match=explanation) as error:
        from_string(text)
    assert str(error.value).startswith(f"{text!r} is not a NAS-Bench-201 cell")
    assert str(error.value).endswith(f"A right one: {CELL!r}.")


@pytest.mark.parametrize(
    ("change", "explanation"),
    [
        ({"2->3": "conv"}, "edge 2->3 has the unknown operation 'conv'"),
        ({"2->3": None}, "edge 2->3 has the unknown operation None"),
        ({"3->4": "none"}, "no edge '3->4', only 0->1, 0->2, 1->2, 0->3, 1->3, 2->3"),
    ],
)
def test_a_wrong_architecture_has_no_string(change, explanation):
    with pytest.raises(ValueError, match=rf"{explanation}.*A right one: {{'0->1'"):
        to_string({**from_string(CELL), **change})


def test_an_edge_left_out_is_named():
    with pytest.raises(ValueError, match="the edge 1->3 has no operation"):
        to_string({edge: "none" for edge in EDGES if edge != "1->3"})


# The table


@pytest.fixture(scope="module")
def table():
    """Accuracies that rise with a cell's place among all cells, by groups of five that tie."""
    place = np.arange(len(all_cells()))
    accuracy = np.floor(place / 5) / 100
    columns = [accuracy, 100 - accuracy, *[accuracy / 2] * 4, place / 1e6, place / 1e5]
    return Table(all_cells(), np.stack(columns, axis=1))


def test_an_entry_is_all_there_is_about_a_cell(table):
    entry = table.entry(all_cells()[507])
    assert entry.cell == all_cells()[507]
    assert entry.accuracy == {
        "cifar10": {"test": 1.01, "valid": 98.99},
        "cifar100": {"test": 0.505, "valid": 0.505},
        "imagenet16": {"test": 0.505, "valid": 0.505},
    }
    assert (entry.params, entry.flops) == (0.000507, 0.00507)


def test_a_cell_is_asked_for_by_its_string_or_its_architecture(table):
    assert table.entry(from_string(CELL)) == table.entry(dict(from_string(CELL))) == table.entry(CELL)


def test_accuracy_is_that_on_the_test_images_of_cifar10_unless_told_otherwise(table):
    cell = all_cells()[507]
    assert table.accuracy(cell) == 1.01
    assert table.accuracy(cell, split="valid") == 98.99
    assert table.accuracy(cell, dataset="imagenet16") == 0.505


def test_cells_that_tie_share_the_best_of_their_ranks(table):
    assert [table.rank(cell) for cell in all_cells()[-6:]] == [6, 1, 1, 1, 1, 1]
    assert [table.rank(cell, split="valid") for cell in all_cells()[:6]] == [1, 1, 1, 1, 1, 6]
    assert table.rank(all_cells()[0]) == 15_621


def test_the_percentile_counts_the_cells_that_are_strictly_worse(table):
    assert table.percentile(all_cells()[4]) == 0
    assert table.percentile(all_cells()[5]) == 100 * 5 / 15_625
    assert table.percentile(all_cells()[-1]) == 100 * 15_620 / 15_625


def test_the_first_of_the_best_cells_is_the_best_and_has_no_regret(table):
    assert table.best().cell == all_cells()[-5]
    assert table.best("cifar10", "valid").cell == all_cells()[0]
    assert table.regret(all_cells()[-1]) == 0
    assert table.regret(all_cells()[-6]) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("arguments", "explanation"),
    [
        (("cifar_10",), "no dataset 'cifar_10' .did you mean 'cifar10'.*one of cifar10, cifar100, imagenet16"),
        (("ImageNet16-120",), "no dataset 'ImageNet16-120' .did you mean 'imagenet16'"),
        (("cifar10", "validation"), "no split 'validation' .did you mean 'valid'.*one of test, valid"),
        (("cifar10", "train"), "no split 'train'.*one of test, valid"),
    ],
)
def test_unknown_names_are_answered_with_the_known_ones(table, arguments, explanation):
    for ask in (table.accuracy, table.rank, table.percentile, table.regret):
        with pytest.raises(ValueError, match=explanation):
            ask(CELL, *arguments)
    with pytest.raises(ValueError, match=explanation):
        table.best(*arguments)


@pytest.mark.parametrize("no_cell", [17, None, ["none"]])
def test_what_is_no_cell_at_all_is_told_what_one_is(table, no_cell):
    with pytest.raises(TypeError, match=r"string or an architecture, got .* Write for example"):
        table.entry(no_cell)


def test_a_misspelt_cell_is_told_where(table):
    with pytest.raises(ValueError, match="edge 1->2 has the unknown operation 'skip'"):
        table.rank(CELL.replace("skip_connect", "skip"))


def test_a_table_cannot_be_changed(table):
    with pytest.raises(ValueError, match="read-only"):
        table.values[0, 0] = 100.0


def test_a_table_needs_all_columns():
    with pytest.raises(ValueError, match=r"shape \(15625, 2\) .* make \(15625, 8\)"):
        Table(all_cells(), np.zeros((15_625, 2)))


def test_a_table_introduces_itself(table):
    assert repr(table) == "<NAS-Bench-201 table of 15,625 cells>"
    assert len(table) == 15_625


def test_a_query_is_ready_for_json(table):
    answer = query(table, from_string(all_cells()[507]))
    assert json.loads(json.dumps(answer)) == answer
    assert list(answer) == ["cell", "params", "flops", "datasets"]
    assert (answer["cell"], answer["params"], answer["flops"]) == (all_cells()[507], 0.000507, 0.00507)
    assert answer["datasets"]["cifar10"] == {
        "test": 1.01,
        "valid": 98.99,
        "rank_test": 15_625 - 510 + 1,
        "rank_valid": 506,
        "percentile_test": 100 * 505 / 15_625,
        "percentile_valid": 100 * (15_625 - 510) / 15_625,
    }


def test_a_query_can_be_restricted_to_one_dataset(table):
    assert list(query(table, CELL)["datasets"]) == ["cifar10", "cifar100", "imagenet16"]
    assert list(query(table, CELL, dataset="cifar100")["datasets"]) == ["cifar100"]
    with pytest.raises(ValueError, match="did you mean 'cifar10'"):
        query(table, CELL, dataset="cifar")


# Its file


@pytest.fixture(scope="module")
def gzipped(table, tmp_path_factory):
    """The bytes of the table's file."""
    path = tmp_path_factory.mktemp("whole") / "table.csv.gz"
    table.save(path)
    return path.read_bytes()


@pytest.mark.parametrize("name", ["nasbench201.csv", "nasbench201.csv.gz"])
def test_what_is_saved_is_found_and_loaded(table, tmp_path, name):
    folder = tmp_path / "new"
    table.save(folder / name)
    assert [path.name for path in folder.iterdir()] == [name]
    assert find(folder) == folder / name
    assert load(find(folder)) == table


def test_the_same_table_is_always_the_same_bytes(table, gzipped, tmp_path):
    table.save(tmp_path / "table.csv.gz")
    assert (tmp_path / "table.csv.gz").read_bytes() == gzipped
    assert gzipped[4:8] == bytes(4)  # where gzip would keep the time of day


def test_the_file_has_fixed_digits_and_more_only_where_they_are_needed(table, tmp_path):
    values = table.values.copy()
    values[0, 0] = 1 / 3
    exact = Table(table.cells, values)
    exact.save(tmp_path / "table.csv")
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert lines[0] == f"arch,{ACCURACIES},params,flops"
    assert lines[1].startswith(f"{uniform('none')},0.3333333333333333,100.0000,0.0000,")
    assert lines[508] == f"{all_cells()[507]},1.0100,98.9900,0.5050,0.5050,0.5050,0.5050,0.000507,0.00507"
    assert load(tmp_path / "table.csv") == exact != table


def test_the_order_of_the_rows_is_kept(table, tmp_path):
    backwards = Table(table.cells[::-1], table.values[::-1].copy())
    backwards.save(tmp_path / "table.csv")
    assert load(tmp_path / "table.csv") == backwards != table
    assert backwards.entry(CELL) == table.entry(CELL)


def test_a_failed_save_leaves_the_old_file_alone(table, tmp_path, monkeypatch):
    path = tmp_path / "table.csv"
    path.write_text("old")

    def disk_full(_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="disk full"):
        table.save(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_without_the_table_is_told_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no nasbench201.csv.gz or nasbench201.csv in .*import_nats"):
        find(tmp_path)


def test_looking_a_cell_up_does_not_wait_for_torch(gzipped, tmp_path):
    path = tmp_path / "table.csv.gz"
    path.write_bytes(gzipped)
    check = (
        "import sys; from pathlib import Path; from advnas.tables.nasbench201 import load, query; "
        "query(load(Path(sys.argv[1])), sys.argv[2]); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", check, path, CELL], check=False).returncode == 0


def replaced(old, new):
    return lambda lines: [line.replace(old, new) for line in lines]


@pytest.mark.parametrize(
    ("spoil", "explanation"),
    [
        (lambda lines: lines[1:], r"begins with '\|none~0\|.*; a NAS-Bench-201 table begins with 'arch,cifar10"),
        (lambda lines: [], "begins with ''; a NAS-Bench-201 table begins with"),
        (lambda lines: lines[:1], r"15,625 of the 15,625 cells are missing, the first is \|none~0\|"),
        (lambda lines: lines[:3] + lines[5:], r"2 of .* are missing, the first is .*none~1\|nor_conv_1x1~2\|\."),
        (lambda lines: [*lines, lines[7]], r"the cell .*\|skip_connect~1\|skip_connect~2\| occurs 2 times"),
        (lambda lines: [*lines[:-1], lines[-1][:40]], "line 15626 does not have 9 fields"),
        (lambda lines: [*lines[:9], "", *lines[9:]], "line 10 does not have 9 fields: ''"),
        (replaced(",0.5050", ",half"), "line 507 has 'half' where a number belongs"),
        (
            replaced(",0.5050", ",nan"),
            "the cell .* has nan for cifar100_test, where a number from 0 to 100",
        ),
        (replaced("none~0", "zero~0"), "edge 0->1 has the unknown operation 'zero'"),
    ],
    ids=["header", "empty", "only header", "missing", "twice", "cut", "blank", "word", "nan", "operation"],
)
def test_a_bad_table_is_told_where_and_what(gzipped, tmp_path, spoil, explanation):
    path = tmp_path / "table.csv"
    path.write_text("\n".join(spoil(gzip.decompress(gzipped).decode().splitlines())))
    with pytest.raises(ValueError, match=explanation) as error:
        load(path)
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize(
    "spoil",
    [lambda content: content[:-20], lambda content: content[:10] + b"\xff" * 90, gzip.decompress],
    ids=["truncated", "overwritten", "not gzipped"],
)
def test_a_damaged_gzip_file_is_named(gzipped, tmp_path, spoil):
    path = tmp_path / "table.csv.gz"
    path.write_bytes(spoil(gzipped))
    with pytest.raises(ValueError, match=r"table\.csv\.gz is not a whole table .* Get it again"):
        load(path)


def test_a_gzip_file_under_the_wrong_name_is_named(gzipped, tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(gzipped)
    with pytest.raises(ValueError, match=r"table\.csv is not text .* name that ends in \.gz"):
        load(path)


# What is known of the published table


@pytest.fixture(scope="module")
def published_path():
    folder = os.environ.get("ADVNAS_DATA") or Path(__file__).parents[3] / "shared" / "data"
    try:
        return find(Path(folder))
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def published(published_path):
    return load(published_path)


def test_the_published_cell_of_six_3x3_convolutions(published):
    answer = query(published, uniform("nor_conv_3x3"), dataset="cifar10")
    assert answer["datasets"]["cifar10"]["test"] == 93.76
    assert answer["params"] == 1.531546


def test_the_published_best_cell_the_empty_one_and_the_one_of_skips(published):
    best = published.best()
    assert round(best.accuracy["cifar10"]["test"], 2) == 94.37
    assert (published.rank(best.cell), published.regret(best.cell)) == (1, 0)
    assert published.accuracy(uniform("none")) == 10.0
    assert round(published.accuracy(uniform("skip_connect")), 2) == 54.30
    assert round(published.accuracy(uniform("skip_connect"), split="valid"), 2) == 39.77


def test_the_published_costs_follow_from_the_number_of_convolutions(published):
    of_3x3, of_1x1 = (np.array([cell.count(name) for cell in published.cells]) for name in ("v_3x3", "v_1x1"))
    params, flops = published.values[:, -2:].T
    assert np.allclose(params, 0.073306 + 0.24304 * of_3x3 + 0.028 * of_1x1, rtol=0, atol=1e-9)
    assert np.allclose(flops, 7.78305 + 35.38944 * of_3x3 + 3.93216 * of_1x1, rtol=0, atol=1e-9)


def test_saving_the_published_table_gives_the_same_text(published, published_path, tmp_path):
    published.save(tmp_path / "again.csv")
    content = published_path.read_bytes()
    text = gzip.decompress(content) if published_path.suffix == ".gz" else content
    assert (tmp_path / "again.csv").read_bytes() == text


def test_published_cells_that_compute_the_same_are_rows_of_their_own(published):
    """With nothing leaving node 1, what enters it makes no difference, except for the luck of the seeds."""
    twins = [
        to_string({**dict.fromkeys(EDGES, "none"), "0->1": operation, "0->3": "nor_conv_3x3"})
        for operation in OPERATIONS
    ]
    accuracies = [published.accuracy(cell) for cell in twins]
    assert len(set(accuracies)) > 1
    assert all(abs(one - other) < 2 for one, other in itertools.combinations(accuracies, 2))
