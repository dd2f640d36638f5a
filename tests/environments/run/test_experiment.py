"""The fingerprint of an experiment: equal however it is started, another for whatever decides how it goes."""

import shutil
import sys
from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field, SecretStr

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig, ServerConfig
from environments.record.origin import differences
from environments.record.recorder import Recorder, read_contents, read_groups
from environments.run.experiment import ADDED, NOT_COUNTED, code_facts, has_file, origin_of
from environments.shipped.word_guess import WordGuessEnv
from tests.environments.record.recorded import TWO, credited
from tests.environments.write_file import WriteFile, made
from tests.equipment.commands import python
from tools.errors import RecordError

HELPER = '''
"""Helps."""
def bonus():
    return 0.5
'''
ENV = '''
from turnwise import AgentEnv, AgentEnvConfig, ServerConfig, tool, Sandbox
import helper

KINDS = {"alpha", "beta", "gamma", "delta"}

@tool
async def look(sandbox: Sandbox) -> str:
    """Look around."""
    return "nothing"

class MyEnv(AgentEnv):
    name = "my"
    tools = (look,)
    system_prompt = "Be brief."

    async def load_items(self):
        return [{"id": str(number), "kinds": KINDS} for number in range(2)]

    def format_prompt(self, item):
        return f"What is {item['id']}?"

    async def compute_reward(self, item, trajectory, ctx):
        import judge
        return helper.bonus() * trajectory.sibling  # no comment counts

if __name__ == "__main__":
    MyEnv.cli()
'''
FLAGS = ("--env.group_size", "2", "--env.allow_unsafe_sandbox", "true")


def project(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"helper.py": HELPER, "judge.py": "MARK = 1\n", "my_env.py": ENV}.items():
        (folder / name).write_text(text)
    return folder


