"""`task.toml` in Harbor's schema 1.x: the fields in use, and those that Turnwise refuses.

Source: https://www.harborframework.com/docs/tasks and the models of the package `harbor` 0.26.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError

from tools.errors import DatasetError

_SIZE = re.compile(r"\s*([0-9.]+)\s*([GMK])B?\s*", re.IGNORECASE)
_SHARE_OF_MB = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}
_HUGE = 1 << 24
Model = TypeVar("Model", bound=BaseModel)


def _megabytes(value: Any) -> Any:
    size = _SIZE.fullmatch(value) if isinstance(value, str) else None
    return value if size is None else max(1, int(min(_HUGE, float(size[1]) * _SHARE_OF_MB[size[2].upper()])))


def _check_path(path: str) -> str:
    if ".." in path.split("/") or "\0" in path or not path.strip("/"):
        raise ValueError("is not a path of a file or folder in the machine")
    return path


def _check_image_name(name: str) -> str:
    # Docker would build a folder of this machine.
    if name.startswith((".", "/", "~")):
        raise ValueError("is not a name of an image; a folder to be built is environment/ with a Dockerfile")
    return name


Seconds = Annotated[float, Field(gt=0, lt=1e7)]
Megabytes = Annotated[int, BeforeValidator(_megabytes), Field(gt=0, lt=_HUGE)]
Variables = dict[Annotated[str, Field(pattern=r"^[^=\x00]+$")], Annotated[str, BeforeValidator(str)]]
User = str | Annotated[int, Field(ge=0)]
NetworkMode = Literal["public", "no-network", "allowlist"]


class EnvironmentTable(BaseModel):
    docker_image: Annotated[str, AfterValidator(_check_image_name)] | None = None
    os: Annotated[str, BeforeValidator(lambda value: str(value).lower())] = "linux"
    cpus: Annotated[float, Field(gt=0, lt=4096)] | None = None
    memory_mb: Megabytes | None = None
    memory: Megabytes | None = None
    storage_mb: Megabytes | None = None
    storage: Megabytes | None = None
    gpus: Annotated[int, Field(ge=0)] | None = None
    tpu: Any = None
    mcp_servers: list[Any] = []
    healthcheck: Any = None
    env: Variables = {}
    workdir: str | None = None
    network_mode: NetworkMode | None = None
    allow_internet: bool | None = None

    @property
    def is_offline(self) -> bool:
        return self.allow_internet is False if self.network_mode is None else self.network_mode != "public"


class AgentTable(BaseModel):
    timeout_sec: Seconds | None = None
    user: User | None = None
    network_mode: NetworkMode | None = None


class VerifierTable(BaseModel):
    timeout_sec: Seconds = 600.0
    user: User | None = None
    env: Variables = {}
    environment_mode: Literal["shared", "separate"] | None = None
    environment: EnvironmentTable | None = None
    collect: list[Any] = []


class SolutionTable(BaseModel):
    env: Variables = {}


class ArtifactTable(BaseModel):
    source: Annotated[str, AfterValidator(_check_path)]
    service: str | None = None


class TaskTable(BaseModel):
    """The file without tables that Turnwise ignores, such as `[metadata]`."""

    schema_version: Annotated[str, BeforeValidator(str)] = "1.0"
    version: Annotated[str, BeforeValidator(str)] = "1.0"
    environment: EnvironmentTable = EnvironmentTable()
    agent: AgentTable = AgentTable()
    verifier: VerifierTable = VerifierTable()
    solution: SolutionTable = SolutionTable()
    artifacts: list[Annotated[str, AfterValidator(_check_path)] | ArtifactTable] = []
    steps: list[Any] = []

    @property
    def is_separate(self) -> bool:
        """Whether the verifier has a separate machine, which gets only artefacts."""
        return (self.verifier.environment_mode or (self.verifier.environment and "separate")) == "separate"

    @property
    def artifact_paths(self) -> tuple[str, ...]:
        return tuple(each if isinstance(each, str) else each.source for each in self.artifacts)


def read_table(text: str) -> TaskTable:
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"task.toml is not TOML: {error}") from error
    table = validate(TaskTable, values, file="task.toml")
    if reasons := [reason for reason, holds in _refusals(table).items() if holds]:
        raise DatasetError(f"{' and '.join(reasons)}: not supported")
    return table


def validate(model: type[Model], values: object, *, file: str) -> Model:
    """Return the model of a file's values; raises DatasetError that names each wrong field."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = (
            f"{': '.join([file, '.'.join(map(str, each['loc']))]).removesuffix(': ')}: "
            f"{each['msg'].removeprefix('Value error, ')}, got {each['input']!r:.80}"
            for each in error.errors()
        )
        raise DatasetError("; ".join(lines)) from error


