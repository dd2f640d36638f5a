"""What a record that is opened again knows of its groups, and whose it lets go on."""

from dataclasses import replace

import pytest

from environments.record.origin import RunOrigin
from environments.record.recorder import Recorder, read_contents
from environments.rollout.items.item_json import item_hash
from tests.environments.record.recorded import TWO, credited, edit
from tools.errors import RecordError

RUN = RunOrigin(env="toy", policy="p", estimator="e", experiment={"turnwise": "1", "seed": "0"})
OTHER = replace(RUN, experiment={**RUN.experiment, "seed": "1"})
ITEM = {"id": "a", "n": 1}


@pytest.fixture
def path(tmp_path):
    """A record of one finished group and one that failed."""
    with Recorder(tmp_path / "r.jsonl") as recorder:
        recorder.begin(RUN)
        recorder.append(credited(replace(TWO, item=ITEM, item_hash=item_hash(ITEM)), "a"))
        recorder.append(credited(TWO, "b", status="failed"))
    return tmp_path / "r.jsonl"


def begun(path, run, *items, all_items=False):
    with Recorder(path) as recorder:
        recorder.begin(run, items, all_items=all_items)


def test_a_finished_group_is_held_and_a_failed_one_is_known(path):
    with Recorder(path) as recorder:
        assert [recorder.holds(item, 0) for item in "abc"] == [True, False, False]
        assert [recorder.has_failed_before(item, 0) for item in "abc"] == [False, True, False]
        assert not recorder.holds("a", 1)


def test_a_group_that_worked_in_the_end_did_not_fail_before(path):
    with Recorder(path) as recorder:
        recorder.begin(RUN)
        recorder.append(credited(TWO, "b"))
    with Recorder(path) as recorder:
        assert not recorder.has_failed_before("b", 0)


def test_the_same_run_and_items_go_on(path):
    begun(path, RUN, ("a", ITEM), ("b", {"id": "b"}), all_items=True)


def test_another_run_is_refused_by_what_differs(path):
    with pytest.raises(RecordError, match=r"groups of another run \(seed was 0, is 1\)"):
        begun(path, OTHER, ("a", ITEM))


def test_an_item_that_changed_is_refused_by_name(path):
    with pytest.raises(RecordError, match=r"\(item 'a' changed\)"):
        begun(path, RUN, ("a", {"id": "a", "n": 2}))


def test_an_item_that_is_gone_is_refused_only_where_all_are_given(path):
    with pytest.raises(RecordError, match=r"\(item 'a' is gone\)"):
        begun(path, RUN, ("c", {}), all_items=True)
    begun(path, RUN, ("c", {}))


def test_a_record_continued_says_what_its_runs_were_once_each(path):
    # The finished group's line is gone: what is left says nothing of another run.
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[1])
    for run, item in ((OTHER, "c"), (OTHER, "d")):
        with Recorder(path) as recorder:
            recorder.begin(run)
            recorder.append(credited(TWO, item))
    assert path.read_bytes().count(b'"origin":') == 1
    assert read_contents(path).origins == {OTHER.fingerprint: OTHER.facts()}


def test_a_fingerprint_that_no_line_explains_is_named(path):
    edit(path, b'"origin":', b'"none":')
    with pytest.raises(RecordError, match=f"fingerprint was {RUN.fingerprint}, is {OTHER.fingerprint}"):
        begun(path, OTHER)


def test_groups_without_a_fingerprint_are_no_runs(tmp_path):
    with Recorder(tmp_path / "r.jsonl") as recorder:
        recorder.append(credited(TWO))
    with pytest.raises(RecordError, match="they carry no fingerprint"):
        begun(tmp_path / "r.jsonl", RUN)
