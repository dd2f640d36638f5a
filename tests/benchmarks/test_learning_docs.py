"""What README and docs show of learning is what the commands measured."""

import pytest

from tests.benchmarks.learning_docs import FIGURE, PAGES, figure, filled


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tables_of_learning_are_those_of_the_results(page):
    text = page.read_text()
    assert "<!-- short table -->" in text
    assert filled(text) == text


def test_the_figure_of_learning_is_that_of_the_results():
    assert FIGURE.read_text() == figure()
