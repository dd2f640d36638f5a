"""The settings of an environment: one flat, bounded and described field each, for flags, YAML and help."""

import logging
import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, cast, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from environments.policy.inference.dialect import SET_ELSEWHERE, UNNAMED_MODEL, validate_extra_body
from tools.errors import ConfigError
from tools.json_input import JsonError, read_exact_json
from tools.plain_text import did_you_mean, nearest, without_credentials

WithoutEffect = Mapping[str, tuple[tuple[object, ...], str]]
"""Settings of Atropos without effect here: the accepted values, and what to do instead."""
BARE = True
"""Value of a flag without a value."""
_KINDS = {int: "whole number", float: "number", bool: "true or false", str: "text", NoneType: "None"}
_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


class Section(BaseModel):
    """Settings of one section of the command line or of a YAML file."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    section: ClassVar[str]
    """`env` for `--env.NAME`."""
    without_effect: ClassVar[WithoutEffect] = {}
    by_entry: ClassVar[frozenset[str]] = frozenset()
    """Mappings with separate settings as entries: layers are merged, and `None` removes an entry."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for name, field in cls.model_fields.items():
            accepted, instead = cls.without_effect.get(name, ((field.default,), ""))
            if not any(_same(field.default, each) for each in accepted):
                raise ConfigError(f"{cls.__name__}.{name} has no effect in Turnwise: {instead}")

    @model_validator(mode="before")
    @classmethod
    def _accept_other_names(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        named = dict(cast("Mapping[str, Any]", values))
        for name in cls.without_effect.keys() & named.keys():
            accepted, instead = cls.without_effect[name]
            value = named.pop(name)
            if not any(_same(value, each) for each in accepted):
                raise ValueError(f"--{cls.section}.{name} has no effect in Turnwise: {instead}")
        for name in cls.by_entry & named.keys():
            value = named[name]
            if isinstance(value, str):  # Atropos' command line gives a mapping as JSON text
                with suppress(JsonError):
                    value = read_exact_json(value, lenient=True)
            if isinstance(value, Mapping):
                entries = cast("Mapping[str, Any]", value)
                value = {key: each for key, each in entries.items() if each is not None}
            named[name] = {} if value is None else value
        return named

    @classmethod
    def label(cls, name: str, origin: str) -> str:
        """Return the name of a setting as written on the command line, or in the file `origin`."""
        return f"{cls.section}.{name} in {origin}" if origin else f"--{cls.section}.{name}"

    def with_values(self, given: Mapping[str, Any], *, origin: str = "") -> Self:
        """Return a copy with other values. `extra_body.top_k` replaces one entry of a mapping.

        Args:
            given: values by name, `NAME.KEY` for an entry of a mapping.
            origin: the YAML file of the values; unset: they are text from the command line.

        Raises:
            ConfigError: if a name is unknown, or a value has the wrong type or is out of bounds.
        """
        values, labels = dict[str, Any](self), dict[str, str]()
        for written, value in given.items():
            name, dot, key = written.partition(".")
            label = labels[name] = self.label(written, origin)
            info = type(self).model_fields.get(name)
            has_entries = info is not None and get_origin(info.annotation) is dict
            if not (has_entries and key if dot else info is not None or name in self.without_effect):
                raise ConfigError(f"no setting {label}{self._hint(written, origin)}")
            if dot and value == "None":
                value = {key: None}
            elif dot:
                if not origin and name == "extra_body" and isinstance(value, str):
                    with suppress(JsonError):
                        value = read_exact_json(value, lenient=True)
                value = {key: value}
            elif info is not None:
                value = _from_text(info, value, label, is_flag=not origin)
            if dot or name in self.by_entry:
                before: Mapping[str, Any] = values[name] or {}
                value = {**before, **mapping_of(value or {}, label)}
            values[name] = value
        try:
            return type(self)(**values)
        except ValidationError as error:
            raise ConfigError(explain(error, labels, self.section)) from None

    def _hint(self, written: str, origin: str) -> str:
        prefix = f"{self.section}." if origin else f"--{self.section}."
        if written.startswith("estimator_") and "." not in written:
            name = written.removeprefix("estimator_")
            return f"; a parameter of the estimator is {prefix}estimator_params.{name}"
        if self.section == "openai" and written in SET_ELSEWHERE:
            return f"; {SET_ELSEWHERE[written]}"
        other = ServerConfig if self.section == "env" else AgentEnvConfig
        if written in other.model_fields:
            return f"; did you mean {'' if origin else '--'}{other.section}.{written}?"
        return nearest(written, type(self).model_fields, prefix)

    @classmethod
    def choices(cls, name: str) -> list[str]:
        """Return the values that a setting can have; empty if they are not a fixed list."""
        kinds = _alternatives(cls.model_fields[name].annotation)
        return [str(each) for kind in kinds if get_origin(kind) is Literal for each in get_args(kind)]

    def help_line(self, name: str) -> tuple[str, str]:
        """Return the flag of a setting, and its first sentence with default and bounds."""
        info, default = type(self).model_fields[name], getattr(self, name)
        notes = [] if default is None or default == "" else [without_credentials(f"default: {default}")]
        if self.choices(name):
            notes.append(_kinds(info))
        notes += _bounds(info)
        text = f"{(info.description or '').partition('. ')[0].rstrip('.')}."
        return self.label(name, ""), f"{text} [{'; '.join(notes)}]" if notes else text

    def help_rows(self, name: str) -> list[tuple[str, str]]:
        """Return the type, the default and the bounds of a setting."""
        info, default = type(self).model_fields[name], without_credentials(str(getattr(self, name)))
        rows = [("kind", _kinds(info)), ("default", default), ("bounds", ", ".join(_bounds(info)))]
        return [row for row in rows if row[1]]


def mapping_of(value: object, where: str) -> dict[str, Any]:
    """Return a mapping with its keys as text; raises ConfigError for other values."""
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be a mapping of names to values, got a {type(value).__name__}")
    return {str(key): entry for key, entry in cast("dict[Any, Any]", value).items()}


def _from_text(field: FieldInfo, value: Any, label: str, *, is_flag: bool) -> Any:
    """Return a value of the command line (or `a, b` of a file, for a list) in a form that pydantic reads."""
    kinds = {get_origin(kind) or kind for kind in _alternatives(field.annotation)}
    if not is_flag and not (isinstance(value, str) and list in kinds and str not in kinds):
        return value
    if value is BARE:
        if bool not in kinds:
            raise ConfigError(f"{label} needs a value")
        return True
    if value == "None":
        return None
    if kinds & {list, tuple, set, dict}:
        text = str(value).strip()
        if text.startswith(("[", "{")) or dict in kinds:
            try:
                return read_exact_json(text)
            except JsonError as error:
                raise ConfigError(f"{label} is not valid JSON: {error}") from None
        return [part.strip() for part in text.split(",") if part.strip()]
    return value


def explain(error: ValidationError, labels: Mapping[str, str], section: str) -> str:
    """Return the first problem of each setting, and the words that it may be.

    A union type reports a problem for each of its members.
    """
    problems: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        text = problem["msg"].removeprefix("Input ").removeprefix("Value error, ")
        if problem["loc"]:
            name = str(problem["loc"][0])
            # A mapping, such as `extra_body`, may hold a key.
            hidden = name.endswith(("_key", "_token")) or isinstance(problem["input"], dict)
            got = "" if hidden else f", got {problem['input']!r}"
            text = f"{labels.get(name, f'{section}.{name}'.lstrip('.'))} {text}{got}"
            if problem["type"] == "extra_forbidden":
                known = {*AgentEnvConfig.model_fields, *ServerConfig.model_fields}
                text = f"there is no setting {name!r}{did_you_mean(name, known)}"
        setting = str(problem["loc"][:1])
        if setting in problems and problem["type"] == "literal_error":
            problems[setting] += f"; or it {problem['msg'].removeprefix('Input ')}"
        problems.setdefault(setting, " ".join(text.split()))
    return "; ".join(problems.values())


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in {Union, UnionType} else (annotation,)


def _kinds(field: FieldInfo) -> str:
    kinds: list[str] = []
    for kind in _alternatives(field.annotation):
        origin = get_origin(kind) or kind
        if origin is Literal:
            kinds += map(str, get_args(kind))
        elif origin in (list, tuple, set):
            kinds.append("list (A,B,C or JSON)")
        elif origin is dict:
            kinds.append("mapping (one NAME VALUE each)")
        else:
            base = next((each for each in get_args(kind) if isinstance(each, type)), origin)
            kinds.append(_KINDS.get(base, getattr(base, "__name__", str(base))))
    return " | ".join(kinds)


def _bounds(field: FieldInfo) -> list[str]:
    return [
        f"{sign} {getattr(bound, name)}"
        for bound in field.metadata
        for name, sign in _SIGNS.items()
        if getattr(bound, name, None) is not None
    ]


def _same(value: object, accepted: object) -> bool:
    if isinstance(accepted, int | float) and not isinstance(accepted, bool):
        try:
            return float(str(value)) == accepted
        except ValueError:
            return False
    return str(value).lower() == str(accepted).lower()


EMBEDDED_TOKENIZER = "embedded"
SETTING_GROUPS: Mapping[str, str] = {
    "max_items": "Items",
    "group_size": "Rollouts",
    "scripted_skill": "Policy",
    "condenser": "Context",
    "enabled_toolsets": "Tools",
    "sandbox": "Sandbox",
    "missing_outcome": "Rewards and credit",
    "eval_share": "Evaluation",
    "data_path_to_save_groups": "Record and tracking",
    "credit_view": "Serving a trainer",
}
"""Titles in help and docs, by the first setting of each group."""


PathText = Annotated[str, AfterValidator(os.path.expanduser)]
"""Type of settings that name a file or folder; `~` is expanded."""


class AgentEnvConfig(Section):
    """Settings of an `AgentEnv`; environments subclass it to add their own flat fields."""

    section = "env"
    without_effect: ClassVar[WithoutEffect] = {
        "ensure_scores_are_not_same": (
            (True,),
            "a group is kept or skipped by its credit, not by its scores",
        ),
        "include_messages": ((True, False), "messages are always sent with the tokens"),
        "inference_weight": ((1.0,), "--env.min_batch_allocation is this environment's share of a batch"),
        "max_num_workers": ((-1,), "--env.max_concurrent_rollouts bounds what is in flight"),
        "max_num_workers_per_node": ((8,), "--env.max_concurrent_rollouts bounds what is in flight"),
        "eval_handling": (("STOP_TRAIN", "EvalHandlingEnum.STOP_TRAIN"), "evaluate with `turnwise evaluate`"),
        "eval_limit_ratio": ((0.5,), "evaluate with `turnwise evaluate`"),
        "steps_per_eval": ((100,), "evaluate with `turnwise evaluate`"),
        "batch_size": ((-1,), "the trainer sets it"),
        "max_eval_workers": ((16,), "--env.max_concurrent_rollouts bounds an evaluation, too"),
        "num_rollouts_to_keep": ((32,), "wandb gets numbers, the rollout JSONL the rollouts"),
        "num_rollouts_per_group_for_logging": ((1,), "wandb gets numbers, the rollout JSONL the rollouts"),
        "min_items_sent_before_logging": ((2,), "wandb gets every group"),
        "thinking_mode": ((False,), "switch reasoning on at the model server"),
        "reasoning_effort": ((None,), "switch reasoning on at the model server"),
        "max_reasoning_tokens": ((None,), "switch reasoning on at the model server"),
        "custom_thinking_prompt": ((None,), "write it into the environment's system_prompt"),
    }
    by_entry: ClassVar[frozenset[str]] = frozenset({"estimator_params"})

    max_items: int | None = Field(default=None, ge=1, description="Use only the first items.")
    dataset_path: PathText | None = Field(default=None, description="Local .jsonl, .json or .parquet file.")
    dataset_name: str | None = Field(default=None, description="Hugging Face hub dataset.")
    dataset_config: str | None = Field(default=None, description="Configuration of the hub dataset.")
    dataset_split: str = Field(default="train", description="Split of the hub dataset.")
    total_steps: int = Field(
        default=-1,
        ge=-1,
        description="process: number of groups; items are repeated if there are fewer; -1: every item once. "
        "serve: number of trainer steps; -1: the trainer's own.",
    )
    shuffle: bool = Field(
        default=False,
        description="Shuffle the items anew in each epoch, by --env.seed.",
    )
    weight_field: str | None = Field(
        default=None,
        description="Field of the items with their sampling weight; 0: never rolled out.",
    )
    seed: int = Field(default=0, ge=0, description="Seed of the whole run; each rollout derives its own.")

    group_size: int = Field(default=4, ge=1, le=1024, description="Rollouts per item.")
    min_group_size: int = Field(
        default=2,
        ge=1,
        description="Siblings that must survive, or all where group_size is less; a smaller group is "
        "recorded as failed and earns no credit. Branches do not count.",
    )
    branches: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Continuations of a rollout from its branch turn, its own among them; group_size counts "
        "them all. 1: no branches.",
    )
    branch_at: Annotated[int, Field(ge=1)] | Literal["draw", "hook"] = Field(
        default="hook",
        description="The branch turn: its number, a draw over max_turns by --env.seed, or by the hook "
        "branch_at.",
    )
    max_turns: int = Field(default=10, ge=1, le=10_000, description="Model calls per rollout.")
    max_tokens_per_turn: int = Field(default=1024, ge=1, description="Tokens one model call may sample.")
    on_cut: Literal["end", "respond"] = Field(
        default="end",
        description="What follows a turn without tool calls that max_tokens_per_turn cut. end: the rollout "
        "ends. respond: the reply of `respond`; without one the rollout ends.",
    )
    token_budget: int = Field(default=16_384, ge=1, description="Tokens one rollout may sample in all.")
    max_token_length: int = Field(
        default=32768, ge=16, description="Tokens one training row may have; a rollout stops before it."
    )
    rollout_timeout_s: float = Field(
        default=300.0,
        gt=0,
        description="Wall clock of a rollout's turns, tools included; then the rollout ends and is scored.",
    )
    hook_timeout_s: float = Field(
        default=300.0,
        gt=0,
        description="Wall clock of one hook (prepare, score_turn, compute_reward, …), and of opening a "
        "sandbox; beyond it the rollout is dropped.",
    )
    verify_timeout_s: float = Field(
        default=300.0,
        gt=0,
        description="Wall clock of one ctx.verify, or of all cases of a case runner, from opening the "
        "sandbox to the end of the command; it does not count towards hook_timeout_s. Beyond it the answer "
        "counts as wrong.",
    )
    hook_block_s: float = Field(
        default=120.0,
        gt=0,
        description="End the run, naming the code, if a hook blocks the event loop for so long.",
    )
    max_failed_groups: int = Field(
        default=16,
        ge=0,
        description="process, evaluate: stop after so many consecutive groups without a surviving rollout or "
        "a comparison; 0: never. serve slows down instead.",
    )
    max_concurrent_rollouts: int = Field(default=16, ge=1, le=4096, description="Rollouts in flight at once.")
    profile: bool = Field(
        default=False,
        description="Measure the time of each rollout by hooks, tools, condensers and models, for summary "
        "and record.",
    )

    scripted_skill: float = Field(
        default=0.6, ge=0, le=1, description="How good the scripted agent is: 0 clumsy, 1 flawless."
    )
    tokenizer_name: PathText = Field(
        default=EMBEDDED_TOKENIZER,
        description="Tokenizer of the policy's model: `embedded`, a local folder or a Hugging Face name. It "
        "makes token ids of text if the server returns none.",
    )
    request_timeout_s: float = Field(
        default=120.0, gt=0, description="Wall clock of one request to the server."
    )

    condenser: list[str] | None = Field(
        default=None,
        description="Condensers that shorten long conversations, applied in this order before each model "
        "call: trim_tool_output, keep_last_turns, fit_context, summarise (by the policy, trained and "
        "credited), summarise_by_model (by a second model, --summariser.base_url, untrained), or none. "
        "Unset: those of the class.",
    )
    condenser_tokens: int | None = Field(
        default=None,
        ge=32,
        description="fit_context, summarise: tokens that a prompt may have. Unset: max_token_length minus "
        "max_tokens_per_turn for fit_context, 3/4 of max_token_length for summarise.",
    )
    condenser_turns: int | None = Field(
        default=None,
        ge=1,
        description="keep_last_turns: number of turns to keep; unset: 8. summarise: number of turns that a "
        "summary replaces; unset: condenser_tokens decides alone.",
    )
    condenser_tool_tokens: int = Field(
        default=512, ge=32, description="trim_tool_output: tokens that a tool result may have."
    )

    enabled_toolsets: list[str] | None = Field(
        default=None, description="Toolsets the agent gets; unset: those of the environment."
    )
    tool_output_chars: int = Field(
        default=8_000,
        ge=200,
        description="Characters of a tool's output that the model sees; the middle is cut.",
    )
    tool_timeout_s: float = Field(
        default=30.0,
        gt=0,
        description="Time limit of a tool call and of each of its commands; the result tells the model.",
    )

    sandbox: str | None = Field(
        default=None,
        description="Backend of the agent's sandbox: local, docker, the name of an installed backend, or "
        "none for no sandbox. Unset: the environment's, else local.",
    )
    verify_sandbox: str | None = Field(
        default=None,
        description="Backend of ctx.verify if the sandbox is none; unset: local. Otherwise verification "
        "uses the same backend as the sandbox.",
    )
    artefacts_mb: int = Field(
        default=16,
        ge=0,
        le=1024,
        description="Size limit of the files that are kept beside the record for one rollout, so that "
        "rewards can be computed anew (ctx.verify, ctx.artefact, `keep`). 0: none.",
    )
    sandbox_image: str | None = Field(
        default=None, description="docker: the image of a sandbox; unset: the backend's own."
    )
    sandbox_memory_mb: int = Field(default=1024, ge=64, description="Memory of one sandbox.")
    sandbox_network: Literal["none", "full"] = Field(
        default="none",
        description="none: no network but a loopback. full: the host's network; with docker the engine's "
        "default network.",
    )
    allow_unsafe_sandbox: bool = Field(
        default=False, description="Run the agent's code unisolated where this machine cannot isolate it."
    )

    missing_outcome: Literal["refuse", "drop"] | Annotated[float, Field(ge=-1e100, le=1e100)] | None = Field(
        default=None,
        description="Treatment of a rollout without an outcome (or any reward) if a sibling has one. refuse: "
        "the group fails. drop: the rollout is dropped, which biases the group by behaviour. A number: its "
        "outcome. Unset: the environment's; else refuse if it writes compute_outcome, and otherwise 0 for a "
        "rollout without any reward.",
    )
    failed_score: Annotated[float, Field(ge=-1e100, le=1e100)] | None = Field(
        default=None,
        description="Outcome of a rollout that the agent broke (its sandbox, a tool's limit, files that "
        "rewards read, a judge's answer). It must not exceed the outcome of an honest failure. Unset: the "
        "environment's, else 0.",
    )
    mask_truncated: bool = Field(
        default=False,
        description="Exclude turns that were cut at a token limit (finish reason `length`) from training; "
        "their rewards still count for other turns.",
    )
    max_staleness: int | None = Field(
        default=None,
        ge=0,
        description="Number of newer versions of the weights up to which a rollout is trained, counted from "
        "its oldest turn; older rollouts are compared but not trained. 0: only the newest weights. serve "
        "limits its lead by it and checks again before it sends. Needs a server that reports versions. "
        "Unset: any age.",
    )
    estimator: str | None = Field(
        default=None,
        description="Advantage estimator (see `turnwise credit`); unset: turn_return with turn rewards, "
        "grpo without.",
    )
    estimator_preset: str | None = Field(
        default=None, description="Constants of a trainer: verl, trl, rllm, torchtitan, tinker or skyrl."
    )
    estimator_params: dict[str, Any] = Field(
        default={},
        description="Parameters of the estimator, --env.estimator_params.NAME VALUE; unset: the preset's, "
        "else the estimator's defaults. `turnwise credit` lists them.",
    )

    eval_share: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of the items, chosen by their ids, that is held out for evaluate: process and "
        "serve do not roll it out.",
    )
    eval_rollouts: int = Field(default=4, ge=1, le=1024, description="Rollouts per evaluation item.")
    pass_score: float = Field(
        default=1.0,
        allow_inf_nan=False,
        description="Least outcome (or score, without an outcome) of a rollout that counts as passed.",
    )

    data_path_to_save_groups: PathText | None = Field(
        default=None,
        description="File for the rollout JSONL; unset: process creates a run folder, serve writes none.",
    )
    data_dir_to_save_evals: PathText | None = Field(
        default=None, description="evaluate: folder of the evaluation; unset: runs/ENV/eval-NAME."
    )
    use_wandb: bool = Field(default=False, description="Log to Weights & Biases.")
    use_trackio: bool = Field(default=False, description="Log to trackio: offline, into a SQLite file.")
    wandb_name: str | None = Field(
        default=None,
        description="Name of the run at Weights & Biases and trackio and of the environment at the API.",
    )

    credit_view: Literal["token_advantages", "binary_masks", "turn_rows", "prefix_rows"] | None = Field(
        default=None,
        description="serve: format of turn rewards, which must match the trainer. turn_rows: for trainers "
        "that read only scores (Atropos' example trainer). token_advantages: for trainers that read "
        "`advantages`, a number per token. binary_masks: the same with masks of 0 and 1 (verl's recipe for "
        "Atropos). prefix_rows: for experiments. Required with turn rewards; without them the trainer gets "
        "plain scores.",
    )
    score_divisor: Annotated[int, Field(ge=1)] | Literal["own_length"] | None = Field(
        default=None,
        description="serve: turn_rows and prefix_rows score a row with advantage × trained tokens / this "
        "number; unset: max_tokens_per_turn. own_length: the advantage alone, which is biased if the trainer "
        "averages a row over its tokens, since a turn then weighs 1 / its length.",
    )
    rollout_server_url: str = Field(
        default="http://localhost:8000", repr=False, description="serve: URL of the Atropos trajectory API."
    )
    rollout_server_token: str = Field(
        default="", repr=False, description="serve: bearer token for the API, if a gateway requires one."
    )
    outbox_groups: int = Field(
        default=64,
        ge=1,
        le=100_000,
        description="serve: most groups that wait or are in flight at once.",
    )
    exit_when_api_away_s: float = Field(
        default=-1,
        ge=-1,
        description="serve: exit with code 1 if API or trainer are unreachable for so long; -1: wait.",
    )
    allow_approximate_tokens: bool = Field(
        default=False,
        description="serve: send token ids made from text, or rows without logprobs, if the model server "
        "returns neither.",
    )
    max_batches_offpolicy: int = Field(
        default=3, ge=1, description="serve: most batches that wait for the trainer."
    )
    min_batch_allocation: float | None = Field(
        default=None, ge=0, le=1, description="serve: least share of each batch for this environment."
    )
    worker_timeout: float = Field(
        default=600, ge=-1, description="serve: seconds for one group; -1: no limit."
    )

    def with_variables(self, variables: Mapping[str, str]) -> Self:
        """Return the settings with values of the process environment that they name.

        Raises:
            ConfigError: if a named variable is not set.
        """
        del variables
        return self

    @property
    def secrets(self) -> Collection[str]:
        """Values that neither a record nor a message may have."""
        return ()

    @property
    def has_dataset(self) -> bool:
        """Whether a dataset is named, on the hub or as a file."""
        return bool(self.dataset_name or self.dataset_path)


