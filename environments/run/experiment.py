"""What a run is an experiment with: everything that decides how its rollouts go and what they earn."""

import os
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import time_ns
from typing import get_args

import orjson

from environments.base_env import AgentEnv
from environments.config import AgentEnvConfig, ServerConfig
from environments.credit import recorded_params
from environments.data.item_json import stable_text
from environments.inference.endpoint import without_credentials
from environments.lifecycle.opened_files import OpenedFiles
from environments.lifecycle.rollout_parts import condenser_facts
from environments.record.origin import LATER, RunOrigin, digest, refuse_other_run
from environments.record.recorder import Recorder
from environments.record.run_folder import RUNS
from environments.run.experiment_files import code_facts, counted_files, file_digest, home_of, later_data
from environments.second_models.asked_model import SCRIPTED

NOT_COUNTED = frozenset({
    # Where it is written.
    "data_path_to_save_groups", "data_dir_to_save_evals", "outbox_path", "outbox_groups", "run_name", "fresh",
    "accept", "use_wandb", "use_trackio", "wandb_name", "profile",
    # How much is run, and how fast.
    "max_items", "total_steps", "shuffle", "max_concurrent_rollouts", "max_failed_groups",
    # Of an evaluation, in which alone they count, see `origin_of`.
    "eval_rollouts", "pass_score",
    # How it reaches a trainer.
    "credit_view", "score_divisor", "allow_approximate_tokens", "max_batches_offpolicy",
    "min_batch_allocation",
    # Rollouts and rewards are the same; which of them are too old to be trained on stands in each group.
    "max_staleness",
    # What the file holds counts, not where it lies.
    "dataset_path",
})  # fmt: skip
"""Settings that may change from one run of an experiment to the next."""
OF_A_SERVER = frozenset({
    "server_type", "family", "context_tokens", "temperature", "top_p", "extra_body",
})  # fmt: skip
"""Settings of a model server that shape what is sampled; its model's name is in the policy's."""
OF_A_SECOND_MODEL = ("model_name", "temperature", "top_p", "max_tokens", "extra_body")
_NOT_COUNTED = re.compile(r"estimator.*|.*(_s|timeout|_url|key|secret|password|credentials?)")
"""Credit can be computed anew; waits, addresses and secrets change nothing that is recorded."""
_LONG = 200


OF_TRAINING = ("group_size", "min_group_size")
"""Settings that an evaluation has no use for."""


def origin_of(env: AgentEnv, *, evaluation: bool = False) -> RunOrigin:
    """What the groups of an open environment have in common, for its record and its outbox."""
    config = env.config
    settings = _settings(config)
    if evaluation:
        settings = {name: text for name, text in settings.items() if name not in OF_TRAINING}
        counted = {"eval_rollouts": config.eval_rollouts, "pass_score": config.pass_score}
        settings |= {"evaluation": "true", **{name: stable_text(each) for name, each in counted.items()}}
    return RunOrigin(
        env=env.name,
        policy=env.policy_name,
        estimator=env.estimator,
        estimator_params=recorded_params(
            env.estimator, preset=config.estimator_preset, params=env.estimator_params
        ),
        experiment={
            "turnwise": turnwise_version(),
            "class": type(env).__qualname__,
            "system prompt": digest((env.system_prompt or "").encode("utf-8", "surrogatepass")),
            **settings,
            # What the class says counts like a setting.
            "sandbox": env.sandboxes.kind,
            "verify_sandbox": env.sandboxes.verifier_kind,
            **_servers(env.servers),
            **_second_models(env),
            **condenser_facts(env.condensers),
            **_dataset(config),
            **{
                f"tool {spec.name}": digest(orjson.dumps(spec.to_openai(), option=orjson.OPT_SORT_KEYS))
                for spec in env.toolset.specs
            },
            **code_facts(type(env), environment_files(env)),
        },
    )


def environment_files(env: AgentEnv) -> dict[str, Path]:
    """The files that the fingerprint covers, as `code of env.py` or `data of users.jsonl`."""
    opened = env.opened_files
    return counted_files(type(env), opened=opened.read, written=opened.written, apart=_apart(env))


def _settings(config: AgentEnvConfig) -> dict[str, str]:
    """The settings that count. Text in those of an environment's own may hold a secret: it is a digest."""
    facts: dict[str, str] = {}
    for name, field in type(config).model_fields.items():
        if name in NOT_COUNTED or _NOT_COUNTED.fullmatch(name) or not field.repr:
            continue
        value = getattr(config, name)
        text = without_credentials(stable_text(value))
        plain = isinstance(value, int | float | None) or value in get_args(field.annotation)
        known = plain or name in AgentEnvConfig.model_fields
        facts[name] = text if known and len(text) <= _LONG else digest(text.encode("utf-8", "surrogatepass"))
    return facts


def _servers(servers: Sequence[ServerConfig]) -> dict[str, str]:
    """How model servers are asked, where that is set; their addresses do not count."""
    return {
        name if len(servers) == 1 else f"{name} of server {index}": stable_text(getattr(server, name))[:_LONG]
        for index, server in enumerate(servers)
        for name in sorted(OF_A_SERVER & server.model_fields_set)
        if getattr(server, name) != ServerConfig.model_fields[name].default
    }


