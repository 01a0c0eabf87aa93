import re

from advnas.reports.glossary import terms_in


def test_only_terms_that_can_be_read_are_explained():
    page = """<style>entropy</style><p title="argmax">Steps of Theta over <b>two</b> process
    best cells</p><svg><title>warm-up</title></svg>"""
    assert list(terms_in(page)) == ["process best", "theta"]


def test_plurals_count_and_parts_of_words_do_not():
    assert list(terms_in("<p>Strategies, decisions &amp; forward passes</p>")) == [
        "decision",
        "forward pass",
        "strategy",
    ]
    assert terms_in("<p>misleading random-0 entropyless</p>") == {}


def test_baselines_of_similar_names_are_told_apart():
    assert list(terms_in("<p>ranked_random</p>")) == ["ranked_random"]


def test_a_page_ends_with_its_glossary(report, ptb_report):
    for path, own, other in ((report[0], "regret", "perplexity"), (ptb_report[0], "perplexity", "regret")):
        page = path.read_text()
        words = re.findall(r"<dt>([^<]*)</dt>\n<dd>[^<]{20,}</dd>", page[page.index("<h2>Glossary</h2>") :])
        assert f"<summary>{len(words)} words that this page uses</summary>" in page
        assert {"theta", "entropy", "argmax", "process best", own} <= set(words)
        assert other not in words
        assert words == sorted(words)
