"""Which folder `advnas search` writes, and which it goes on with."""

import os
import shutil
from pathlib import Path

import pytest

QUICK = ["--epochs", 2, "--warmup", 0, "--jobs", 1, "--seeds", 1]


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    return tmp_path


def started(here, strategy, age):
    """A finished search below runs/, begun some time ago."""
    assert here("search", "my_searches:make_search", "--strategy", strategy, *QUICK)[0] == 0
    folder = Path(f"runs/make_search-{strategy}")
    os.utime(folder / "search.toml", (age, age))
    return folder


def stop(folder):
    shutil.rmtree(folder / "runs" / "random-0")


def test_resume_without_a_folder_goes_on_with_the_newest_search_that_was_stopped(at_home, here):
    oldest, middle, newest = (started(here, name, age) for age, name in enumerate(("advantage", "gdas", "snas"), 1))
    code, output, error = here("search", "--resume")
    assert code == 0
    assert f"Going on with {newest}" in error  # all are over: the newest is shown again
    stop(oldest)
    stop(middle)
    code, output, error = here("search", "--resume")
    assert code == 0
    assert f"Going on with {middle}" in error
    assert f"advnas export {middle}" in output
    assert (middle / "runs/random-0/result.json").exists()
    assert not (oldest / "runs/random-0").exists()
    code, _, error = here("search", "--resume", "--strategy", "advantage")
    assert code == 0
    assert f"Going on with {oldest}" in error


@pytest.mark.parametrize("more", [[], ["--task", "digits"], ["my_searches:make_search"]])
def test_resume_where_nothing_was_begun_is_told(at_home, here, more):
    code, _, error = here("search", "--resume", *more)
    assert code == 2
    assert error.startswith("advnas: There is no ")
    assert "Leave out --resume to start one, or add --folder F." in error
    assert not Path("runs").exists()


def test_resume_with_a_folder_that_holds_no_search_is_told(at_home, here):
    code, _, error = here("search", "my_searches:make_search", "--resume", "--folder", "nowhere")
    assert code == 2
    assert "There is no search in nowhere" in error
