import pytest

from advnas import tasks
from advnas.spaces import SPACES
from advnas.tasks import TASKS


def test_a_task_is_in_the_file_of_its_name_and_has_a_space():
    for name, task in TASKS.items():
        assert task.path == f"advnas.tasks.{name}:build"
        assert set(task.network) <= set(SPACES[task.space].options())


def test_a_task_is_built_by_its_name():
    task = tasks.get("digits", batch=50)
    assert (len(task.training), task.examples) == (14, 50)


def test_a_misspelt_task_is_told_what_was_meant():
    with pytest.raises(ValueError, match=r"no task 'digit' \(did you mean 'digits'\?\)"):
        tasks.get("digit")
    with pytest.raises(
        ValueError, match=r"'digits' has no option 'bach' \(did you mean 'batch'\?\); it takes batch"
    ):
        tasks.get("digits", bach=3)
