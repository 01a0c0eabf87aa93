"""`advnas search --limit`: told before anything runs, held by the answer, and shown in the report."""

import json
import sys
from pathlib import Path

import pytest

from advnas.studies.limits import read_limits
from advnas.studies.run import read_results

ENTRY = "my_searches:make_search"
QUICK = ["--epochs", "3", "--seeds", "1", "--jobs", "1"]
LEAST, LARGEST = 8 * 4 + 8 + 2 * 8 + 2, 2 * (64 + 8)  # of the first and last layer; of "mlp" besides


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent), *sys.path])
    return tmp_path


def test_a_limit_below_the_least_is_refused_at_once_with_the_least(here):
    code, _, error = here("search", ENTRY, *QUICK, "--limit", "parameters=10")
    assert code == 2
    assert f"The least parameters of any architecture is {LEAST} parameters, and the limit is 10" in error
    assert not Path("runs").exists()


def test_the_plan_tells_the_least_the_uniform_and_the_largest_cost(here):
    code, output, _ = here("search", ENTRY, *QUICK, "--limit", "parameters=0.1k", "--plan", "--json")
    assert code == 0
    told = json.loads(output)["limits"]["parameters"]
    assert (told["least"], told["largest"]) == (LEAST, LEAST + LARGEST)
    assert told["uniform"] == pytest.approx(LEAST + LARGEST / 2)
    assert told["limit"] == 100
    code, output, _ = here("search", ENTRY, *QUICK, "--limit", "parameters=0.1k", "--plan")
    assert "limit 100: possible" in " ".join(output.replace("│", " ").split())


def test_the_answers_hold_the_limit_and_the_report_shows_it(here, at_home):
    limits = ["--limit", "parameters=100", "--limit", "multiply_adds=1M", "--limit", "latency=1s"]
    code, output, _ = here("search", ENTRY, *QUICK, *limits, "--folder", "f")
    assert code == 0
    assert "limit is 100: all 1 answers are within it" in " ".join(output.split())
    for result in read_results(at_home / "f"):
        spent = {one["name"]: one for one in result["evaluation"]["spent"]}
        assert spent.keys() == {"parameters", "multiply_adds", "latency"}
        assert all(one["amount"] <= one["limit"] for one in spent.values())
        assert result["evaluation"]["parameters"] == spent["parameters"]["amount"] == LEAST
    page = (at_home / "f/report/index.html").read_text()
    assert "<h2>Costs</h2>" in page
    assert "The front of parameters" in page
    assert "Expected parameters over the search" in page
    assert (at_home / "f/report/front-parameters.svg").exists()
    resumed, _, error = here("search", "--resume", "--folder", "f", "--json")
    assert resumed == 0, error
    code, _, error = here("search", "--resume", "--folder", "f", "--limit", "parameters=150")
    assert code == 2
    assert "limits is {'parameters': 150.0} now and was" in error


def test_limits_may_stand_in_a_config_file(here, at_home):
    (at_home / "search.toml").write_text(f'entry = "{ENTRY}"\nlimit = ["parameters=10"]\n')
    code, _, error = here("search", "--config", "search.toml")
    assert code == 2
    assert "The least parameters" in error
    (at_home / "search.toml").write_text(f'entry = "{ENTRY}"\nlimit = "parameters=10"\n')
    code, _, error = here("search", "--config", "search.toml")
    assert code == 2
    assert 'limit must be a list of texts like ["parameters=100k"]' in error


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("flops=3", "no cost 'flops'"),
        ("latncy=5ms", r"\(did you mean 'latency'\?\)"),
        ("latency=5 parsecs", "A limit of latency must be a number"),
        ("parameters", "name=amount"),
        ("parameters=-1", "positive"),
    ],
)
def test_other_limits_are_refused(text, problem):
    with pytest.raises(ValueError, match=problem):
        read_limits([text])
