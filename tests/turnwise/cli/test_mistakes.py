"""Mistakes in an environment's class, as `process` answers them: with what to write instead."""

import pytest

from tests.equipment.commands import turnwise

ENV = """
from turnwise import AgentEnv, AgentEnvConfig
class Mine(AgentEnv):
    name = "mine"
    sandbox = "none"
    def load_items(self):
        return [{{"id": each, "question": "?"}} for each in "abcd"]
    def format_prompt(self, item):
        return item["question"]
    def compute_reward(self, item, trajectory, ctx):
        return float(trajectory.sibling)
{body}
"""

RAISED = {
    "a key that the item lacks": (
        "    def format_prompt(self, item): return item['questoin']",
        [
            "KeyError: 'questoin'; the item has 'id', 'question' (mine.py:",
            "3x KeyError: 'questoin' (mine.py:",
        ],
    ),
    "the content of a turn": (
        "    def train_turn(self, item, turn, ctx): return turn.content",
        ["what the model wrote is turn.message.content"],
    ),
    "a turn as a dict": (
        "    def train_turn(self, item, turn, ctx): return turn['message']",
        ["what the model wrote is turn.message.content"],
    ),
    "the content of a trajectory": (
        "    def compute_reward(self, item, trajectory, ctx): return len(trajectory.content)",
        ["what the model wrote is trajectory.turns[-1].message.content"],
    ),
    "a dict as a reply": (
        "    def respond(self, item, turn, ctx): return {'text': 'go on: now'}",
        ["ConfigError: respond gave {'text': 'go on: now'}\n"],
    ),
    "a library that cannot read what it is given": (
        "    def train_turn(self, item, turn, ctx): return __import__('json').loads('no')",
        ["(char 0) (mine.py:12 in train_turn)", "mine.py:12 in train_turn dropped 100% of all rollouts"],
    ),
    "a message of many words": (
        "    def train_turn(self, item, turn, ctx): raise ValueError('many words' * 40)",
        ["mine.py:12 in train_turn dropped 100% of all rollouts"],
    ),
}


def played(folder, body, *options):
    (folder / "mine.py").write_text(ENV.format(body=body))
    return turnwise("process", "mine.py", "--out", "r.jsonl", *options, cwd=folder)


@pytest.mark.parametrize(("body", "said"), RAISED.values(), ids=RAISED)
def test_an_error_of_a_hook_says_what_to_write(tmp_path, body, said):
    ended = played(tmp_path, body)
    assert ended.returncode == 1
    assert [each for each in said if each not in ended.stderr + ended.stdout] == []


def test_a_forgotten_await_that_breaks_a_hook_is_its_error_alone(tmp_path):
    body = (
        "    sandbox = 'local'\n"
        "    async def compute_reward(self, item, trajectory, ctx):\n"
        "        result = ctx.sandbox.exec('true')\n"
        "        return float(result.exit_code)\n"
    )
    said = played(tmp_path, body).stderr
    assert "is `await` missing, as in" in said
    assert "never awaited" not in said


def test_a_forgotten_await_that_breaks_nothing_is_one_line(tmp_path):
    body = (
        "    sandbox = 'local'\n    def prepare(self, item, sandbox):\n        sandbox.write_file('a', b'')\n"
    )
    ended = played(tmp_path, body)
    lines = [line for line in ended.stderr.splitlines() if "never awaited" in line]
    assert lines == [
        "mine.py:14: coroutine 'SupervisedSandbox.write_file' was never awaited; is `await` missing?"
    ]
    assert ended.returncode == 0


def test_a_forgotten_await_is_shown_in_a_folder_that_has_a_name_of_ours(tmp_path):
    (tmp_path / "tools").mkdir()
    body = "    sandbox = 'local'\n    def prepare(self, item, sandbox): sandbox.write_file('a', b'')"
    (tmp_path / "tools" / "mine.py").write_text(ENV.format(body=body))
    ended = turnwise("process", "mine.py", "--out", "r.jsonl", cwd=tmp_path / "tools")
    assert ended.stderr.count("never awaited") == 1


