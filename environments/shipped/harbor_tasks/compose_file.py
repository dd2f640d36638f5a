"""Compose files of one service: values of a task, and names of what one container here cannot do."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from environments.shipped.harbor_tasks.task_toml import EnvironmentTable, validate
from tools.errors import DatasetError

COMPOSE_FILES = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
_TESTS = re.compile(r"\$\{(T_BENCH_)?TEST_DIR\}")
_HARMLESS = re.compile(
    r"\$\{(T_BENCH_TASK|HOST)_\w*LOGS_PATH\}:.*|\.?/?tests/?:/tests(:ro)?|[\w-]+:/\S+|/[^:\s]+"
)
"""Volumes that can be ignored: of the harness's logs, of the tests, and those that are empty at the start."""
_WAITS = re.compile(
    r"((/bin/)?(ba)?sh -c )?(exec )?(sleep (infinity|inf|\d+[smhd]?)|tail -f /dev/null)|(/bin/)?(ba)?sh"
)
_MOST_ALIASES = 8
"""Most YAML aliases of a file, since aliases of aliases expand a small file to a huge value."""
_WITHOUT_EFFECT = frozenset({
    "container_name", "cpus", "deploy", "expose", "healthcheck", "hostname", "init", "labels", "logging",
    "mem_limit", "networks", "platform", "ports", "pull_policy", "restart", "stdin_open", "tty",
})  # fmt: skip


def _variables(value: Any) -> Any:
    """Return a list of `NAME=value` as a mapping; a name without a value takes the host's."""
    if isinstance(value, list):
        pairs = [str(each).partition("=") for each in cast("list[object]", value)]
        value = {name: text if equals else None for name, equals, text in pairs}
    if not isinstance(value, Mapping):
        return value
    texts = {str(name): text for name, text in cast("Mapping[object, object]", value).items()}
    return {
        name: f"${{{name}}}" if text is None else _TESTS.sub("/tests", str(text))
        for name, text in texts.items()
    }


def _joined(value: Any) -> Any:
    words = cast("list[object]", value) if isinstance(value, list) else [value]
    return re.sub("[\"']", "", " ".join(map(str, words)))


class Service(BaseModel):
    model_config = ConfigDict(extra="allow")

    image: str | None = None
    build: str | dict[str, Any] = {}
    environment: Annotated[dict[str, str], BeforeValidator(_variables)] = {}
    working_dir: str | None = None
    command: Annotated[str, BeforeValidator(_joined)] = "sh"
    entrypoint: Annotated[str, BeforeValidator(_joined)] = "sh"
    volumes: list[Any] = []
    network_mode: Literal["none", "bridge", "default"] | None = None

    def context(self, folder: Path) -> Path:
        """Return the folder of the Dockerfile; raises DatasetError if it is not below the task's."""
        written = self.build if isinstance(self.build, str) else str(self.build.get("context", "."))
        inside = folder / ("." if "$" in written else written)
        if not inside.resolve().is_relative_to(folder.resolve()):
            raise DatasetError(f"the compose file builds {written!r}, which is not in the task's folder")
        return inside

    def on(self, machine: EnvironmentTable) -> EnvironmentTable:
        """Return the task's settings of its machine, overridden by those of this compose service."""
        found = {"docker_image": self.image, "workdir": self.working_dir}
        values = {name: text for name, text in found.items() if text and "$" not in text}
        offline = {"network_mode": "no-network"} if self.network_mode == "none" else {}
        values = {**machine.model_dump(exclude_unset=True), **values, **offline}
        values["env"] = machine.env | self.environment
        return validate(EnvironmentTable, values, file="the compose file")

    def unsupported(self) -> list[str]:
        more = {*(self.model_extra or {})} - _WITHOUT_EFFECT
        more |= {f"the volume {each}" for each in self.volumes if not _HARMLESS.fullmatch(str(each))}
        commands = (("command", self.command), ("entrypoint", self.entrypoint))
        more |= {f"{name} {text!r:.40}" for name, text in commands if not _WAITS.fullmatch(text)}
        build = {} if isinstance(self.build, str) else self.build
        more |= {f"build.{name}" for name in build.keys() - {"context", "dockerfile"}}
        if (file := build.get("dockerfile", "Dockerfile")) not in ("Dockerfile", "./Dockerfile"):
            more.add(f"dockerfile {file}")
        return sorted(more | ({"devices"} if "devices" in str(self.model_extra) else set()))


class ComposeFile(BaseModel):
    services: Annotated[dict[str, Service], Field(min_length=1)]


class _Loader(yaml.SafeLoader):
    aliases = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.aliases += self.check_event(yaml.AliasEvent)
        if self.aliases > _MOST_ALIASES:
            raise yaml.YAMLError(f"more than {_MOST_ALIASES} aliases")
        return super().compose_node(parent, index)


def read_yaml(text: str, *, file: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DatasetError(f"{file} is not YAML: {error}") from error


def read_service(text: str, *, file: str) -> Service:
    """Return the only service; raises DatasetError if there are several, or it has what is not supported."""
    services = validate(ComposeFile, read_yaml(text, file=file), file=file).services
    if len(services) > 1:
        raise DatasetError(f"several containers ({file}): not supported")
    (service,) = services.values()
    if more := service.unsupported():
        raise DatasetError(f"{file} has {', '.join(more)}: not supported")
    return service
