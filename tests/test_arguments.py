from advnas.arguments import did_you_mean, nearest


def test_the_nearest_name_is_the_one_that_was_meant():
    assert nearest("adventage", ["random", "advantage"]) == "advantage"
    assert nearest(3, ["32", "random"]) == "32"
    assert nearest("CIFAR10", ["cifar10-valid", "ImageNet16-120"]) == "cifar10-valid"
    assert nearest("imagenet", ["cifar10-valid", "ImageNet16-120"]) == "ImageNet16-120"


def test_nothing_is_near_a_word_that_is_like_no_other():
    assert nearest("zzz", ["random", "advantage"]) is None
    assert nearest("advantage", []) is None


def test_a_question_follows_only_words_that_are_like_a_name():
    assert did_you_mean("adventage", ["random", "advantage"]) == " (did you mean 'advantage'?)"
    assert did_you_mean("zzz", ["random", "advantage"]) == ""
