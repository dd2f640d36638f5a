"""The rewards of a record, computed again: the judge is not asked anew."""

from environments.judged_writing_env import JudgedWritingEnv
from environments.judged_writing_env.env import JudgedWritingConfig
from environments.record.recorder import read_contents, read_groups
from environments.run.process_run import process
from environments.run.rescore_run import rescore
from tests.environments.write_file import quiet


class Away(JudgedWritingEnv):
    """Nobody judges any more."""

    def scripted_judge(self, item, messages):
        raise OSError("the judge is away")


def rewards_in(path):
    return [one.rewards for group in read_groups(path) for one in group.group.trajectories]


async def test_the_answers_of_the_judge_are_those_of_the_record(tmp_path):
    record, again = tmp_path / "w.jsonl", tmp_path / "again.jsonl"
    config = JudgedWritingConfig(max_items=3, data_path_to_save_groups=str(record))
    await process(JudgedWritingEnv(config), quiet())
    await rescore(Away(config), record, read_contents(record), again, quiet())
    assert rewards_in(again) == rewards_in(record)
    assert len(rewards_in(again)) == 12
