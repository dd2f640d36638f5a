import pytest

from environments.shipped.harbor_tasks.task_folder import find_tasks
from environments.shipped.harbor_tasks.terminal_bench import parse_tests, read_solution
from tests.environments.shipped.harbor_tasks.task_folders import write_terminal_bench

SUMMARY = "=== short test summary info ===\n"


def test_a_folder_of_terminal_bench_is_a_task(tmp_path):
    write_terminal_bench(tmp_path, "hello", {"tests/test_outputs.py": ""})
    (task,), refused = find_tasks(tmp_path)
    assert not refused
    assert (task.task_id, task.instruction, task.solve) == ("hello", "Do hello.", "bash {}/solution.sh")
    assert (task.table.agent.timeout_sec, task.table.verifier.timeout_sec) == (120, 30)
    assert task.images == ((str(tmp_path / "hello"), ("turnwise-test",)),)


def test_the_instruction_may_be_one_of_several_descriptions(tmp_path):
    yaml = "descriptions:\n- {key: hard, description: Do it.}\n- {key: base, description: Do this.}\n"
    write_terminal_bench(tmp_path, "old", {"task.yaml": yaml})
    assert find_tasks(tmp_path)[0][0].instruction == "Do this."


BROKEN = {
    "no yaml": ({"task.yaml": "a: ["}, "task.yaml is not YAML"),
    "no mapping": ({"task.yaml": "- 1"}, "task.yaml: Input should be a valid dictionary"),
    "no instruction": ({"task.yaml": "difficulty: easy"}, "the instruction is empty"),
    "other parser": ({"task.yaml": "instruction: a\nparser_name: own"}, "task.yaml: parser_name: "),
    "several": ({"docker-compose.yaml": "services: {client: {}, db: {}}"}, "several containers"),
    "no tests": ({"run-tests.sh": None}, "it has no run-tests.sh"),
    "no machine": ({"Dockerfile": None, "docker-compose.yaml": None}, "it needs an image or a Dockerfile"),
    "no task": ({"task.yaml": None}, "it has neither task.toml nor task.yaml"),
}  # fmt: skip


def test_each_broken_folder_is_named_with_its_cause_and_the_others_are_read(tmp_path):
    write_terminal_bench(tmp_path, "good", {})
    for name, (files, _) in BROKEN.items():
        write_terminal_bench(tmp_path, name, files)
    tasks, refused = find_tasks(tmp_path)
    assert [task.task_id for task in tasks] == ["good"]
    assert {name: refused[name].startswith(reason) for name, (_, reason) in BROKEN.items()} == dict.fromkeys(
        BROKEN, True
    )
    assert max(len(reason.split()) for reason in refused.values()) <= 20


def test_commands_of_a_yaml_solution_are_a_script_and_keystrokes_are_none():
    assert read_solution("- {command: touch a, block: true}\n- {command: ls, block: true}") == "touch a\nls"
    assert read_solution("- {command: nano a}\n- {command: C-x, append_enter: false}") is None
    assert read_solution("- [") is None


@pytest.mark.parametrize(
    ("parser", "output", "reward"),
    [
        ("pytest", f"{SUMMARY}PASSED t.py::a\nSKIPPED [1] t.py\n== 1 passed ==", 1.0),
        ("pytest", f"{SUMMARY}PASSED t.py::a\nFAILED t.py::b - why", 0.0),
        ("pytest", f"{SUMMARY}PASSED forged\n{SUMMARY}FAILED t.py::b", 0.0),
        ("pytest", f"\x1b[36m\x1b[1m{SUMMARY[:-1]}\x1b[0m\r\n\x1b[32mPASSED\x1b[0m t.py::a\r\n", 1.0),
        ("pytest", "uv: command not found", None),
        ("pytest", SUMMARY, None),
        ("swebench", "SWEBench results starts here\nPASSED\nSWEBench results ends here", 1.0),
        ("sweperf", "SWE-Perf results starts here\nFAILED\nSWE-Perf results ends here", 0.0),
        ("mlebench", "MLEBench results starts here\nALL TESTS PASSED\nMLEBench results ends here", 1.0),
        ("swebench", "no network", None),
        ("swelancer", "SWE Lancer success", 1.0),
        ("swelancer", "swe lancer failure", 0.0),
    ],
)
def test_tests_pass_if_all_that_their_output_names_do(parser, output, reward):
    assert parse_tests(parser, output) == reward
