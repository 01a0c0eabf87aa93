from advnas.spelling import nearest


def test_the_nearest_name_is_the_one_that_was_meant():
    assert nearest("adventage", ["random", "advantage"]) == "advantage"
    assert nearest(3, ["32", "random"]) == "32"


def test_nothing_is_near_a_word_that_is_like_no_other():
    assert nearest("zzz", ["random", "advantage"]) is None
    assert nearest("advantage", []) is None