def check_config(config: Any, env_cls: type) -> AgentEnvConfig:
    if not isinstance(config, AgentEnvConfig):
        raise ConfigError(f"{env_cls.__name__} takes an AgentEnvConfig, got {type(config).__name__}")
    return config


logger = logging.getLogger(__name__)
_OPENAI_KEY = "OPENAI_API_KEY"
_OPENAI_URL = re.compile(r"https://([a-z0-9-]+\.)*api\.openai\.com(:\d+)?(/|$)", re.IGNORECASE | re.ASCII)


class ModelServerConfig(Section):
    """An OpenAI-compatible model server, and the sampling of each request to it."""

    by_entry: ClassVar[frozenset[str]] = frozenset({"extra_body"})

    base_url: str | None = Field(
        default="",
        repr=False,
        description="Base URL of an OpenAI-compatible server, for example http://localhost:8000/v1.",
    )
    model_name: str = Field(
        default=UNNAMED_MODEL, description="Name of the model on the server; unset: its only model."
    )
    api_key: str | None = Field(default="none", repr=False, description="API key of the server.")
    api_key_env: str | None = Field(
        default=None,
        description="Environment variable with the API key. Unset: OPENAI_API_KEY, for api.openai.com alone. "
        "Commands read it; a program gives `api_key`.",
    )
    num_max_requests_at_once: int = Field(
        default=64, ge=1, le=25_000, description="Most requests in flight at once; others wait."
    )
    temperature: float = Field(default=1.0, ge=0, le=2, description="Sampling temperature.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Nucleus sampling.")
    extra_body: dict[str, Any] = Field(
        default={},
        description="Further fields of each request, NAME VALUE (JSON) each: top_k, stop, tool_choice, "
        "chat_template_kwargs, …",
    )
    proxy: str | None = Field(
        default=None,
        repr=False,
        description="Proxy for requests to the server; unset on the command line: from http_proxy, "
        "https_proxy, all_proxy and no_proxy; `none`: no proxy.",
    )

    @field_validator("extra_body")
    @classmethod
    def _refuse_own_fields(cls, value: dict[str, Any]) -> dict[str, Any]:
        if own := sorted((value.keys() & cls.model_fields.keys()) - {"tools"}):
            raise ValueError(f"cannot set {own[0]}: set --{cls.section}.{own[0]}")
        return dict(validate_extra_body(value))

    @property
    def has_key(self) -> bool:
        return self.api_key not in (None, "", "none")


