import pytest

from environments.judged_writing_env.judging import length_fit, missing_words, variety
from tests.tables import cases


@pytest.mark.parametrize(
    ("text", "missing"),
    [("A GREY cat with a collar.", []), ("greyish collars", ["grey", "collar"]), ("", ["grey", "collar"])],
)
def test_a_word_is_there_whole_or_missing(text, missing):
    assert missing_words(text, ["grey", "collar"]) == missing


@cases(("count", "fit"), [(0, 0), (5, 0.5), (10, 1), (20, 1), (30, 0.5), (40, 0), (99, 0)])
def test_the_fit_of_a_length_falls_outside_its_bounds(count, fit):
    assert length_fit("word " * count, 10, 20) == fit


@pytest.mark.parametrize(
    ("text", "share"), [("", 0), ("...", 0), ("One. Two!", 1), ("One. one? ONE\nTwo", 0.5)]
)
def test_a_sentence_that_was_there_before_is_no_variety(text, share):
    assert variety(text) == share
