"""An environment as data, from which another process builds an equal one."""

import importlib
import os
import pickle
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from operator import attrgetter
from typing import Any

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig, ModelServerConfig, ServerConfig, ServerT, with_keys
from environments.run.experiment import environment_files, has_file
from environments.run.group_source import Finishing
from environments.run.loading import load_file
from environments.run.open_run import SourceOptions
from tools.errors import ConfigError

_MAIN = "__main__"
_OF_A_FILE = "turnwise_file_"
"""Prefix of modules that `load_file` creates for files without an importable name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJob:
    config: AgentEnvConfig
    servers: tuple[ModelServerConfig, ...]
    is_evaluation: bool = False
    waits: bool = False
    finishing: Finishing
    packages: tuple[str, ...]
    files: Mapping[str, str]

    @classmethod
    def of(cls, env: AgentEnv, options: SourceOptions) -> "WorkerJob":
        parts = env.lifecycle.parts
        players = env.servers or [ServerConfig(constraints=parts.constraints)]
        known, loaded = packages_distributions(), {name.partition(".")[0] for name in list(sys.modules)}
        return cls(
            config=env.config,
            servers=tuple(
                # A worker reads the variable itself, so that no message has the key.
                server if server.api_key_env is None else server.model_copy(update={"api_key": "none"})
                for server in (*players, *parts.second_servers)
            ),
            finishing=options.finishing,
            packages=tuple(sorted({package for name in loaded for package in known.get(name, ())})),
            files={name: str(path) for name, path in environment_files(env).items()},
            is_evaluation=options.evaluation,
            waits=options.waits,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    module: str
    file: str
    class_name: str
    job: bytes
    """A pickled `WorkerJob`. It is separate since its values may need the class's module to be loaded
    first."""

    @classmethod
    def of(cls, env_cls: type, job: WorkerJob) -> "EnvSpec":
        file = getattr(sys.modules.get(env_cls.__module__), "__file__", None)
        if not has_file(env_cls) or "<locals>" in env_cls.__qualname__ or file is None:
            raise ConfigError(
                f"{env_cls.__name__} is defined in a notebook, a shell or a function, where workers cannot "
                f"load it from: put it into a file, and import it from there, or name it as "
                f"path/to/file.py:{env_cls.__name__}"
            )
        try:
            job_bytes = pickle.dumps(job)
        except Exception as error:
            raise ConfigError(
                f"the settings of {env_cls.__name__} cannot be sent to workers: {error}"
            ) from error
        return cls(
            module=env_cls.__module__,
            file=os.path.abspath(file),  # noqa: PTH100  # does not resolve links
            class_name=env_cls.__qualname__,
            job=job_bytes,
        )

    def load(self, root: str) -> tuple[AgentEnv, WorkerJob]:
        """Return the environment, not open yet, and its job; its files lie below `root`."""
        if self.module == _MAIN or self.module.startswith(_OF_A_FILE):
            module = load_file(root + self.file)
            if self.module == _MAIN:
                sys.modules[_MAIN] = module  # the name in pickled values
        else:
            module = importlib.import_module(self.module)
        env_cls: Any = attrgetter(self.class_name)(module)
        job: WorkerJob = pickle.loads(self.job)  # from the driver, run by the same user
        dataset = job.config.dataset_path
        if root and dataset is not None and os.path.isfile(root + dataset):  # noqa: PTH113
            job = replace(job, config=job.config.model_copy(update={"dataset_path": root + dataset}))
        return env_cls(job.config.with_variables(os.environ), with_keys(job.servers, os.environ)), job


def shares(job: WorkerJob, count: int) -> list[WorkerJob]:
    """Split a job into `count` jobs with a share of each concurrency limit.

    Raises ConfigError if a limit is smaller than `count`.
    """
    limit = job.config.max_concurrent_rollouts
    limits = [("--env.max_concurrent_rollouts", limit)]
    for each in job.servers:
        limits.append((f"--{each.section}.num_max_requests_at_once", each.num_max_requests_at_once))
    for what, most in limits:
        if most < count:
            raise ConfigError(
                f"{what} {most} is shared by {count} workers, and some get none: raise it, or use fewer"
            )
    return [
        replace(
            job,
            config=job.config.model_copy(update={"max_concurrent_rollouts": _share(limit, count, number)}),
            servers=tuple(_server_share(server, count, number) for server in job.servers),
        )
        for number in range(count)
    ]


def _server_share(server: ServerT, count: int, number: int) -> ServerT:
    share = _share(server.num_max_requests_at_once, count, number)
    shared = server.model_copy(update={"num_max_requests_at_once": share})
    # The fingerprint counts only settings that were set explicitly.
    shared.model_fields_set.intersection_update(server.model_fields_set)
    return shared


def _share(limit: int, count: int, number: int) -> int:
    return limit // count + (number < limit % count)


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    versions: dict[str, str] = {}
    for each in packages:
        try:
            versions[each] = version(each)
        except PackageNotFoundError:
            versions[each] = "not installed"
    return versions