class SecondModelConfig(ModelServerConfig):
    """A server of a model beside the policy, such as a judge; its text is not trained on."""

    max_tokens: int = Field(default=1024, ge=1, description="Tokens of one answer, reasoning included.")


ServerT = TypeVar("ServerT", bound=ModelServerConfig)


class JudgeConfig(SecondModelConfig):
    """The server of the judge (`ctx.judge`); without a `base_url`, `scripted_judge` answers."""

    section = "judge"

    temperature: float = Field(default=0.0, ge=0, le=2, description="Sampling temperature.")


class UserConfig(SecondModelConfig):
    """The server of the simulated user; without a `base_url`, `scripted_user` answers."""

    section = "user"


class SummariserConfig(SecondModelConfig):
    """The server of the summariser; without a `base_url`, `scripted_summariser` answers."""

    section = "summariser"


class ReferenceConfig(SecondModelConfig):
    """The server of a reference model, which scores text for `ctx.policy_logprob(…, by="reference")`.

    It gets token ids (vLLM, SGLang), in the policy's tokenizer and chat format.
    """

    section = "reference"


Constraints = Literal["ask", "enforce", "refuse"]
_ServerType = Literal["auto", "chat", "vllm", "vllm_generate", "sglang", "sglang_chat", "llama.cpp"]