def _second_models(env: AgentEnv) -> dict[str, str]:
    """Who judges, who plays the user and who sums up, and how it is asked."""
    served = {
        f"{server.section} {name}": stable_text(getattr(server, name))[:_LONG]
        for server in env.second_servers
        for name in OF_A_SECOND_MODEL
    }
    return served | dict.fromkeys(env.scripted_roles(), SCRIPTED)


def _dataset(config: AgentEnvConfig) -> dict[str, str]:
    """The content of a local dataset; one that the environment makes itself is in its code and items."""
    path = config.dataset_path
    return {} if path is None or not Path(path).is_file() else {"dataset": file_digest(Path(path))}


def _apart(env: AgentEnv) -> list[Path]:
    """What runs write, and the datasets, which count by their items."""
    config = env.config
    paths = (
        config.data_path_to_save_groups,
        config.data_dir_to_save_evals,
        config.outbox_path,
        config.dataset_path,
    )
    return [RUNS, *(Path(path) for path in paths if path is not None)]


WRITTEN, GONE = "written by a run", "gone"
"""In the place of a digest: a file that a run writes decides nothing that its writer does not."""
_INSTEAD = "put the file back, start over with --fresh, or go on all the same with --accept"


class LaterFiles:
    """The data that rollouts read and that the fingerprint, made before them, does not cover."""

    def __init__(self, env: AgentEnv, recorder: Recorder) -> None:
        """Compare what the record's groups have read with what is there now.

        Args:
            env: an open environment.
            recorder: its record, which was begun.

        Raises:
            OtherRunError: a file changed, or is gone.
        """
        self.opened = OpenedFiles(in_hooks=True)
        self._env_cls = type(env)
        self._counted = frozenset(environment_files(env).values())
        self._apart = _apart(env)
        self._record, self._accept = recorder.path, env.config.accept
        self._since = time_ns()
        recorded = recorder.contents.facts_of(recorder.fingerprint)
        self._digests = {
            name.removeprefix(LATER): value for name, value in recorded.items() if name.startswith(LATER)
        }
        home = home_of(self._env_cls)
        self._names = {os.path.realpath(home / name): name for name in self._digests}
        gone = {
            name: GONE
            for file, name in self._names.items()
            if self._digests[name] != WRITTEN and not Path(file).is_file()
        }
        self._changed = self._news(gone | self._digests_of(self._names))

    def facts(self) -> dict[str, str]:
        """Return the digests of the files that were read since the last call, unless the record has them.

        Raises:
            OtherRunError: a file is not as it was.
        """
        facts, self._changed = self._changed, {}
        if self.opened.read or self.opened.written:
            files = _taken(self.opened.read)
            if new := files - self._names.keys():
                found = later_data(self._env_cls, new, counted=self._counted, apart=self._apart)
                self._names |= {str(file): name for name, file in found.items()}
            now = self._digests_of(files)
            # Last: a write that the digests saw was noted before it.
            written = {name for file in _taken(self.opened.written) if (name := self._names.get(file))}
            facts |= self._news(now | dict.fromkeys(written & {*now, *self._digests}, WRITTEN))
        return {f"{LATER}{name}": value for name, value in facts.items()}

    def _digests_of(self, files: Iterable[str]) -> dict[str, str]:
        """The content of the files that count, by name; what came to be during the run does not."""
        digests: dict[str, str] = {}
        for file in files:
            name = self._names.get(file)
            if name is None or self._digests.get(name) == WRITTEN:
                continue
            with suppress(OSError):
                stat = Path(file).stat()
                is_new = max(stat.st_mtime_ns, stat.st_ctime_ns) >= self._since
                if name in self._digests or not is_new:
                    digests[name] = file_digest(Path(file))
        return digests

    def _news(self, now: Mapping[str, str]) -> dict[str, str]:
        """What the record does not say yet.

        Raises:
            OtherRunError: it says something else.
        """
        news = {name: value for name, value in now.items() if self._digests.get(name) != value}
        changed = [
            f"{name}, which rollouts read, {'is gone' if value == GONE else 'changed'}"
            for name, value in sorted(news.items())
            if name in self._digests and value != WRITTEN
        ]
        if not self._accept:
            refuse_other_run(str(self._record), changed, instead=_INSTEAD)
        self._digests |= news
        return news


@contextmanager
def later_files(env: AgentEnv, recorder: Recorder) -> Generator[None]:
    """While entered, the record also says which files rollouts read, and takes no group that read others.

    Raises:
        OtherRunError: a file that its groups have read changed.
    """
    later = LaterFiles(env, recorder)
    with later.opened.watched():
        recorder.more_facts = later.facts
        yield


def _taken(paths: dict[str, None]) -> set[str]:
    """The resolved paths, which are no longer noted; other threads may note more meanwhile."""
    taken = list(paths)
    for path in taken:
        del paths[path]
    return {os.path.realpath(path) for path in taken}


def turnwise_version() -> str:
    """The version of the package that is installed."""
    try:
        return version("turnwise")
    except PackageNotFoundError:
        return "unknown"
