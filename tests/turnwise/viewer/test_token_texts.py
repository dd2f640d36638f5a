"""The texts of tokens add up to what was said, or there are none."""

from environments.policy.rendering.chatml import EMBEDDED, load_tokenizer
from turnwise.viewer.page_values import TokenTexts


def ids_of(text):
    return load_tokenizer(EMBEDDED).encode(text, add_special_tokens=False).ids


def test_texts_add_up_to_the_message():
    said = "def f(x):\n    return x  # naïve 🙂 Ω"

    assert "".join(TokenTexts.of(None).texts(ids_of(said), said)) == said


def test_there_is_a_text_for_every_token_of_a_character():
    said = "🙂🙂"
    ids = ids_of(said)

    texts = TokenTexts.of(None).texts(ids, said)

    assert len(texts) == len(ids) > 2
    assert "".join(texts) == said


def test_tokens_of_another_tokenizer_have_no_texts():
    assert TokenTexts.of(None).texts(ids_of("something else"), "what was said") is None


def test_ids_that_the_tokenizer_lacks_have_no_texts():
    assert TokenTexts.of(None).texts([10**6], "") is None


def test_a_tokenizer_that_was_named_is_trusted():
    assert TokenTexts.of(EMBEDDED).texts(ids_of("something else"), "what was said") is not None
