"""The outbox: what is in it survives, is sent in order and leaves only when it is certain."""

import gzip
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import orjson
import pytest

from environments.record.origin import RunOrigin
from environments.serve.outbox import Outbox
from environments.serve.serving import claim
from environments.wire.payloads import Part, compress, post_text
from tools.errors import ConfigError, RecordError


def parts(*bodies):
    return [Part(body=body, longest_row=1) for body in bodies]


def order(outbox):
    taken = []
    while (post := outbox.next_post()) is not None:
        taken.append((post.group_id, post.number))
        outbox.mark_sent(post)
    return taken


def test_posts_leave_in_the_order_they_came(outbox):
    outbox.put("a", parts(b"0", b"1"))
    outbox.put("b", parts(b"0"))
    assert order(outbox) == [("a", 0), ("a", 1), ("b", 0)]


def test_a_run_keeps_its_id_and_shares_it_with_no_other(tmp_path):
    ids = []
    for name in ("one.db", "one.db", "other.db"):
        outbox = Outbox(tmp_path / name)
        ids.append(outbox.fact("run_id"))
        outbox.close()
    assert ids[0] == ids[1] is not None
    assert ids[2] not in (None, ids[0])


def test_a_group_is_put_only_once(outbox):
    outbox.put("a", parts(b"first"))
    outbox.put("a", parts(b"second"))
    assert outbox.next_post().part.body == b"first"
    assert len(outbox) == 1


def test_a_post_that_the_api_could_not_take_goes_behind_the_others(outbox):
    outbox.put("a", parts(b"0"))
    outbox.put("b", parts(b"0"))
    outbox.postpone(outbox.next_post())
    assert order(outbox) == [("b", 0), ("a", 0)]


def test_a_sent_post_stays_until_it_is_removed(outbox):
    outbox.put("a", parts(b"0"))
    outbox.mark_sent(outbox.next_post())
    assert (len(outbox), outbox.waiting_groups()) == (1, 0)
    outbox.remove(outbox.sent_posts())
    assert len(outbox) == 0


def test_sent_posts_are_listed_in_the_order_in_which_the_api_got_them(outbox):
    for name in "abc":
        outbox.put(name, parts(b"0"))
    first = outbox.next_post()
    outbox.postpone(first)
    second = outbox.next_post()
    outbox.postpone(second)
    third = outbox.next_post()
    for post in (second, third, first):
        outbox.mark_sent(post)
    assert outbox.sent_posts() == [second.id, third.id, first.id]


def test_what_the_api_still_has_does_not_wait_again(outbox):
    outbox.put("a", parts(b"0"))
    order(outbox)
    assert outbox.record_registration(3, forgot=False) == 0
    assert order(outbox) == []


def test_a_slow_task_holds_the_place_and_later_ones_are_known_to_be_finished(outbox):
    for number in (0, 2, 3):
        outbox.finish(number)
    assert (outbox.first_unfinished(), outbox.finished_tasks()) == (1, {2, 3})
    outbox.finish(1)
    assert (outbox.first_unfinished(), outbox.finished_tasks()) == (4, frozenset())


def test_everything_is_there_again_after_reopening(tmp_path):
    path = tmp_path / "o.sqlite"
    first = Outbox(path)
    first.put("a", parts(b"0", b"1"))
    first.mark_sent(first.next_post())
    first.remember("env_id", "3")
    run_id = first.fact("run_id")
    first.close()
    again = Outbox(path)
    assert (again.next_post().number, len(again), again.fact("env_id")) == (1, 2, "3")
    assert again.fact("run_id") == run_id
    again.close()


def test_two_processes_cannot_share_an_outbox(outbox):
    with pytest.raises(ConfigError, match="another process is using it"):
        Outbox(outbox.path)


def test_a_file_that_is_no_outbox_is_refused(tmp_path):
    path = tmp_path / "o.sqlite"
    path.write_text("something else, and long enough to be no header of a database" * 20)
    with pytest.raises(ConfigError, match="cannot use the outbox"):
        Outbox(path)


