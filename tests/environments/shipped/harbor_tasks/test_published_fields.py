"""Folders with every field that the published format has, in the values that people write, are listed."""

# ruff: noqa: E501  # a table is a line

from itertools import product

from environments.shipped.harbor_tasks.task_folder import find_tasks
from tests.environments.shipped.harbor_tasks.task_folders import write_task

HEADS = ('version = "1.0"', 'schema_version = "1.4"\n[task]\nname = "org/a"\nkeywords = ["x"]', "")
METADATA = ('[metadata]\nauthor_name = "A"\ndifficulty = "easy"\ntags = ["a"]\ncustom = {a = 1}', "")
VERIFIER = (
    "[verifier]\ntimeout_sec = 900",
    '[verifier]\ntimeout_sec = 120.5\nuser = "root"\n[verifier.env]\nOPENROUTER_API_KEY = "${OPENROUTER_API_KEY}"',
    '[verifier.env]\nMODEL = "${MODEL:-small}"\nN = 3',
)
AGENT = ("[agent]\ntimeout_sec = 900.0", "[agent]\nuser = 0", "")
ENVIRONMENT = (
    '[environment]\nbuild_timeout_sec = 600.0\ncpus = 1\nmemory = "2G"\nstorage = "10G"',
    "[environment]\ncpus = 2\nmemory_mb = 4096\nstorage_mb = 10240\ngpus = 0\nallow_internet = true\nmcp_servers = []",
    '[environment]\nnetwork_mode = "no-network"\nskills_dir = "/skills"\ngpu_types = []\nos = "linux"',
    '[environment.env]\nOPENAI_API_KEY = "${OPENAI_API_KEY}"\nLEVEL = "3"',
    '[environment]\ndocker_image = "org/image:tag"\nworkdir = "/app"',
)
SOLUTION = ('[solution.env]\nKEY = "${KEY}"', "")
COMPOSE = (
    None,
    "services:\n  main:\n    environment:\n      - A=1\n",
    "services: {main: {build: {context: .}}}",
)


def test_folders_of_all_published_fields_are_listed(tmp_path):
    files = {"environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\n", "solution/solve.sh": "echo $KEY"}
    listed = [*product(VERIFIER, ENVIRONMENT, COMPOSE)]
    for number, (verifier, environment, compose) in enumerate(listed):
        others = (each[number % len(each)] for each in (HEADS, METADATA, AGENT, SOLUTION))
        more = {} if compose is None else {"environment/docker-compose.yaml": compose}
        toml = "\n".join([*others, verifier, environment])
        write_task(tmp_path, f"t{number}", {**files, **more}, test="pytest /tests", toml=toml)
    tasks, refused = find_tasks(tmp_path)
    assert not refused
    assert len(tasks) == len(listed)
