import json
import os
import subprocess
import sys

from advnas.records.provenance import provenance


def test_provenance_tells_the_command_the_machine_and_the_versions(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/advnas", "experiment", "toy", "--folder", "my runs"])
    made = provenance()
    assert list(made) == ["command", "commit", "machine", "versions", "time"]
    assert made["command"] == "advnas experiment toy --folder 'my runs'"
    assert "threads" in made["machine"]
    assert "torch" in made["versions"]
    assert all(made.values())
    assert json.loads(json.dumps(made)) == made


def test_without_git_the_commit_is_unknown():
    check = "from advnas.records.provenance import provenance; print(provenance()['commit'])"
    answer = subprocess.run(
        [sys.executable, "-c", check], env={**os.environ, "PATH": ""}, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "unknown\n"


def test_a_script_of_the_users_is_named(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--fast"])
    assert provenance()["command"] == "python train.py --fast"