class ServerConfig(ModelServerConfig):
    """One model server of the policy; without a `base_url` the scripted agent plays."""

    section = "openai"
    without_effect: ClassVar[WithoutEffect] = {
        "timeout": ((1200,), "--env.request_timeout_s is the wall clock of one request"),
        "num_requests_for_eval": ((64,), "--env.max_concurrent_rollouts bounds an evaluation"),
        "rolling_buffer_length": ((1000,), "wandb gets every group"),
        "tokenizer_name": (("none",), "--env.tokenizer_name is that of the model"),
        "n_kwarg_is_ignored": ((False,), "each completion is a request of its own"),
        "health_check": ((True, False), "a server is asked once before a run, and when calls to it fail"),
    }

    num_max_requests_at_once: int = Field(
        default=512,
        ge=1,
        le=25_000,
        description="Most requests in flight at once, one connection each; refused above the process's limit "
        "of open files.",
    )
    server_type: _ServerType = Field(
        default="auto",
        description="API of the server. chat: messages, over /chat/completions. The others send token ids, "
        "which needs the model's own --env.tokenizer_name: vllm over /v1/completions, vllm_generate over "
        "/inference/v1/generate, sglang over /generate, sglang_chat over /v1/chat/completions with "
        "input_ids, llama.cpp over /completion. auto: detected, and logged.",
    )
    family: str | None = Field(
        default=None,
        description="Chat format of the model, for token ids and for tool calls in text: chatml, a name from "
        "`turnwise doctor model --families`, or template, which renders with the tokenizer's own chat "
        "template. Unset: by the model's name, and template where that fits none.",
    )
    tools: Literal["auto", "template", "prompt"] = Field(
        default="auto",
        description="Place of the tools: template, that of the model's chat format, or prompt, as text in "
        "the system message, for models whose chat template has none. auto: prompt where the tokenizer's own "
        "template is used and has no place for them, else template.",
    )
    context_tokens: int | None = Field(
        default=None,
        ge=16,
        description="The model's context window in tokens; unset: as the server reports it, if it does.",
    )
    constraints: Constraints = Field(
        default="ask",
        description="What becomes of a recorded agent's response_format and forced tool_choice. ask: text in "
        "the prompt, and the turn is sampled freely and trained. enforce: the server enforces it, and the "
        "turn is not trained. refuse: a 400.",
    )

    @field_validator("server_type", mode="before")
    @classmethod
    def _accept_atropos_names(cls, value: object) -> object:
        return "chat" if value in ("openai", "trl") else value


