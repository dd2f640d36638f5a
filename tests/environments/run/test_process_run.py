"""`process` and `evaluate`: the flow into files, taken up again, refused where it would mix."""

import asyncio
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from environments.record.recorder import read_groups
from environments.run.evaluation_run import evaluate
from environments.run.process_run import process
from tests.environments.write_file import WriteFile, made
from tests.tables import cases
from tools.errors import CreditError, DatasetError, SandboxError


def processing(tmp_path, cls=WriteFile, **fields):
    return made(cls, data_path_to_save_groups=str(tmp_path / "out.jsonl"), **fields)


@cases("command", [process, evaluate])
async def test_an_environment_that_loads_no_items_is_refused(tmp_path, command):
    class Empty(WriteFile):
        async def load_items(self):
            return []

    env = made(Empty, data_path_to_save_groups=str(tmp_path / "r.jsonl"))
    with pytest.raises(DatasetError, match="'write_file' has no items"):
        await command(env, Console())


class Nothing(WriteFile):
    """An environment whose every rollout breaks."""

    async def load_items(self):
        return [{"id": str(number), "text": "t"} for number in range(9)]

    async def prepare(self, item, sandbox):
        raise SandboxError("no engine")


@pytest.mark.parametrize(("most", "tried"), [(3, 3), (0, 9)])
async def test_process_stops_when_too_many_groups_fail_in_a_row(tmp_path, capsys, most, tried):
    env = processing(tmp_path, Nothing, group_size=2, max_failed_groups=most, max_concurrent_rollouts=1)
    assert await process(env, Console()) == 1
    assert len(list(read_groups(tmp_path / "out.jsonl"))) == tried
    told = capsys.readouterr().out
    assert ("stopped: 3 groups in a row were lost whole" in told) == (most == 3)
    assert ("stopped with 6 groups to go" in told) == (most == 3)


class OddFails(Nothing):
    """An environment some of whose items break every rollout."""

    async def prepare(self, item, sandbox):
        if int(item["id"]) % 2:
            raise SandboxError("odd")


async def test_what_failed_before_comes_last_and_is_no_sign_that_everything_fails(tmp_path):
    settings = {"group_size": 2, "max_failed_groups": 2, "max_concurrent_rollouts": 1}
    assert await process(processing(tmp_path, OddFails, total_steps=4, **settings), Console()) == 0
    assert await process(processing(tmp_path, OddFails, **settings), Console()) == 0
    tried = [int(credited.group.item_id) for credited in read_groups(tmp_path / "out.jsonl")][4:]
    assert sorted(tried[:5]) == [4, 5, 6, 7, 8]
    assert sorted(tried[5:]) == [1, 3]


async def test_a_rerun_takes_up_what_is_left_and_more_groups_than_items_go_round_again(tmp_path):
    before = b""
    for steps in ({"total_steps": 1}, {}, {"total_steps": 3}):
        assert await process(processing(tmp_path, **steps), Console()) == 0
        assert (tmp_path / "out.jsonl").read_bytes().startswith(before)
        before = (tmp_path / "out.jsonl").read_bytes()
    keys = [(each.group.item_id, each.group.epoch) for each in read_groups(tmp_path / "out.jsonl")]
    assert keys == [("hello", 0), ("world", 0), ("hello", 1)]


async def test_with_another_estimator_old_groups_keep_theirs_and_the_run_says_so(tmp_path, capsys):
    await process(processing(tmp_path, total_steps=1), Console())
    before = (tmp_path / "out.jsonl").read_bytes()
    await process(processing(tmp_path, estimator_params={"gamma": 0.5}), Console(width=500))
    assert (tmp_path / "out.jsonl").read_bytes().startswith(before)
    assert [each.estimator_params["gamma"] for each in read_groups(tmp_path / "out.jsonl")] == [1.0, 0.5]
    assert "keep the advantages of turn_return(" in capsys.readouterr().out


async def test_a_group_that_cannot_be_encoded_is_recorded_as_failed_with_its_reason(tmp_path):
    class Huge(WriteFile):
        def passed_on(self, group):
            first, *others = group.trajectories
            return replace(group, trajectories=(replace(first, seed=2**70), *others))

        async def rollout_group(self, task, size, **options):
            return self.passed_on(await super().rollout_group(task, size, **options))

    assert await process(processing(tmp_path, Huge), Console()) == 1
    failed = list(read_groups(tmp_path / "out.jsonl"))
    assert {each.reason for each in failed} == {"cannot be recorded: Integer exceeds 64-bit range"}
    assert [len(each.group.failures) for each in failed] == [1, 1]


async def test_atropos_own_page_reads_the_record(tmp_path):
    await process(processing(tmp_path), Console())
    code = "import sys; from atroposlib.frontend.jsonl2html import generate_html; generate_html(sys.argv[1])"
    page = await asyncio.create_subprocess_exec(sys.executable, "-c", code, "out.jsonl", cwd=tmp_path)
    assert await page.wait() == 0
    page = (tmp_path / "out.html").read_text()
    assert "Write hello into out.txt." in page


async def test_a_run_of_single_rollouts_is_refused_unless_it_is_said_what_they_get(tmp_path):
    with pytest.raises(CreditError, match="group_size is 1, and turn_return compares"):
        await process(processing(tmp_path, Nothing, group_size=1, min_group_size=1), Console())