def run(folder, *options, how=("-m", "turnwise", "process", "my_env.py"), **variables):
    return python(*how, "--out", folder / "r.jsonl", *FLAGS, *options, cwd=folder, **variables)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A project with a record, as a template."""
    folder = project(tmp_path_factory.mktemp("experiment") / "project")
    done = run(folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def again(recorded, tmp_path):
    """The project in another place."""
    return shutil.copytree(recorded, tmp_path / "elsewhere" / "copy")


def test_the_same_experiment_goes_on_by_another_command_path_and_hash_seed(again):
    for how in (("my_env.py", "process"), ("-m", "turnwise", "process", "my_env.py:MyEnv")):
        done = run(again, how=how, PYTHONHASHSEED="7")
        assert (done.returncode, done.stderr) == (0, "")
        assert "all 2 groups are already in" in " ".join(done.stdout.split())


def test_a_record_says_once_what_its_fingerprint_stands_for(recorded):
    path = recorded / "r.jsonl"
    (fingerprint,) = {each.group.fingerprint for each in read_groups(path)}
    assert set(read_contents(path).origins) == {fingerprint}
    assert path.read_bytes().count(b'"origin":') == 1


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("my_env.py", "* trajectory", "- trajectory", "code of my_env.py changed"),
        pytest.param("my_env.py", "What is", "Who is", "code of my_env.py changed", marks=pytest.mark.soak),
        ("my_env.py", "Look around.", "Look closely.", "tool look changed"),
        ("my_env.py", "Be brief.", "Be long.", "system prompt changed"),
        ("helper.py", "0.5", "0.25", "code of helper.py changed"),
        ("judge.py", "1", "2", "code of judge.py changed"),
        ("my_env.py", '{"id": str', '{"n": 1, "id": str', "item '0' changed; item '1' changed"),
        ("my_env.py", "range(2)", "range(1, 3)", "item '0' is gone"),
    ],
)
def test_another_experiment_is_refused_in_one_line_that_names_what_changed(again, file, old, new, says):
    path = again / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    before = (again / "r.jsonl").read_bytes()
    done = run(again)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert says in line
    assert "choose another --out, start over with --fresh, or go on all the same with --accept" in line
    assert (again / "r.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--env.seed", "1"), "seed was 0, is 1"),
        pytest.param(("--env.max_turns", "3"), "max_turns was 10, is 3", marks=pytest.mark.soak),
        (("--env.scripted_skill", "0.1"), "policy was scripted:0.6, is scripted:0.1"),
    ],
)
def test_another_setting_is_refused_by_its_name(again, options, says):
    done = run(again, *options)
    assert done.returncode == 2
    assert says in done.stderr


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("my_env.py", "  # no comment counts", ""),
        ("helper.py", "def bonus():\n    return 0.5", "def bonus(): return 0.5"),
    ],
)
def test_comments_and_layout_are_no_difference(again, file, old, new):
    path = again / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    assert run(again).returncode == 0


# Within one process.

OTHER_VALUES = {
    "group_size": 5,
    "tokenizer_name": "other",
    "max_token_length": 100,
    "dataset_name": "d",
    "dataset_config": "c",
    "dataset_split": "test",
    "seed": 1,
    "max_turns": 3,
    "max_tokens_per_turn": 5,
    "on_cut": "respond",
    "branch_at": 3,
    "token_budget": 77,
    "min_group_size": 1,
    "scripted_skill": 0.1,
    "enabled_toolsets": ["file"],
    "tool_output_chars": 300,
    "sandbox": "docker",
    "sandbox_image": "x",
    "sandbox_memory_mb": 99,
    "sandbox_network": "full",
    "allow_unsafe_sandbox": True,
    "missing_outcome": "drop",
}


@pytest.fixture
def no_code(monkeypatch):
    """The code counts in tests of its own: reading all of this suite takes seconds."""
    monkeypatch.setattr("environments.run.experiment.counted_files", lambda *_, **__: {})
    monkeypatch.setattr("environments.run.experiment.code_facts", lambda *_: {})


class ReadsDataset(WriteFile):
    load_items = AgentEnv.load_items


def facts(**settings):
    env = made(ReadsDataset, **settings)
    return origin_of(env).facts()


def test_each_setting_that_shapes_a_rollout_makes_another_experiment(no_code):
    usual = facts()
    seen = {
        name: differences(usual, facts(**{name: value}))
        for name, value in OTHER_VALUES.items()
        if name != "tokenizer_name"
    }
    said = {name: f"{name} is new" if name in ADDED else f"{name} was" for name in seen}
    assert [name for name in seen if not any(each.startswith(said[name]) for each in seen[name])] == []
    assert seen.keys() <= AgentEnvConfig.model_fields.keys()


def test_where_how_fast_and_how_much_is_no_other_experiment(no_code):
    usual = facts()
    settings: list[dict[str, object]] = [
        {"max_items": 1},
        {"total_steps": 3},
        {"max_concurrent_rollouts": 2},
        {"tool_timeout_s": 3.0},
        {"rollout_timeout_s": 9.0},
        {"estimator": "grpo"},
        {"estimator_params": {"gamma": 0.5}},
        {"credit_view": "turn_rows"},
        {"use_wandb": True},
        {"rollout_server_url": "http://a", "rollout_server_token": "t"},
        {"pass_score": 0.5},
        {"data_path_to_save_groups": "a"},
    ]
    assert [each for each in settings if facts(**each) != usual] == []


def test_a_setting_that_older_records_lack_is_no_fact_by_default(no_code):
    assert facts().keys() & ADDED == set()


def test_every_setting_that_is_not_counted_exists(no_code):
    assert set(AgentEnvConfig.model_fields) >= NOT_COUNTED | ADDED


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("server_type", "chat"),
        ("family", "chatml"),
        ("context_tokens", 99),
        ("extra_body", {"top_k": 20}),
        ("constraints", "enforce"),
    ],
    ids=["server_type", "family", "context_tokens", "extra_body", "constraints"],
)
def test_how_a_model_server_samples_makes_another_experiment(no_code, name, value):
    changed = differences(asked(), asked(**{name: value}))
    # What shapes the distribution is in the policy's name, too.
    named = ["policy was m, is m top_k=20"] if name == "extra_body" else []
    assert sorted(changed) == sorted([f"{name} is new", *named])


def test_constraints_count_without_a_server_too_and_the_default_is_no_other_experiment(no_code):
    def of(constraints):
        return origin_of(made(servers=[ServerConfig(constraints=constraints)])).facts()

    assert differences(of("ask"), origin_of(made()).facts()) == []
    assert differences(of("ask"), of("refuse")) == ["constraints is new"]


def asked(**settings):
    server = ServerConfig(**{"base_url": "http://a/v1", "model_name": "m", **settings})
    return origin_of(made(servers=[server])).facts()


def test_a_dataset_counts_by_its_content_not_its_path(no_code, tmp_path):
    paths = [tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.jsonl")]
    for path, text in zip(paths, ("{}", "{}", "[]"), strict=True):
        path.write_text(text)
    same, copy, other = (facts(dataset_path=str(path)) for path in paths)
    assert differences(same, copy) == []
    assert differences(same, other) == ["dataset changed"]


class OwnConfig(AgentEnvConfig):
    judge_api_key: str = "s3cret"
    judge_url: str = "http://u:s3cret@judge"
    judge_token: str = "s3cret"
    judge_headers: dict[str, str] = Field(default={"Authorization": "s3cret"})
    judged_at: str = Field(default="s3cret", repr=False)
    password: SecretStr = SecretStr("s3cret")
    level: Literal["easy", "hard"] = "easy"
    cost: float = 0.5


def own_facts(**settings):
    env = made()
    env.config = OwnConfig(**settings)
    return origin_of(env).facts()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"level": "hard"}, ['level was "easy", is "hard"']),
        ({"cost": 1.0}, ["cost was 0.5, is 1.0"]),
        ({"judge_token": "n3w"}, ["judge_token changed"]),
        ({"judge_headers": {"Authorization": "n3w"}}, ["judge_headers changed"]),
        ({"judge_api_key": "n3w", "judged_at": "n3w", "judge_url": "n3w", "password": "n3w"}, []),
    ],
)
def test_a_setting_of_an_environments_own_counts_and_its_text_is_not_shown(no_code, settings, says):
    assert differences(own_facts(), own_facts(**settings)) == says


def told(text):
    names = {"__name__": "__console__"}
    exec(text, names)  # a notebook's cell
    return names["A"]


def test_a_class_without_a_file_counts_by_its_functions():
    text = "def helped(): return 1\nclass A:\n  def f(self): return helped() in {'a', 'b'}\n"
    one, same = told(text), told(text)
    assert not has_file(one)
    assert code_facts(one) == code_facts(same)
    for old, new in (("1", "2"), ("'a'", "'c'")):
        assert code_facts(told(text.replace(old, new))) != code_facts(one)


TOLD = """
from turnwise import State, Toolset, tool
@tool
def add(n: int) -> int:
    'Add.'
    return n + 1
