from environments.config import AgentEnvConfig
from environments.policy.scripted import call, say
from environments.shipped.terminal_tasks import TerminalTasksEnv
from environments.shipped.terminal_tasks.env import TerminalTask, load_tasks
from tests.environments.written_policy import Written, rolled_out
from tests.tables import cases

TASKS = load_tasks()
NAMES = [task.task_id for task in TASKS]


async def score(task: TerminalTask, command: str) -> float:
    policy = Written(call("terminal", {"command": command}), say("Done."))
    env = TerminalTasksEnv(AgentEnvConfig(), policy=policy)
    return (await rolled_out(env, {"task_id": task.task_id, "task": task}))[0].score


@cases("task", TASKS, ids=NAMES)
async def test_the_known_command_solves_the_task(task: TerminalTask):
    assert await score(task, task.command) == 1.0


@cases("command", ["true", "mkdir greeting.txt", "ln -s /dev/zero greeting.txt", "mkfifo greeting.txt"])
async def test_what_is_no_file_solves_nothing(command: str):
    assert await score(TASKS[0], command) == 0.0


@cases(
    ("data", "right"),
    [
        (b"a\nb", True),
        (b"a\nb\n\n ", True),
        (b" a\nb", False),
        (b"a b", False),
        (b"\xff", False),
        (b"", False),
    ],
)
def test_text_is_compared_but_for_white_space_at_the_end(data: bytes, right: bool):
    task = TerminalTask(task_id="t", instruction="", path="p", expected="a\nb", command="")
    assert task.accepts(data) is right


@cases(
    ("data", "right"),
    [
        (b'{"b":true,"a":1}', True),
        (b'{"a": 1, "b": 1}', False),
        (b'{"a": "1", "b": true}', False),
        (b'{"a": 1}', False),
        (b"{", False),
        (b"[" * 100_000, False),
    ],
)
def test_json_is_compared_by_value_and_type(data: bytes, right: bool):
    task = TerminalTask(
        task_id="t", instruction="", path="p", expected='{"a": 1, "b": true}', command="", compare="json"
    )
    assert task.accepts(data) is right


async def test_a_skilled_agent_solves_what_a_clumsy_one_often_does_not():
    async def solved(skill: float) -> float:
        async with TerminalTasksEnv(AgentEnvConfig(scripted_skill=skill)) as env:
            played = [await env.rollout_group(task, 4) for task in env.tasks()[:5]]
        return sum(trajectory.score for group in played for trajectory in group.trajectories) / 20

    assert await solved(1.0) > 0.9 > 0.7 > await solved(0.0)
