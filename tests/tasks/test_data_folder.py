from pathlib import Path

from advnas.tasks.data_folder import data_folder


def test_the_data_folder_is_the_given_one_else_that_of_the_environment_else_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("ADVNAS_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert data_folder() == Path("/home/somebody/.cache/advnas")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert data_folder() == Path("/cache/advnas")
    monkeypatch.setenv("ADVNAS_DATA", "~/data")
    assert data_folder(None) == Path("/home/somebody/data")
    assert data_folder(tmp_path) == tmp_path
