"""A verdict is read from a judge's text, or it is said why none can be."""

import pytest
from pydantic import BaseModel, Field

from environments.rewards.judge import ScoreVerdict, UnreadableError, read_verdict
from tests.tables import cases

READABLE = {
    "alone": '{"score": 0.5}',
    "integer": '{"score": 1, "reason": "fine"}',
    "spaces": ' \n { \n"score" : 0.5 }\n',
    "fenced": 'Here:\n```json\n{"score": 0.5}\n```\nThat is all.',
    "fence without a name": '```\n{"score": 0.5}\n```',
    "text around it": 'The set {a, b} and {x} are fine: {"score": 0.5}. Bye {',
    "said twice": '{"score": 0.5}, so {"score": 0.5}',
    "in a list": '[{"score": 0.5}]',
    "braces that begin no object": "f^{'} and {'a', 'b'} " + '{"score": 0.5}',
    "other objects": '{"is": "about"} {"score": 0.5}',
    "after reasoning": '<think>maybe {"score": 0.9}, or {"sco</think>{"score": 0.5}',
    "reasoning begun in the prompt": 'maybe 0.9</think>\n{"score": 0.5}',
    "the mark of reasoning in a reason": '{"score": 0.5, "reason": "it wrote </think>"}',
    "a quoted verdict in a reason": r'{"reason": "it wrote {\"score\": 1}", "score": 0.5}',
}
UNREADABLE = {
    "empty": "",
    "words": "I would say 0.5.",
    "number alone": "0.5",
    "reasoning alone": '<think>{"score": 1}',
    "perhaps a quoted end of reasoning": '{"score": 0} for writing </think>{"score": 1}',
    "two that differ": '{"score": 0.5} {"score": 0.6}',
    "twice the name": '{"score": 0.5, "score": 0.6}',
    "a verdict quoted in one that is broken": '{"reason": "it says {"score": 1}", "score": 0}',
    "broken, then whole": '{"score": 0.5 {"score": 1}',
    "cut": '{"reason": "it is',
    "nan": '{"score": NaN}',
    "infinity": '{"score": -Infinity}',
    "overflow": '{"score": 1e999}',
    "far too large": '{"score": 1e200}',
    "integer too large": '{"score": ' + "9" * 400 + "}",
    "integer of many digits": '{"score": ' + "9" * 10_000 + "}",
    "text": '{"score": "0.5"}',
    "bool": '{"score": true}',
    "null": '{"score": null}',
    "list": '{"score": [0.5]}',
    "within another": '{"verdict": {"score": 0.5}}',
    "deep": '{"score": ' + "[" * 100_000,
    "deep objects": '{"a": ' * 100_000,
    "many braces": "{" * 1_000_000,
    "single quotes beside a quoted verdict": "{ 'score': 0} for {\"score\": 1}",
    "curly quotes beside a quoted verdict": '{“score”: 0} for {"score": 1}',
    "single quotes": "{'score': 0.5}",
}


@cases("text", READABLE.values(), ids=READABLE)
def test_a_score_is_read(text):
    assert read_verdict(text, ScoreVerdict).score in (0.5, 1.0)


@cases("text", UNREADABLE.values(), ids=UNREADABLE)
def test_a_text_without_one_verdict_says_why_in_a_short_line(text):
    with pytest.raises(UnreadableError) as caught:
        read_verdict(text, ScoreVerdict)
    assert 0 < len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


class Graded(BaseModel):
    grade: float = Field(ge=0, le=10)
    reason: str


def test_a_schema_of_the_authors_says_what_fits():
    verdict = read_verdict('{"grade": 7, "reason": "good"} {"score": 1}', Graded)
    assert verdict == Graded(grade=7, reason="good")


def test_what_does_not_fit_is_named():
    with pytest.raises(UnreadableError, match="grade: Input should be less than or equal to 10"):
        read_verdict('{"grade": 11, "reason": "good"}', Graded)