def _refusals(table: TaskTable) -> Mapping[str, Any]:
    machine, verifier = table.environment, table.verifier
    services = [each.service for each in table.artifacts if isinstance(each, ArtifactTable)]
    machines = [machine, *filter(None, [verifier.environment])]
    return {
        f"schema_version {table.schema_version}": not table.schema_version.startswith("1"),
        f"version {table.version}": not table.version.startswith("1"),
        "several steps ([[steps]])": table.steps,
        "an operating system other than Linux (environment.os)": any(each.os != "linux" for each in machines),
        "GPUs (environment.gpus)": any(each.gpus for each in machines),
        "a TPU (environment.tpu)": any(each.tpu for each in machines),
        "MCP servers (environment.mcp_servers)": any(each.mcp_servers for each in machines),
        "a service that is waited for (environment.healthcheck)": any(each.healthcheck for each in machines),
        "a list of hosts (network_mode = 'allowlist')": "allowlist"
        in (machine.network_mode, table.agent.network_mode),
        f"an agent that is not root (agent.user = {table.agent.user!r})": table.agent.user
        not in (None, "root", 0, "0"),
        "several containers (artifacts.service)": any(each not in (None, "main") for each in services),
        "commands before the verdict (verifier.collect)": verifier.collect,
    }


# --- `${NAME}` in variables: the host's value if the user grants it, else the default or nothing ----------


_TEMPLATE = re.compile(r"\$\{(\w+)(:-[^}]*)?\}")
_MOST_READ = 1 << 20
_SHORTEST_VENDOR = 4


def fill_variables(
    table: TaskTable, granted: Mapping[str, str], *, tests: Iterable[Path], context: Path
) -> tuple[TaskTable, frozenset[str]]:
    """Return the table with values, and the names of the host that are empty since nothing needs them.

    Only a solution may read an empty one. Raises DatasetError if tests or the machine read a name that is not
    granted.
    """
    filled, empty = dict[str, object](), set[str]()
    readers = {"environment": [*tests, context], "verifier": [*tests], "solution": list[Path]()}
    for part, files in readers.items():
        section = getattr(table, part)
        for variable, text in section.env.items():
            unset = {name for name, rest in _TEMPLATE.findall(text) if not rest} - granted.keys()
            if needed := [name for name in sorted(unset) if _mentions(files, variable, name)]:
                raise DatasetError(
                    f"needs a variable of the host: {part}.env.{variable}; grant it with "
                    f"--env.task_variables {','.join(needed)}"
                )
            empty |= unset
        values = {
            each: _TEMPLATE.sub(lambda found: granted.get(found[1], (found[2] or "")[2:]), text)
            for each, text in section.env.items()
        }
        filled[part] = section.model_copy(update={"env": values})
    return table.model_copy(update=filled), frozenset(empty)


def _mentions(places: Iterable[Path], variable: str, name: str) -> bool:
    """Whether a file has one of the names, or the vendor of a key, whose library reads it by itself."""
    names = "|".join(map(re.escape, (variable, name)))
    vendor = name.removesuffix("_API_KEY")
    if len(vendor) < _SHORTEST_VENDOR:
        vendor = name
    words = re.compile(rf"(?<![A-Za-z0-9_])({names})(?![A-Za-z0-9_])|(?i:{re.escape(vendor)})".encode())
    for place in places:
        for path in [place] if place.is_file() else place.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    if words.search(file.read(_MOST_READ)):
                        return True
    return False
