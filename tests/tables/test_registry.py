import pytest

from advnas import tables


@pytest.mark.parametrize("name", tables.TABLES)
def test_every_table_can_be_found_loaded_and_asked(name, tmp_path):
    benchmark = tables.get(name)
    assert benchmark.__name__ == f"advnas.tables.{name}"
    assert callable(benchmark.load)
    assert callable(benchmark.query)
    with pytest.raises(FileNotFoundError, match=rf"no {name}\.csv\.gz or {name}\.csv in"):
        benchmark.find(tmp_path)


def test_a_misspelt_table_is_told_what_was_meant():
    with pytest.raises(
        ValueError, match=r"no table 'nasbench202' \(did you mean 'nasbench201'\?\)\. Choose one of"
    ):
        tables.get("nasbench202")
