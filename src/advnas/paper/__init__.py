"""The paper's studies as data: the toy regression, CIFAR-10, Penn Treebank, the theorems, and its numbers."""

from advnas.arguments import Builder

SEARCHES: dict[str, Builder] = {
    "penn_treebank": Builder("advnas.paper.ptb:search_study", "the recurrent cell, searched as in the paper"),
}
"""Tasks whose search carries more from step to step than a `Task` can say: each has a study of its own."""
