"""What others do to a record while a run writes it, and values that no line can hold."""

import math
import os
import random
from dataclasses import replace

import orjson
import pytest

from environments.record.recorder import Recorder, read_groups
from environments.testing import group_of
from environments.trajectory import JudgeCall, Message, Rewards, StopReason
from tests.environments.record.recorded import TWO, credited
from tools.errors import RecordError
from turnwise.cli.main import main


def renamed(path):
    path.rename(path.with_name("elsewhere.jsonl"))


def deleted(path):
    path.unlink()


def replaced(path):
    copy = path.with_name("copy.jsonl")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


def by_a_folder(path):
    path.unlink()
    path.mkdir()


def by_a_link_to_another_file(path):
    other = path.with_name("other.jsonl")
    other.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(other)


def by_a_dangling_link(path):
    path.unlink()
    path.symlink_to(path.with_name("nowhere"))


def truncated(path):
    os.truncate(path, 10)


def emptied(path):
    os.truncate(path, 0)


def appended_to(path):
    with path.open("ab") as file:
        file.write(b"{}\n")


def emptied_and_filled_again(path):
    size = path.stat().st_size
    path.write_bytes(b"x" * size)


OTHERS = [
    renamed, deleted, replaced, by_a_folder, by_a_link_to_another_file, by_a_dangling_link, truncated,
    emptied, appended_to, emptied_and_filled_again,
]  # fmt: skip


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
    "a surrogate in its reasoning": turn(message=replace(SPOKEN, reasoning=HALF)),
    "a surrogate in a call": turn(
        message=replace(SPOKEN, tool_calls=(replace(SPOKEN.tool_calls[0], arguments=HALF),))
    ),
    "a surrogate in a result": turn(tool_results=(replace(TURN.tool_results[0], content=HALF),)),
    "a surrogate in a reply": turn(replies=(Message(role="user", content=HALF),)),
    "a surrogate in the prompt": replace(FIRST, prompt=(Message(role="user", content=HALF),)),
    "a surrogate in an anchor": turn(anchor=HALF),
    "a surrogate in the finish reason": turn(finish_reason=HALF),
    "no finish reason": turn(finish_reason=None),
    "a number as text": turn(message=replace(SPOKEN, content=5)),
    "content parts": turn(message=replace(SPOKEN, content=[{"type": "text", "text": "a"}])),
    "a turn of role user": turn(message=Message(role="user", content="a")),
    "a reply of role assistant": turn(replies=(Message(role="assistant", content="a"),)),
    "a role that does not exist": turn(message=Message(role="developer", content="a")),
    "a huge exit code": turn(tool_results=(replace(TURN.tool_results[0], exit_code=HUGE),)),
    "a time that is not a number": turn(model_s=NAN),
    "a logprob that is not a number": row(logprobs=(1.0, NAN, 1.0, -1.0)),
    "an infinite logprob": row(logprobs=(1.0, -math.inf, 1.0, -1.0)),
    "a turn reward that is not a number": replace(FIRST, rewards=Rewards(turns=(NAN, 1.0), score=1.0)),
    "an outcome that is not a number": replace(FIRST, rewards=Rewards(outcome=NAN, score=1.0)),
    "an infinite score": replace(FIRST, rewards=Rewards(turns=(1.0, 1.0), score=math.inf)),
    "a part that is not a number": replace(FIRST, rewards=Rewards(score=1.0, outcome_components={"a": NAN})),
    "fewer rewards than turns": replace(FIRST, rewards=Rewards(turns=(1.0,), score=1.0)),
    "a metric that is not a number": replace(FIRST, metrics={"a": NAN}),
    "a metric that is an object": replace(FIRST, metrics={"a": object()}),
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


@pytest.mark.parametrize("item", [None, object()])
def test_siblings_that_no_line_can_hold_keep_their_numbers(tmp_path, item):
    left = [replace(each, sibling=each.sibling + 1) for each in TWO.trajectories]
    left[1] = replace(left[1], metrics={"a": NAN})
    with Recorder(tmp_path / "r.jsonl") as recorder:
        written = recorder.append(credited(replace(TWO, item=item, trajectories=tuple(left)), "a"))
    siblings = {each.sibling for each in (*written.group.trajectories, *written.group.failures)}
    assert siblings == {1, 2}


GROUPS = {
    "advantages that are not numbers": replace(credited(TWO), advantages=((NAN, 0.0), (0.0,))),
    "an advantage too few": replace(credited(TWO), advantages=((0.0,), (0.0,))),
    "parameters that are not numbers": replace(credited(TWO), estimator_params={"gamma": NAN}),
    "parameters that are objects": replace(credited(TWO), estimator_params={"gamma": object()}),
    "a group id that is no text": replace(credited(TWO), group=replace(TWO, group_id=HALF)),
    "an item of objects": replace(credited(TWO), group=replace(TWO, item=object())),
    "a policy with half a character": replace(credited(TWO), policy=HALF),
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


def odd_value(rng):
    odd = [NAN, math.inf, HUGE, -HUGE, HALF, None, [], {}, object(), b"bytes", 1 + 1j, {"a": {1: HALF}}]
    return rng.choice(odd)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_a_field_holds_the_record_stays_readable(tmp_path, seed):
    rng = random.Random(seed)
    path = tmp_path / "r.jsonl"
    where = rng.choice(["turn", "message", "result", "trajectory", "rewards"])
    of = {
        "turn": TURN, "message": SPOKEN, "result": TURN.tool_results[0], "trajectory": FIRST,
        "rewards": FIRST.rewards,
    }[where]  # fmt: skip
    name = rng.choice(
        [each for each in of.__dataclass_fields__ if each not in ("rows", "turns", "index", "span")]
    )
    broken = replace(of, **{name: odd_value(rng)})
    bad = {
        "turn": lambda: replace(FIRST, turns=(broken, *FIRST.turns[1:])),
        "message": lambda: turn(message=broken),
        "result": lambda: turn(tool_results=(broken,)),
        "trajectory": lambda: broken,
        "rewards": lambda: replace(FIRST, rewards=broken),
    }[where]()
    with Recorder(path) as recorder:
        written = recorder.append(credited(replace(TWO, trajectories=(bad, TWO.trajectories[1])), "b"))
        recorder.append(credited(TWO, "c"))
    first, last = read_groups(path)
    assert (first.status, last.status) == (written.status, "ok")
    assert all(orjson.loads(line) for line in path.read_bytes().splitlines())
    assert StopReason.COMPLETED in {each.stop_reason for each in last.group.trajectories}


def test_a_plain_group_is_none_of_them(tmp_path):
    with Recorder(tmp_path / "r.jsonl") as recorder:
        assert recorder.append(credited(group_of([[1.0]]))).status == "ok"


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