REFUSED = {
    "a list as the system prompt": (
        "    system_prompt = ['Be brief.']",
        "system_prompt is ['Be brief.']; give a text",
    ),
    "a property as the dataset": (
        "    @property\n    def dataset_path(self): return 'items.jsonl'",
        "Mine.dataset_path is <property",
    ),
    "a text as the packages": ("    packages = 'numpy'", "give a tuple of names, ('numpy',)"),
    "a setting that does not exist": (
        "    @classmethod\n    def config_init(cls): return AgentEnvConfig(max_turn=3), []",
        "there is no setting 'max_turn'; did you mean 'max_turns'?",
    ),
}


@pytest.mark.parametrize(("body", "said"), REFUSED.values(), ids=REFUSED)
def test_an_attribute_of_another_kind_is_refused_before_the_first_rollout(tmp_path, body, said):
    ended = played(tmp_path, body)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert said in ended.stderr


def test_what_is_wrong_with_the_result_of_a_hook_has_no_traceback_of_ours(tmp_path):
    ended = played(tmp_path, "    def score_group(self, item, trajectories, ctx): return [1.0]")
    assert "score_group gave 1 rewards for 4 siblings" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "4x refused: score_group broke: RewardError: score_group gave N rewards" in ended.stdout


HOOKS_ELSEWHERE = {
    "env_response": "respond (a chat), or a tool",
    "is_completed": "ctx.end",
    "setup_state": "prepare",
    "score_rollout": "compute_reward",
    "reset": "prepare",
    "step": "respond",
}


@pytest.mark.parametrize(("name", "ours"), HOOKS_ELSEWHERE.items())
def test_a_hook_of_another_library_is_refused_with_ours(tmp_path, name, ours):
    ended = played(tmp_path, f"    async def {name}(self, *args): return 1.0")
    assert ended.returncode == 2
    assert f"{name} is no hook here and nothing in its module calls it; write {ours}" in ended.stderr


@pytest.mark.parametrize(
    "body",
    [
        "    def step(self): return 1.0\n    def train_turn(self, item, turn, ctx): return self.step() > 0",
        "    reset = 3",
        "    @property\n    def step(self): return 3",
    ],
    ids=["called", "a value", "a property"],
)
def test_a_name_of_another_librarys_hook_is_free_for_other_uses(tmp_path, body):
    assert played(tmp_path, body).returncode == 0


USERS_BASE = """
from turnwise import AgentEnv
class Base(AgentEnv):
    def verify(self, item): raise NotImplementedError
    def compute_reward(self, item, trajectory, ctx): return self.step(item) + self.verify(item)
"""


