import json

import pytest

from advnas.records.journal import Journal, read_journal


def test_every_line_of_a_journal_is_readable_as_soon_as_it_is_written(tmp_path):
    journal = Journal(tmp_path / "runs" / "metrics.jsonl")
    for number in range(3):
        journal.append({"number": number})
        assert [line["number"] for line in read_journal(journal.path)] == list(range(number + 1))
    journal.close()


@pytest.mark.parametrize("torn", ['{"num', "\x00", "{"])
def test_a_torn_last_line_is_left_out_and_cut_off_before_the_next_is_written(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"number": 1}\n' + torn)
    assert list(read_journal(path)) == [{"number": 1}]
    journal = Journal(path)
    journal.append({"number": 2})
    journal.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"number": 1}, {"number": 2}]


def test_a_journal_that_holds_nothing_but_a_torn_line_starts_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"num')
    Journal(path).close()
    assert path.read_text() == ""


def test_a_whole_journal_is_continued_untouched(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"number": 1}\n')
    Journal(path).close()
    assert path.read_text() == '{"number": 1}\n'


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"number": 1}\nrubbish\n{"number": 3}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2 is not JSON: 'rubbish'"):
        list(read_journal(path))


@pytest.mark.parametrize(("keep", "left"), [(None, [0, 1, 2]), (0, []), (2, [0, 1]), (9, [0, 1, 2])])
def test_a_run_that_resumes_from_before_its_last_lines_keeps_those_before(tmp_path, keep, left):
    path = tmp_path / "records.jsonl"
    path.write_text("".join(f'{{"number":{number}}}\n' for number in range(3)) + '{"numb')
    journal = Journal(path, keep=keep)
    assert journal.lines == len(left)
    journal.append({"number": 7})
    assert journal.lines == len(left) + 1
    journal.sync()
    journal.close()
    assert [line["number"] for line in read_journal(path)] == [*left, 7]


def test_a_new_journal_has_no_lines(tmp_path):
    journal = Journal(tmp_path / "metrics.jsonl", keep=3)
    assert journal.lines == 0
    journal.close()
