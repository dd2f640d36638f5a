"""A reward that rests on the database is not computed again without it."""

import pytest

from environments.record.recorder import read_contents, read_groups
from environments.retail_env import RetailEnv
from environments.retail_env.env import RetailConfig
from environments.run.process_run import process
from environments.run.rescore_run import rescore
from tests.environments.write_file import quiet
from tools.errors import UsageError


async def test_the_record_keeps_what_the_customer_was_asked_and_rescore_refuses(tmp_path):
    record, again = tmp_path / "r.jsonl", tmp_path / "again.jsonl"
    config = RetailConfig(max_items=2, data_path_to_save_groups=str(record))
    await process(RetailEnv(config), quiet())
    assert all(one.user_calls for group in read_groups(record) for one in group.group.trajectories)
    with pytest.raises(UsageError, match=r"score_turn uses ctx\.state"):
        await rescore(RetailEnv(config), record, read_contents(record), again, quiet())