def with_keys(servers: Sequence[ServerT], variables: Mapping[str, str]) -> list[ServerT]:
    """Return the servers with the API keys that `api_key_env` names among these environment variables.

    Raises:
        ConfigError: if a named variable is missing or empty, or a server has a key already.
    """
    return [_with_key(server, variables) if server.base_url else server for server in servers]


def _with_key(server: ServerT, variables: Mapping[str, str]) -> ServerT:
    name, label = server.api_key_env, f"--{server.section}.api_key_env"
    if name is None:
        is_openai = _OPENAI_URL.match(str(server.base_url))
        if server.has_key or not is_openai or not variables.get(_OPENAI_KEY, "").strip():
            return server
        name = _OPENAI_KEY
    elif not re.fullmatch(r"[A-Za-z_]\w*", name):  # not quoted, since it may be the key
        raise ConfigError(f"{label} takes the name of an environment variable, such as {_OPENAI_KEY}")
    elif server.has_key:
        raise ConfigError(f"--{server.section}.api_key and {label} are both set; give one of them")
    key = variables.get(name, "").strip()
    if not key:
        problem = "empty" if name in variables else "not set"
        shown = f" {name}" if name.isupper() else ""  # another name may be the key
        raise ConfigError(f"{label}{shown}: this environment variable is {problem}") from KeyError(name)
    return server.model_copy(update={"api_key": key, "api_key_env": name})


