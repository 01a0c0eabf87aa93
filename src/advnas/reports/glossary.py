"""The words that a page uses and not everybody knows."""

import html
import re

_TERMS = {
    "theta": "What a search learns: a number per operation of every decision. Their softmax is the probabilities.",
    "decision": "A place of the network where one of several operations is chosen; in a cell, an edge.",
    "operation": "One of the candidates of a decision, such as a convolution, a pooling or a skip connection.",
    "zero operation": "An operation whose output is 0, so that nothing flows through the decision.",
    "strategy": "How theta is learnt: what a step runs, and what it makes of the result.",
    "baseline": "A strategy that learns nothing. What learns should beat it.",
    "random": "The baseline that takes as many steps with theta fixed, and answers with its process best.",
    "ranked_random": "The baseline that answers with the best of many uniform architectures by the shared weights, "
    "with as many forward passes as the most expensive strategy.",
    "seed": "A number that fixes all that is random in a run: first weights, order of the data, draws.",
    "argmax": "The architecture with the most probable operation at every decision.",
    "process best": "Of all architectures that a search has drawn, the one with the lowest loss on its minibatch.",
    "ranked": "Chosen from many architectures by their loss with the shared weights.",
    "answer": "The architecture that a search gives in the end: argmax, process best or ranked.",
    "retrained": "Trained alone, from new weights, after the search.",
    "shared weights": "The weights of all operations, which every architecture of a search uses in turn.",
    "warm-up": "The first epochs, in which the weights learn and theta does not move.",
    "entropy": "How undecided a decision is, in nats: log(number of operations) at first, 0 when it is certain.",
    "reward": "Minus the loss on a minibatch of the data that theta learns from.",
    "slope": "The derivative of the reward by the weight with which an operation enters the network.",
    "share": "dr/dw, the slope at the drawn operation: its part in the reward, to first order.",
    "rival": "An operation that could stand where another one does.",
    "contrast": "How much higher the reward would be with a rival in place of the drawn operation, to first order. "
    "Also the strategy that learns from it.",
    "lead": "How much more reward an operation brings than a rival, on the mean.",
    "standard error": "How far a mean is typically off by chance: the scatter over the root of the count.",
    "swap": "A measured change of the loss when one operation is replaced by another.",
    "cosine": "How well two lists of numbers agree: 1 fully, 0 not at all, below 0 with the wrong sign.",
    "forward pass": "One architecture over one minibatch; passes of other kinds are counted by what they cost.",
    "saved activations": "What a step keeps in memory for its backward pass.",
    "regret": "How far an answer is behind the best architecture there is.",
    "perplexity": "The exponential of the mean loss per word: as if the model chose among so many words.",
    "multiplier": "The price of a limit: it rises while the expected cost is above the limit.",
    "significant": "Not explained by chance: see the note below the table of pairs.",
}


def terms_in(page: str) -> dict[str, str]:
    """Those that can be read on an HTML page, with what they mean, from a to z."""
    text = html.unescape(re.sub(r"<(style|svg)\b.*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL))
    words = " ".join(text.lower().split())  # a term may stand on two lines
    return {term: meaning for term, meaning in sorted(_TERMS.items()) if _is_in(term, words)}


def _is_in(term: str, text: str) -> bool:
    """Also in the plural."""
    plural = f"{term[:-1]}ies" if term.endswith("y") else f"{term}(s|es)?"
    return re.search(rf"(?<![\w-])({re.escape(term)}|{plural})(?![\w-])", text) is not None