def test_what_a_base_class_in_another_module_calls_is_free(tmp_path):
    (tmp_path / "base.py").write_text(USERS_BASE)
    body = (
        "from base import Base\n"
        "class Second(Base, Mine):\n"
        "    name = 'second'\n"
        "    def verify(self, item): return 1.0\n"
        "    def step(self, item): return 1.0\n"
    )
    (tmp_path / "mine.py").write_text(ENV.format(body=body))
    ended = turnwise("process", "mine.py:Second", "--out", "r.jsonl", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_a_key_that_another_dict_lacks_is_not_looked_for_in_the_item(tmp_path):
    body = "    def train_turn(self, item, turn, ctx):\n        return {}['first']"
    assert "KeyError: 'first' (mine.py:" in played(tmp_path, body).stderr


def test_the_floor_is_named_once_with_the_score_that_it_should_be(tmp_path):
    body = "    def compute_reward(self, item, trajectory, ctx): return -trajectory.sibling / 10"
    ended = played(tmp_path, body, "--env.group_size", "4")
    lines = [line for line in (ended.stdout + ended.stderr).splitlines() if "failed_score" in line]
    assert [line.rpartition("; ")[2].rpartition(": ")[2] for line in lines] == ["set failed_score = -0.3"]


BODY = "    def compute_reward(self, item, trajectory, ctx): return -0.9 + trajectory.sibling / 10"


@pytest.mark.parametrize(
    ("body", "place"),
    [(BODY, 6), (f"    failed_score = 0\n{BODY}", 12)],
    ids=["below the attributes", "in place of another"],
)
def test_check_writes_the_floor_that_it_proposes_into_the_class(body, place, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(ENV.format(body=body))
    assert (
        f"now stands in Mine, mine.py:{place}" in turnwise("check", "mine.py", "--write", cwd=tmp_path).stdout
    )
    assert path.read_text().splitlines()[place - 1] == "    failed_score = -0.9"


def test_check_changes_nothing_but_the_floor(tmp_path):
    path = tmp_path / "mine.py"
    text = ENV.format(body=f"    failed_score_note = 'x\\x0c'\n{BODY}").replace("\\x0c", "\x0c")
    path.write_text(text, newline="\r\n")
    assert "now stands in Mine" in turnwise("check", "mine.py", "--write", cwd=tmp_path).stdout
    lines = path.read_bytes().decode().split("\r\n")
    lines.remove("    failed_score = -0.9")
    assert "\n".join(lines) == text


def test_check_says_that_a_class_has_no_source_to_write_into(tmp_path):
    made = ENV.format(body=BODY) + "Made = type('Made', (Mine,), {'__module__': __name__})\n"
    (tmp_path / "mine.py").write_text(made)
    done = turnwise("check", "mine.py:Made", "--write", cwd=tmp_path)
    assert "could not be written into the source of Made" in " ".join(done.stdout.split())
    assert "Traceback" not in done.stderr
    assert (tmp_path / "mine.py").read_text() == made


def test_check_writes_nothing_without_being_asked(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(text := ENV.format(body=BODY))
    assert "--write puts it into the class" in turnwise("check", "mine.py", cwd=tmp_path).stdout
    assert path.read_text() == text


def test_what_rollouts_set_on_the_environment_is_named_at_the_end(tmp_path):
    body = "    def prepare(self, item, sandbox): self.current = item"
    ended = played(tmp_path, body, "--env.max_concurrent_rollouts", "1")
    assert "rollouts set self.current, which all of them share" in ended.stdout + ended.stderr


def test_check_names_what_rollouts_set_on_the_environment(tmp_path):
    body = "    def prepare(self, item, sandbox): self.current = item['id']"
    (tmp_path / "mine.py").write_text(ENV.format(body=body))
    done = turnwise("check", "mine.py", cwd=tmp_path)
    assert "rollouts set self.current, which all of them share" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    "table",
    [
        "    def setup(self): self.table = {}\n",
        "    @__import__('functools').cached_property\n    def table(self): return {}\n",
        "    kept = None\n"
        "    @property\n"
        "    def table(self):\n"
        "        self.kept = self.kept or {'filled': 1}\n"
        "        return self.kept\n",
        "    table, step = {}, 0\n"
        "    def next_items(self, history):\n"
        "        self.step += 1\n"
        "        return ['a'] if self.step < 3 else None\n",
    ],
    ids=["setup", "a cached property", "a cache", "a curriculum"],
)
def test_what_belongs_to_all_rollouts_is_nobodys_fault(tmp_path, table):
    body = f"{table}    def prepare(self, item, sandbox): self.table[item['id']] = 1\n"
    ended = played(tmp_path, body)
    assert "rollouts set" not in ended.stdout + ended.stderr


def test_checks_that_need_an_open_environment_are_one_line(tmp_path):
    (tmp_path / "mine.py").write_text(ENV.format(body="    def load_items(self): return open('/none')"))
    ended = turnwise("check", "mine.py", cwd=tmp_path)
    assert ended.stdout.endswith("\n14 more checks need an environment that opens\n")
    assert "skipped" not in ended.stdout


def test_a_summary_says_what_a_rollout_costs(tmp_path):
    line = next(line for line in played(tmp_path, "").stdout.splitlines() if line.startswith("a rollout "))
    assert "tokens sampled" in line
    assert line.endswith("on average")