def test_kill_dash_nine_keeps_every_group_that_put_returned_for(tmp_path):
    path = tmp_path / "o.sqlite"
    writer = """
import sys
from pathlib import Path
from environments.serve.outbox import Outbox
from environments.wire.payloads import Part
outbox = Outbox(Path(sys.argv[1]))
for number in range(100_000):
    outbox.put(str(number), [Part(body=b"x" * 20_000, longest_row=1)])
    print(number, flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", writer, str(path)], stdout=subprocess.PIPE, env=os.environ.copy()
    )
    for _ in range(20):
        acknowledged = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    again = Outbox(path)
    kept = {group for group, _ in order(again)}
    again.close()
    assert {str(number) for number in range(acknowledged + 1)} <= kept


def test_a_full_disk_is_an_error_of_ours(tmp_path):
    outbox = Outbox(tmp_path / "o.sqlite")
    (pages,) = outbox._db.execute("PRAGMA page_count").fetchone()
    outbox._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(RecordError, match=r"cannot write the outbox .*o\.sqlite: database or disk is full"):
        outbox.remember("origin", "x" * 100_000)
    outbox.close()


def test_the_file_does_not_grow_with_what_passed_through(tmp_path):
    outbox = Outbox(tmp_path / "o.sqlite")
    sizes = []
    for number in range(400):
        outbox.put(str(number), parts(os.urandom(20_000)))
        outbox.mark_sent(outbox.next_post())
        outbox.remove(outbox.sent_posts())
        sizes.append(sum(file.stat().st_size for file in tmp_path.iterdir()))
    outbox.close()
    assert max(sizes[200:]) <= max(sizes[:200])


ORIGIN = RunOrigin(
    env="a",
    policy="p",
    estimator="grpo",
    view="token_advantages",
    experiment={"turnwise": "0.1.0", "group_size": "4"},
)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"estimator": "rloo"}, "estimator was grpo, is rloo"),
        ({"view": "turn_rows"}, "view was token_advantages, is turn_rows"),
        ({"experiment": {**ORIGIN.experiment, "group_size": "8"}}, "group_size was 4, is 8"),
    ],
)
def test_groups_of_another_run_are_never_sent_to_this_runs_trainer(outbox, change, says):
    claim(outbox, ORIGIN)
    outbox.put("group", parts(b"0"))
    with pytest.raises(RecordError, match=rf"holds groups of another run \({says}\); deliver them with"):
        claim(outbox, replace(ORIGIN, **change))


def test_starting_over_puts_posts_aside_and_begins_the_plan_anew(outbox):
    outbox.put("a", parts(gzip.compress(b'"a": 0}'), gzip.compress(b'"a": 1}')), number=0)
    outbox.finish(5)
    assert outbox.start_over("put aside") == 2
    rejected = [orjson.loads(line) for line in outbox.rejected_path.read_bytes().splitlines()]
    assert [(each["group_id"], each["part"], each["reason"]) for each in rejected] == [
        ("a", 0, "put aside"),
        ("a", 1, "put aside"),
    ]
    assert (len(outbox), outbox.first_unfinished(), outbox.finished_tasks()) == (0, 0, frozenset())


@pytest.mark.parametrize("has_part", [False, True])
def test_a_groups_versions_count_until_a_part_is_sent_and_again_if_an_api_forgot_it_whole(outbox, has_part):
    outbox.put("a", parts(b"0", b"1"), versions={0: ["v1", None]})
    first = outbox.next_post()
    assert outbox.unsent_versions(first) == {0: ["v1", None]}
    outbox.mark_sent(first)
    assert outbox.unsent_versions(outbox.next_post()) == {}
    if has_part:  # a trainer took it, so the group goes on whole
        outbox.remove(outbox.sent_posts())
    outbox.record_registration(0, forgot=True)
    assert outbox.unsent_versions(outbox.next_post()) == ({} if has_part else {0: ["v1", None]})


def rows_of(*siblings):
    """The body of a post with a row of each of these siblings; `None`: of unknown versions, so not named."""
    rows = range(len(siblings))
    named = [{} if sibling is None else {"sibling": sibling} for sibling in siblings]
    columns = {
        "tokens": [[1, 2] for _ in rows],
        "masks": [[-100, 2] for _ in rows],
        "scores": [0.5 for _ in rows],
        "advantages": [[0.0, 1.0] for _ in rows],
        "overrides": [{"group_id": "a", "row": row, **named[row]} for row in rows],
        "group_overrides": {},
    }
    return compress(columns)


def trained(post):
    return [any(label != -100 for label in row) for row in json.loads(post_text(post.part.body))["masks"]]


def test_rows_of_old_siblings_and_of_unknown_versions_are_masked_and_the_others_stay(outbox):
    outbox.put("a", parts(rows_of(0, 1, None)), versions={0: ["v1", "v2"], 1: ["v2"]})
    assert outbox.withhold("a", {1: ["v2"]}) == 2
    post = outbox.next_post()
    assert trained(post) == [False, True, False]
    assert json.loads(post_text(post.part.body))["scores"] == [0.5] * 3
    assert outbox.unsent_versions(post) == {1: ["v2"]}


def test_a_group_of_which_nothing_is_left_is_gone(outbox):
    outbox.put("a", parts(rows_of(0), rows_of(0)), versions={0: ["v1"]})
    outbox.put("b", parts(b"0"))
    assert outbox.withhold("a", {}) == 2
    assert order(outbox) == [("b", 0)]


def test_posts_of_fresh_siblings_stay_when_others_of_their_group_go(outbox):
    outbox.put("a", parts(rows_of(0), rows_of(1)), versions={0: ["v1"], 1: ["v2"]})
    outbox.withhold("a", {1: ["v2"]})
    assert outbox.unsent_versions(outbox.next_post()) == {1: ["v2"]}
    assert order(outbox) == [("a", 1)]


def test_a_group_that_was_dropped_as_stale_has_the_versions_of_its_next_try(outbox):
    outbox.put("a", parts(rows_of(0)), versions={0: ["v1"]})
    outbox.withhold("a", {})
    outbox.put("a", parts(b"0"), versions={0: ["v2"]})
    assert outbox.unsent_versions(outbox.next_post()) == {0: ["v2"]}


def test_an_outbox_of_an_earlier_version_knows_no_versions(outbox):
    outbox.put("a", parts(b"0"))
    outbox._db.execute("DELETE FROM weights")
    assert outbox.unsent_versions(outbox.next_post()) == {}
