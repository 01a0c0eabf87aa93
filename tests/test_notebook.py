"""Every object that people print is short, and has a table in a notebook."""

import torch
from torch import nn

from advnas import Architecture, Choice, Search, SearchSpace, Task
from advnas.notebook import table
from advnas.retrain import Epoch, Retrained


def network():
    return nn.Sequential(Choice({"a": nn.Linear(2, 2), "<b>": nn.Identity()}, name="x & y"))


class Unsized:
    def __iter__(self):
        return iter([torch.zeros(1000, 2)] * 50)


def loss(model, batch):
    return model(batch).square().mean()


def test_everything_in_a_table_is_escaped():
    page = table("<i>", [("<b>", 1)], ("&",))
    assert "<i>" not in page
    assert "<b>" not in page
    assert "&lt;b&gt;" in page


def test_a_task_does_not_print_its_data():
    data = [torch.zeros(1000, 2)] * 50
    text = repr(Task(data, Unsized(), loss))
    assert text == "Task(training: 50 minibatches in a list, validation: minibatches in a Unsized, loss: loss)"
    assert "tensor" not in Task(data, data, loss)._repr_html_()


def test_all_of_them_are_short_and_have_a_table():
    search = Search(network())
    epochs = (Epoch(1, 0.5, 0.4), Epoch(2, 0.4, 0.3))
    objects = [
        search,
        Task([torch.ones(1, 2)], [torch.ones(1, 2)], loss),
        search.plan(lambda model: loss(model, torch.ones(1, 2))),
        Retrained(network(), epochs[1], epochs),
        Architecture({"x & y": "<b>"}),
        SearchSpace(network()),
        search.verdict(),
    ]
    for one in objects:
        assert len(str(one)) < 200
        assert one._repr_html_().startswith("<table>")
        assert "<b>" not in one._repr_html_()


def test_a_search_says_where_it_stands():
    search = Search(network(), steps=4)
    search.weight_step(lambda model: loss(model, torch.ones(1, 2)))
    assert repr(search).startswith(
        "Search(Contrast, SearchSpace(1 decisions, 2 architectures), 1 of 4 weight steps"
    )