class Shop(State):
    START = 3
    @tool
    def look(self) -> str:
        'Look.'
        return 'tea'
class Larger(Shop):
    pass
class A:
    tools = (Toolset('sums', (add,)), Larger)
"""


@pytest.mark.parametrize(("old", "new"), [("n + 1", "n + 2"), ("= 3", "= 4"), ("'tea'", "'cups'")])
def test_a_class_without_a_file_counts_by_its_tools_and_states(old, new):
    one, same, other = (told(text) for text in (TOLD, TOLD, TOLD.replace(old, new)))
    assert code_facts(one) == code_facts(same) != code_facts(other)


async def test_a_file_that_only_failed_groups_are_in_takes_any_experiment(no_code, tmp_path):
    with Recorder(tmp_path / "r.jsonl") as recorder:
        recorder.begin(origin_of(made()))
        recorder.append(credited(TWO, status="failed"))
    with Recorder(tmp_path / "r.jsonl") as recorder:
        recorder.begin(origin_of(made(seed=1)))
        recorder.append(credited(TWO))
    with Recorder(tmp_path / "r.jsonl") as recorder, pytest.raises(RecordError, match="seed was 1, is 0"):
        recorder.begin(origin_of(made()))


def test_the_classes_that_an_environment_inherits_from_turnwise_count_by_their_version():
    bare = type("Bare", (AgentEnv,), {"name": "bare", "__module__": "a notebook"})
    assert list(code_facts(bare)) == ["code of class Bare"]


def test_a_shipped_environment_counts_by_its_own_folder():
    facts = code_facts(WordGuessEnv)
    folder = Path(sys.modules[WordGuessEnv.__module__].__file__).parent
    assert "code of env.py" in facts
    assert all((folder / name.partition(" of ")[2]).is_file() for name in facts)
