import pytest

from environments.shipped.harbor_tasks.compose_file import read_service
from environments.shipped.harbor_tasks.task_toml import EnvironmentTable
from tools.errors import DatasetError

OF_TERMINAL_BENCH = """
services:
  client:
    build:
      dockerfile: Dockerfile
    image: ${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}
    container_name: ${T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME}
    command: [ "sh", "-c", "sleep infinity" ]
    environment:
      - TEST_DIR=${T_BENCH_TEST_DIR}
      - LEVEL=3
    volumes:
      - ${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}
      - ${T_BENCH_TASK_AGENT_LOGS_PATH}:${T_BENCH_CONTAINER_AGENT_LOGS_PATH}
"""
OF_HARBOR = """
services:
  main:
    build: {context: "${CONTEXT_DIR}"}
    image: ${MAIN_IMAGE_NAME}
    command: sh -c "sleep infinity"
    environment: {TEST_DIR: "${TEST_DIR}", KEY: null}
    working_dir: /srv
    network_mode: none
"""


def test_the_compose_file_of_terminal_bench_is_its_dockerfile_and_variables(tmp_path):
    service = read_service(OF_TERMINAL_BENCH, file="docker-compose.yaml")
    machine = service.on(EnvironmentTable())
    assert service.context(tmp_path) == tmp_path
    assert (machine.docker_image, machine.env) == (None, {"TEST_DIR": "/tests", "LEVEL": "3"})


def test_what_a_service_sets_replaces_the_environments_own(tmp_path):
    machine = read_service(OF_HARBOR, file="docker-compose.yaml").on(
        EnvironmentTable(docker_image="a", env={"OWN": "1"})
    )
    assert (machine.docker_image, machine.workdir) == ("a", "/srv")
    assert machine.env == {"OWN": "1", "TEST_DIR": "/tests", "KEY": "${KEY}"}
    assert machine.is_offline


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("services: {a: {}, b: {}}", "several containers"),
        ("services: {}", "services: Dictionary should have at least 1 item"),
        ("services: 3", "services: Input should be a valid dictionary"),
        ("a: [", "compose.yaml is not YAML"),
        ("[" * 200_000, "compose.yaml is not YAML"),
        ("", "should be a valid dictionary"),
        (f"a: &a [1]\nb: [{'*a,' * 9}]", "compose.yaml is not YAML: more than 8 aliases"),
        ("services: {a: {privileged: true}}", "has privileged: not supported"),
        ("services: {a: {command: nginx}}", "has command 'nginx': not supported"),
        ("services: {a: {volumes: ['./data:/data']}}", "has the volume ./data:/data: not supported"),
        ("services: {a: {volumes: ['/etc:/etc']}}", "has the volume /etc:/etc: not supported"),
        ("services: {a: {build: {dockerfile: other}}}", "has dockerfile other: not supported"),
        ("services: {a: {network_mode: host}}", "services.a.network_mode: Input should be 'none'"),
        ("services: {a: {deploy: {resources: {reservations: {devices: []}}}}}", "has devices"),
    ],
)
def test_what_one_container_cannot_do_is_refused_by_name(text, reason):
    with pytest.raises(DatasetError, match=reason):
        read_service(text, file="compose.yaml")


def test_a_service_is_built_in_its_tasks_folder_alone(tmp_path):
    service = read_service("services: {a: {build: ../other}}", file="compose.yaml")
    with pytest.raises(DatasetError, match=r"builds '../other', which is not in the task's folder"):
        service.context(tmp_path)
