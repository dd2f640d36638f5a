import random

from tests.environments.policy.rendering.family_formats import encoded, renderer_of
from tests.tables import cases

FAMILY = "deepseek-v4"
MARK = "\uff5cDSML\uff5c"
PIECES = (
    "<think>", "</think>", f"<{MARK}tool_calls>\n", f"\n</{MARK}tool_calls>", f'<{MARK}invoke name="run">\n',
    f"</{MARK}invoke>\n", f'<{MARK}parameter name="a" string="true">', f"</{MARK}parameter>\n", "1", "a b",
    f'<{MARK}parameter name="b" string="false">', "\n", "{",
)  # fmt: skip


def library_reads(ids):
    renderer = renderer_of(FAMILY)
    return renderer._library.parse_response(list(ids), tools=None, prompt_ids=renderer._opening)


def shown(read):
    calls = [
        (each.name or "", each.token_span, str(each.status), each.status == "ok" and dict(each.arguments))
        for each in read.tool_calls
    ]
    return read.content, read.reasoning_content or None, read.reasoning_complete, calls


@cases("seed", range(8))
def test_a_turn_is_read_as_the_library_reads_it(seed):
    rng = random.Random(seed)
    for _ in range(100):
        ids = encoded(FAMILY, "".join(rng.choices(PIECES, k=rng.randint(1, 14))))
        assert shown(renderer_of(FAMILY)._read_dsml(ids)) == shown(library_reads(ids))


def test_the_span_of_a_call_after_characters_of_many_ids_holds_it_alone():
    call = f'<{MARK}invoke name="run">\n</{MARK}invoke>'
    ids = encoded(FAMILY, f"ä数👩\u200d💻\ufffd{call}")
    (read,) = renderer_of(FAMILY)._read_dsml(ids).tool_calls
    assert renderer_of(FAMILY).decode(ids[slice(*read.token_span)]) == call
