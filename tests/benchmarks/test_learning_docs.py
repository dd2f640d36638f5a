"""The docs show of learning what the commands measured."""

from tests.benchmarks.learning_docs import FIGURE, PAGE, figure, filled


def test_the_tables_of_learning_are_those_of_the_results():
    text = PAGE.read_text()
    assert "<!-- short table -->" in text
    assert filled(text) == text


def test_the_figure_of_learning_is_that_of_the_results():
    assert FIGURE.read_text() == figure()
