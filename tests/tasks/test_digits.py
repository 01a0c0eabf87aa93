import torch

from advnas.tasks.digits import build, read


def test_there_are_1797_digits_of_ten_kinds():
    digits = read()
    assert digits.images.shape == (1797, 1, 8, 8)
    assert digits.labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (digits.images.min(), digits.images.max()) == (0, 1)


def test_the_order_is_mixed_and_always_the_same():
    first, second = read(), read()
    assert torch.equal(first.labels, second.labels)
    assert first.labels[:10].tolist() != list(range(10))  # as in the file


def test_no_digit_is_used_for_two_purposes():
    task, known = build(), read()
    parts = [task.training.images, task.validation.images, task.test[0][0]]
    assert [len(part) for part in parts] == [700, 500, 597]
    assert torch.equal(torch.cat(parts), known.images)
