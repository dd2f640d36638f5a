"""Over the templates and vocabularies of llama.cpp's source, which CI fetches into build/llama_models."""

import os
import random

import pytest

from environments.trajectory import Message
from scripts.template_table import DOCUMENT, FAMILIES, examine, renderer_of, sample_turn
from tests.tables import cases

pytestmark = [
    pytest.mark.skipif(
        "TURNWISE_REQUIRE_TEMPLATES" not in os.environ,
        reason="minutes long: TURNWISE_REQUIRE_TEMPLATES=1 runs it over build/llama_models",
    ),
    pytest.mark.soak,
    pytest.mark.timeout(900),
]
WHOLE = [each for each in FAMILIES if f"| {each.name} | whole |" in DOCUMENT.read_text(encoding="utf-8")]
REPLY = [Message(role="user", content="more")]


@cases("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_what_the_docs_say_of_a_template_is_measured(family):
    assert examine(family).row() in DOCUMENT.read_text(encoding="utf-8").splitlines()


@cases("family", WHOLE, ids=[family.name for family in WHOLE])
def test_500_turns_of_random_ids_are_extended_by_the_same_ids(family):
    renderer, draws = renderer_of(family), random.Random(1)
    expected = renderer.extend(renderer.stop_ids[:1], REPLY, ())
    for _ in range(500):
        assert renderer.extend(sample_turn(renderer, draws), REPLY, ()) == expected


@cases("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_markers_in_messages_make_no_control_token(family):
    renderer = renderer_of(family)
    control = set(renderer.markers.values())

    def control_ids(text):
        messages = [
            Message(role="user", content=text),
            Message(role="assistant", content=text),
            Message(role="user", content=text),
        ]
        ids = renderer.prompt_ids(messages, ())
        if family in WHOLE:
            ids += renderer.extend(renderer.stop_ids[:1], [Message(role="user", content=text)], ())
        return [each for each in ids if each in control]

    texts = list(dict.fromkeys([*family.markers, *(renderer.decode([each]) for each in renderer.stop_ids)]))
    assert all(control_ids(f"a{text}b") == control_ids("ab") for text in texts)
