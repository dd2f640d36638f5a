"""The exit codes of runs, and one line for what ends them before or between rollouts."""

import os
import signal

import pytest

from environments.config import AgentEnvConfig
from environments.record.recorder import artefacts_of, new_record
from environments.record.run_folder import Shard
from environments.run.evaluation_run import evaluate
from environments.run.open_run import RunOptions
from environments.run.process_run import FAILED, WITHOUT_REWARD, process
from tests.environments.chat.chat_env import Chat, chat
from tests.environments.write_file import quiet
from tests.equipment.commands import turnwise
from tools.errors import RecordError


class Unscored(Chat):
    async def score_turn(self, item, turn, ctx):
        return None


class OnceScored(Chat):
    async def score_turn(self, item, turn, ctx):
        return 1.0 if item["id"] == "a" and turn.index == 0 and ctx.seed % 2 else None


class Failing(Chat):
    async def score_turn(self, item, turn, ctx):
        raise ConnectionError("no database")


class FailingOnce(Chat):
    async def score_turn(self, item, turn, ctx):
        if item["id"] == "c":
            raise ConnectionError("no database")
        return await super().score_turn(item, turn, ctx)


PROCESS = {
    "all scored": (Chat, {}, {}, 0),
    "one group failed": (FailingOnce, {}, {}, 0),
    "every group failed": (Failing, {}, {}, FAILED),
    "nothing scored": (Unscored, {}, {}, WITHOUT_REWARD),
    "one reward in all": (OnceScored, {"group_size": 16}, {}, 0),
    "nothing scored in two groups": (Unscored, {"max_items": 2}, {}, 0),
    "nothing scored in a shard": (
        Unscored,
        {"total_steps": 6},
        {"shard": Shard(index=0, count=2), "name": "s"},
        0,
    ),
}


@pytest.mark.parametrize(("cls", "fields", "options", "code"), PROCESS.values(), ids=PROCESS)
async def test_a_run_of_process_ends_with_the_code_of_its_work_at_every_start(
    tmp_path, monkeypatch, cls, fields, options, code
):
    monkeypatch.chdir(tmp_path)
    if not options:
        fields = {"data_path_to_save_groups": "r.jsonl"} | fields
    for _ in range(2):
        assert await process(chat(cls, **fields), quiet(), options=RunOptions(**options)) == code


async def test_an_evaluation_without_a_reward_has_done_its_work(tmp_path):
    env = chat(Unscored, data_dir_to_save_evals=str(tmp_path), eval_rollouts=2)
    env.passed = lambda item, trajectory: False
    assert await evaluate(env, quiet()) == 0


class Signalled(Chat):
    """Sends its own process a signal in the second rollout."""

    number = signal.SIGUSR1

    async def score_turn(self, item, turn, ctx):
        if item["id"] == "b":
            os.kill(os.getpid(), self.number)
        return 0.0


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2], ids=lambda each: each.name
)
async def test_a_signal_ends_a_run_in_order_and_is_named(tmp_path, number):
    console = quiet()
    env = chat(
        Signalled,
        number=number,
        data_path_to_save_groups=str(tmp_path / "r.jsonl"),
        max_concurrent_rollouts=1,
        group_size=2,
    )
    assert await process(env, console) == 128 + number
    assert f"stopped by {number.name} with " in console.file.getvalue()


ENV = """
import os, signal
from turnwise import AgentEnv
class Early(AgentEnv):
    name = "early"
    async def load_items(self):
        os.kill(os.getpid(), signal.{name})
        return [{{"id": "a"}}]
    def format_prompt(self, item):
        return "?"
    async def compute_reward(self, item, trajectory, ctx):
        return 0.0
"""


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2"])
def test_a_signal_before_the_first_rollout_ends_the_run_in_one_line(tmp_path, name):
    (tmp_path / "early.py").write_text(ENV.format(name=name))
    ended = turnwise("process", "early.py:Early", "--out", "r.jsonl", cwd=tmp_path)
    assert ended.returncode == 128 + getattr(signal, name)
    assert ended.stderr == f"turnwise: ended by {name}; the same command tries again\n"


@pytest.mark.parametrize("kind", ["file", "link"])
async def test_what_is_no_folder_where_artefacts_go_is_found_before_the_first_rollout(tmp_path, kind):
    path = tmp_path / "r.jsonl"
    artefacts = artefacts_of(path)
    if kind == "file":
        artefacts.write_text("mine")
    else:
        artefacts.symlink_to(tmp_path / "nowhere")

    class Never(Chat):
        async def score_turn(self, item, turn, ctx):
            raise AssertionError("a rollout began")

    with pytest.raises(RecordError, match=rf"^{artefacts} is not a folder"):
        await process(chat(Never, data_path_to_save_groups=str(path)), quiet())
    assert not path.exists()
    with pytest.raises(RecordError, match="is not a folder"), new_record(path, doing="import"):
        pass


def test_settings_that_name_files_know_the_home_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    names = ("dataset_path", "data_path_to_save_groups", "data_dir_to_save_evals", "tokenizer_name")
    config = AgentEnvConfig(**dict.fromkeys(names, "~/x"))
    assert [getattr(config, name) for name in names] == [str(tmp_path / "x")] * 4
