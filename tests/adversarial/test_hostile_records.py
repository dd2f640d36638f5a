"""What others do to a record while a run writes it, and values that no line can hold."""

import math
import os
from dataclasses import replace

import orjson
import pytest

from environments.record.recorder import Recorder, read_groups
from environments.trajectory import JudgeCall, Message, Rewards
from tests.environments.record.recorded import TWO, credited
from tools.errors import RecordError
from turnwise.cli.main import main


def deleted(path):
    path.unlink()


def replaced(path):
    copy = path.with_name("copy.jsonl")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


def by_a_link_to_another_file(path):
    other = path.with_name("other.jsonl")
    other.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(other)


def truncated(path):
    os.truncate(path, 10)


def appended_to(path):
    with path.open("ab") as file:
        file.write(b"{}\n")


def emptied_and_filled_again(path):
    size = path.stat().st_size
    path.write_bytes(b"x" * size)


OTHERS = [deleted, replaced, by_a_link_to_another_file, truncated, appended_to, emptied_and_filled_again]


@pytest.mark.parametrize("do", OTHERS)
def test_what_others_do_to_a_record_is_noticed_before_the_next_group(tmp_path, do):
    path = tmp_path / "r.jsonl"
    with Recorder(path) as recorder:
        recorder.append(credited(TWO, "a"))
        do(path)
        before = {each: each.read_bytes() for each in tmp_path.iterdir() if each.is_file()}
        for item in ("b", "c"):
            with pytest.raises(RecordError, match=r"r\.jsonl (is|was) .* nothing more is written") as refusal:
                recorder.append(credited(TWO, item))
            assert "\n" not in str(refusal.value)
            assert not recorder.holds(item, 0)
    assert {each: each.read_bytes() for each in tmp_path.iterdir() if each.is_file()} == before


def test_a_record_may_lie_behind_a_link(tmp_path):
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "real.jsonl")
    with Recorder(tmp_path / "link.jsonl") as recorder:
        recorder.append(credited(TWO, "a"))
        recorder.append(credited(TWO, "b"))
    assert len(list(read_groups(tmp_path / "real.jsonl"))) == 2


FIRST = TWO.trajectories[0]
TURN = FIRST.turns[0]


def turn(**changes):
    return replace(FIRST, turns=(replace(TURN, **changes), *FIRST.turns[1:]))


def row(**changes):
    return replace(FIRST, rows=(replace(FIRST.rows[0], **changes),))


NAN, HUGE, HALF = math.nan, 2**64, "\ud83d"
SPOKEN = TURN.message
UNRECORDABLE = {
    "a surrogate in the model's text": turn(message=replace(SPOKEN, content=HALF)),
    "a surrogate in a call": turn(
        message=replace(SPOKEN, tool_calls=(replace(SPOKEN.tool_calls[0], arguments=HALF),))
    ),
    "no finish reason": turn(finish_reason=None),
    "a number as text": turn(message=replace(SPOKEN, content=5)),
    "content parts": turn(message=replace(SPOKEN, content=[{"type": "text", "text": "a"}])),
    "a reply of role assistant": turn(replies=(Message(role="assistant", content="a"),)),
    "a huge exit code": turn(tool_results=(replace(TURN.tool_results[0], exit_code=HUGE),)),
    "a time that is not a number": turn(model_s=NAN),
    "a logprob that is not a number": row(logprobs=(1.0, NAN, 1.0, -1.0)),
    "a turn reward that is not a number": replace(FIRST, rewards=Rewards(turns=(NAN, 1.0), score=1.0)),
    "an outcome that is not a number": replace(FIRST, rewards=Rewards(outcome=NAN, score=1.0)),
    "fewer rewards than turns": replace(FIRST, rewards=Rewards(turns=(1.0,), score=1.0)),
    "a metric that is not a number": replace(FIRST, metrics={"a": NAN}),
    "a huge seed": replace(FIRST, seed=2**70),
    "a judge's answer with a surrogate": replace(
        FIRST, judge_calls=(JudgeCall(hook="h", model="m", messages=(), answer=HALF),)
    ),
    "a stop reason of its own": replace(FIRST, stop_reason="tired"),
}  # fmt: skip


@pytest.mark.parametrize("bad", UNRECORDABLE.values(), ids=UNRECORDABLE)
def test_a_sibling_that_no_line_can_hold_fails_its_group_and_the_record_stays_readable(tmp_path, bad):
    path = tmp_path / "r.jsonl"
    with Recorder(path) as recorder:
        recorder.append(credited(TWO, "a"))
        written = recorder.append(credited(replace(TWO, trajectories=(bad, TWO.trajectories[1])), "b"))
        recorder.append(credited(TWO, "c"))
        assert recorder.finished == {("a", 0), ("c", 0)}
    first, failed, last = read_groups(path)
    assert failed == written
    assert (first.status, failed.status, last.status) == ("ok", "failed", "ok")
    assert failed.reason.startswith("cannot be recorded: ")
    assert [each.error_class for each in failed.group.failures] == ["RecordError"]
    assert [each.sibling for each in failed.group.trajectories] == [1]
    assert b"NaN" not in path.read_bytes()


GROUPS = {
    "advantages that are not numbers": replace(credited(TWO), advantages=((NAN, 0.0), (0.0,))),
    "parameters that are not numbers": replace(credited(TWO), estimator_params={"gamma": NAN}),
    "a group id that is no text": replace(credited(TWO), group=replace(TWO, group_id=HALF)),
    "an item of objects": replace(credited(TWO), group=replace(TWO, item=object())),
    "a reason with half a character": replace(credited(TWO), reason=HALF),
}


@pytest.mark.parametrize("bad", GROUPS.values(), ids=GROUPS)
def test_a_group_that_no_line_can_hold_is_a_failed_one(tmp_path, bad):
    path = tmp_path / "r.jsonl"
    with Recorder(path) as recorder:
        written = recorder.append(bad)
    (read,) = read_groups(path)
    assert read == written
    assert read.status == "failed"


@pytest.mark.parametrize("field", ["item_id", "item", "messages", "estimator_params"])
@pytest.mark.parametrize("deep", [b"[" * 900 + b"]" * 900, b'{"a":' * 900 + b"0" + b"}" * 900], ids=len)
def test_a_line_that_nests_deeply_is_read_or_refused_in_one_line(field, deep, tmp_path, capsys):
    path = tmp_path / "r.jsonl"
    with Recorder(path) as recorder:
        recorder.append(credited(TWO, "a"))
    fields = orjson.loads(path.read_bytes()) | {field: "@"}
    path.write_bytes(orjson.dumps(fields).replace(b'"@"', deep) + b"\n")
    for command in (["view", "--text"], ["view"], ["export", "--view", "list_scores"]):
        more = [] if "--text" in command else ["--out", str(tmp_path / "out")]
        if main([command[0], str(path), *command[1:], *more]):
            assert capsys.readouterr().err.count("\n") == 1
        (tmp_path / "out").unlink(missing_ok=True)