def sampling_of(servers: Sequence[ServerConfig]) -> dict[str, float]:
    """Return the sampling settings that all servers share, without those that change nothing."""
    several = {(server.temperature, server.top_p) for server in servers}
    if len(several) > 1:
        raise ConfigError(
            "--openai.temperature and --openai.top_p differ between the model servers of one policy"
        )
    temperature, top_p = next(iter(several), (1.0, 1.0))
    return {} if temperature == top_p == 1.0 else {"temperature": temperature, "top_p": top_p}


def constraints_of(servers: Sequence[ModelServerConfig]) -> Constraints:
    several: set[Constraints] = {server.constraints for server in servers if isinstance(server, ServerConfig)}
    if len(several) > 1:
        raise ConfigError("--openai.constraints differs between the model servers of one policy")
    return several.pop() if several else "ask"


def server_configs(configured: Any) -> list[ModelServerConfig]:
    """Return the servers that `config_init` gives, converting Atropos' configuration classes to ours."""
    servers = cast("list[Any]", configured) if isinstance(configured, list | tuple) else [configured]
    for server in servers:
        if not isinstance(server, BaseModel):
            raise ConfigError(f"a model server is a ServerConfig, got {type(server).__name__}")
    converted: list[ModelServerConfig] = []
    for server in servers:
        if isinstance(server, ModelServerConfig):
            converted.append(server)
        elif hasattr(server, "base_url"):  # Atropos' ServerBaseline, without it, stands for "no server"
            for name, (_, instead) in ServerConfig.without_effect.items():
                if name in server.model_fields_set and name != "health_check":
                    logger.warning("config_init sets %s, which has no effect in Turnwise: %s", name, instead)
            known = {
                name: getattr(server, name) for name in ServerConfig.model_fields if hasattr(server, name)
            }
            if "server_type" not in server.model_fields_set:
                known.pop("server_type", None)  # `openai` is Atropos' default, not a choice
            converted.append(ServerConfig(**known))
    return converted
