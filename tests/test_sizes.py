import pytest

from advnas.arguments import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("2GB", 2 * 10**9),
        ("512 MB", 512 * 10**6),
        ("1.5gib", 3 * 2**29),
        ("4KiB", 4096),
        ("1T", 10**12),
        ("800", 800),
        ("100B", 100),
        (7, 7),
    ],
)
def test_sizes_as_people_write_them(text, count):
    assert parse_size(text) == count


@pytest.mark.parametrize("bad", ["", "GB", "-2GB", "2 gigabytes", "0", 0, -5, 1.5, True, None, "2GBit", "1e9"])
def test_what_is_no_size_is_refused_with_an_example(bad):
    with pytest.raises(ValueError, match=r"Write for example '2GB'"):
        parse_size(bad)


@pytest.mark.parametrize(("count", "text"), [(12, "12 bytes"), (1500, "1.5 KB"), (2 * 10**9, "2 GB")])
def test_sizes_for_people(count, text):
    assert format_size(count) == text
