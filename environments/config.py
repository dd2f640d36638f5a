"""Every setting of an environment: flat, bounded and described, as a flag, in YAML and in the help."""

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, cast, get_args, get_origin

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

from environments.policy.inference.dialect import validate_extra_body
from tools.errors import ConfigError
from tools.json_input import JsonError, read_exact_json
from tools.plain_text import nearest, without_credentials

WithoutEffect = Mapping[str, tuple[tuple[object, ...], str]]
"""Settings of Atropos that do nothing here: the values that are accepted, and what to do instead."""
BARE = True
"""The value of a flag that stands alone."""
_KINDS = {int: "whole number", float: "number", bool: "true or false", str: "text", NoneType: "None"}
_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


class Section(BaseModel):
    """Settings of one section of the command line or of a YAML file."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    section: ClassVar[str]
    """`env` for `--env.NAME`."""
    without_effect: ClassVar[WithoutEffect] = {}
    by_entry: ClassVar[frozenset[str]] = frozenset()
    """Mappings whose entries are settings of their own: layers join, and `None` unsets an entry."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Raise ConfigError if a field has the name of a setting without effect, which nothing reads."""
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
        """A setting as it is written on the command line, or in the file `origin`."""
        return f"{cls.section}.{name} in {origin}" if origin else f"--{cls.section}.{name}"

    def with_values(self, given: Mapping[str, Any], *, origin: str = "") -> Self:
        """Return the settings with other values over them, entry by entry in a mapping.

        `origin` is the YAML file that has the values; without one they are text of the command line.

        Raises:
            ConfigError: if a name is unknown, or a value is of the wrong kind or out of range.
        """
        values, labels = dict[str, Any](self), dict[str, str]()
        for written, value in given.items():
            name, dot, key = written.partition(".")
            label = labels[name] = self.label(written, origin)
            info = type(self).model_fields.get(name)
            has_entries = info is not None and get_origin(info.annotation) is dict
            if not (has_entries and key if dot else info is not None or name in self.without_effect):
                raise ConfigError(f"no setting {label}{self._meant(written, origin)}")
            if dot:
                value = {key: _entry(value, is_json=not origin and name == "extra_body")}
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

    def _meant(self, written: str, origin: str) -> str:
        prefix = f"{self.section}." if origin else f"--{self.section}."
        if written.startswith("estimator_") and "." not in written:
            name = written.removeprefix("estimator_")
            return f"; a parameter of the estimator is {prefix}estimator_params.{name}"
        return nearest(written, type(self).model_fields, prefix)

    def help_line(self, name: str) -> tuple[str, str]:
        """The flag of a setting, and its first sentence with the default and the bounds."""
        info, default = type(self).model_fields[name], getattr(self, name)
        notes = [] if default is None or default == "" else [without_credentials(f"default: {default}")]
        if any(get_origin(kind) is Literal for kind in _alternatives(info.annotation)):
            notes.append(_kinds(info))
        notes += _bounds(info)
        text = f"{(info.description or '').partition('. ')[0].rstrip('.')}."
        return self.label(name, ""), f"{text} [{'; '.join(notes)}]" if notes else text

    def help_rows(self, name: str) -> list[tuple[str, str]]:
        """The kind, the default and the bounds of a setting."""
        info, default = type(self).model_fields[name], without_credentials(str(getattr(self, name)))
        rows = [("kind", _kinds(info)), ("default", default), ("bounds", ", ".join(_bounds(info)))]
        return [row for row in rows if row[1]]


def mapping_of(value: object, where: str) -> dict[str, Any]:
    """Return a mapping with its keys as text.

    Raises:
        ConfigError: if the value is no mapping.
    """
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be a mapping of names to values, got a {type(value).__name__}")
    return {str(key): entry for key, entry in cast("dict[Any, Any]", value).items()}


def _entry(value: Any, *, is_json: bool) -> Any:
    """The value of an entry of a mapping; `None` unsets it."""
    if value == "None":
        return None
    try:
        return read_exact_json(value, lenient=True) if is_json and isinstance(value, str) else value
    except JsonError:
        return value


def _from_text(field: FieldInfo, value: Any, label: str, *, is_flag: bool) -> Any:
    """A value of the command line in a shape that pydantic reads; of a file, `a, b` for a list."""
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
    """The first problem of each setting: a union of kinds has one for each kind."""
    problems: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        text = problem["msg"].removeprefix("Input ").removeprefix("Value error, ")
        if problem["loc"]:
            name = str(problem["loc"][0])
            # A mapping, such as `extra_body`, may hold a key.
            hidden = name.endswith(("_key", "_token")) or isinstance(problem["input"], dict)
            got = "" if hidden else f", got {problem['input']!r}"
            text = f"{labels.get(name, f'{section}.{name}'.lstrip('.'))} {text}{got}"
        problems.setdefault(str(problem["loc"][:1]), " ".join(text.split()))
    return "; ".join(problems.values())


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """The kinds of a union, or the only one."""
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
    """Whether a value, perhaps still text, is the accepted one."""
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
"""The titles of the groups of `AgentEnvConfig`'s settings, by the first setting of each."""


PathText = Annotated[str, AfterValidator(os.path.expanduser)]
"""The type of settings that name a file or a folder; `~` is the user's home."""


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
        description="process: groups to roll out, going round the items again when there are fewer; -1: "
        "every item once. serve: trainer steps; -1: what the trainer says.",
    )
    shuffle: bool = Field(
        default=False,
        description="Roll the items out in another order each time round, as --env.seed decides.",
    )
    weight_field: str | None = Field(
        default=None,
        description="Field of the items with how often each is rolled out, relative to the others; 0: never.",
    )
    seed: int = Field(default=0, ge=0, description="Seed of the whole run; each rollout derives its own.")

    group_size: int = Field(default=4, ge=1, le=1024, description="Rollouts per item.")
    min_group_size: int = Field(
        default=2, ge=1, description="Siblings that must survive; a smaller group is recorded as failed."
    )
    max_turns: int = Field(default=10, ge=1, le=10_000, description="Model calls per rollout.")
    max_tokens_per_turn: int = Field(default=1024, ge=1, description="Tokens one model call may sample.")
    token_budget: int = Field(default=16_384, ge=1, description="Tokens one rollout may sample in all.")
    max_token_length: int = Field(
        default=32768, ge=16, description="Tokens one training row may have; a rollout stops before it."
    )
    rollout_timeout_s: float = Field(
        default=300.0,
        gt=0,
        description="Wall clock of a rollout's turns, tools included; at its end the rollout is scored.",
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
        "sandbox to the end of the command; not on the hook's clock. Beyond it the answer is not correct.",
    )
    hook_block_s: float = Field(
        default=120.0,
        gt=0,
        description="Code of the environment that blocks the event loop for so long ends the run, by name.",
    )
    max_failed_groups: int = Field(
        default=16,
        ge=0,
        description="process, evaluate: stop after so many groups in a row of which no rollout was left, or "
        "that could not be compared; 0: never. serve slows down instead.",
    )
    max_concurrent_rollouts: int = Field(default=16, ge=1, le=4096, description="Rollouts in flight at once.")
    profile: bool = Field(
        default=False,
        description="Measure where the time of each rollout goes (hooks, tools, condensers, models), for the "
        "summary and the record.",
    )

    scripted_skill: float = Field(
        default=0.6, ge=0, le=1, description="How good the scripted agent is: 0 clumsy, 1 flawless."
    )
    tokenizer_name: PathText = Field(
        default=EMBEDDED_TOKENIZER,
        description="Tokenizer for text of servers that return no token ids: `embedded`, a local folder or "
        "a Hugging Face name.",
    )
    request_timeout_s: float = Field(
        default=120.0, gt=0, description="Wall clock of one request to the server."
    )

    condenser: list[str] | None = Field(
        default=None,
        description="What keeps long conversations short, asked in this order before each model call: "
        "trim_tool_output, keep_last_turns, fit_context, summarise (by the policy, trained and credited), "
        "summarise_by_model (by a second model, --summariser.base_url, untrained), or none. Unset: what the "
        "class names, else none.",
    )
    condenser_tokens: int | None = Field(
        default=None,
        ge=32,
        description="Tokens that a prompt may have. fit_context: unset: max_token_length less "
        "max_tokens_per_turn. summarise: unset: 3/4 of max_token_length.",
    )
    condenser_turns: int | None = Field(
        default=None,
        ge=1,
        description="keep_last_turns: turns that stay, 8 unless set. summarise: turns that a summary "
        "replaces; unset: tokens alone decide.",
    )
    condenser_tool_tokens: int = Field(
        default=512, ge=32, description="trim_tool_output: tokens of one tool result."
    )

    enabled_toolsets: list[str] | None = Field(
        default=None, description="Toolsets the agent gets; unset: those of the environment."
    )
    tool_output_chars: int = Field(
        default=8_000, ge=200, description="Characters of a tool's output the model sees; the middle is cut."
    )
    tool_timeout_s: float = Field(
        default=30.0,
        gt=0,
        description="Longest a tool may take, and each of its commands; the model is told of the stop.",
    )

    sandbox: str | None = Field(
        default=None,
        description="Where the agent's code runs: local, docker, a backend that a package registers, or none "
        "at all; unset: what the environment says, else local.",
    )
    verify_sandbox: str | None = Field(
        default=None,
        description="Where ctx.verify runs when the sandbox is none; unset: local. Otherwise it runs in a "
        "sandbox of the same kind.",
    )
    artefacts_mb: int = Field(
        default=16,
        ge=0,
        le=1024,
        description="Files of one rollout that are kept beside the record, as hooks took them out of the "
        "sandbox (ctx.verify, ctx.artefact, `keep`), so that rewards can be computed anew. 0: none.",
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
        description="A rollout without an outcome (or any reward) beside siblings with one. refuse: its "
        "group fails. drop: it is dropped, which selects on behaviour. A number: its outcome. Unset: what "
        "the environment says; else refuse where it writes compute_outcome, and 0 for a rollout without any "
        "reward where it writes none.",
    )
    failed_score: Annotated[float, Field(ge=-1e100, le=1e100)] | None = Field(
        default=None,
        description="The outcome of a rollout that the agent broke (its sandbox, a tool's limit, files that "
        "rewards read, a judge's answer): at most what an honest rollout that loses gets. Unset: what the "
        "environment says, else 0.",
    )
    mask_truncated: bool = Field(
        default=False,
        description="Leave turns that were cut at a limit of tokens (finish reason `length`) out of "
        "training; their rewards count for other turns all the same.",
    )
    max_staleness: int | None = Field(
        default=None,
        ge=0,
        description="Versions of the weights that may have been met since the oldest turn of a rollout was "
        "sampled; an older one is compared with and not trained. 0: only the newest weights. serve paces "
        "itself by it, and looks again before it sends. Takes a server that says versions; unset: any age.",
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
        description="The estimator's parameters, --env.estimator_params.NAME VALUE; unset: the preset's, or "
        "the estimator's own defaults. `turnwise credit` names them.",
    )

    eval_share: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of the items, chosen by their ids, that only evaluate rolls out: process and "
        "serve leave it out.",
    )
    eval_rollouts: int = Field(default=4, ge=1, le=1024, description="Rollouts per evaluation item.")
    pass_score: float = Field(
        default=1.0,
        allow_inf_nan=False,
        description="Outcome, or score where there is none, from which a rollout counts as passed.",
    )

    data_path_to_save_groups: PathText | None = Field(
        default=None,
        description="A plain file for the rollout JSONL; unset: process has a folder of its own, serve none.",
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
        description="serve: how turn rewards are shown; it has to be what the trainer reads. turn_rows: to "
        "one that reads only scores (Atropos' example trainer). token_advantages: to one that reads "
        "`advantages`, a number per token. binary_masks: to one that reads them and takes masks for 0 and 1 "
        "(verl's recipe for Atropos). prefix_rows: for experiments. Unset: asked for where there are turn "
        "rewards; without them the trainer gets plain scores.",
    )
    score_divisor: Annotated[int, Field(ge=1)] | Literal["own_length"] | None = Field(
        default=None,
        description="serve: turn_rows, prefix_rows score a row with its advantage times its trained tokens "
        "over this number; unset: max_tokens_per_turn. own_length: with the advantage alone, which is biased "
        "where a trainer averages a row over its tokens: a turn weighs 1/its own length.",
    )
    rollout_server_url: str = Field(
        default="http://localhost:8000", repr=False, description="serve: URL of the Atropos trajectory API."
    )
    rollout_server_token: str = Field(
        default="", repr=False, description="serve: bearer token of each request to it, as a gateway asks."
    )
    outbox_groups: int = Field(
        default=64,
        ge=1,
        le=100_000,
        description="serve: groups that may wait or be in flight; more are not started.",
    )
    exit_when_api_away_s: float = Field(
        default=-1,
        ge=-1,
        description="serve: exit with code 1 when the API or its trainer is away for that long; -1: wait.",
    )
    allow_approximate_tokens: bool = Field(
        default=False,
        description="serve: send token ids that were made from text, or rows without logprobs, when the "
        "model server gives neither.",
    )
    max_batches_offpolicy: int = Field(default=3, ge=1, description="serve: batches that may wait.")
    min_batch_allocation: float | None = Field(
        default=None, ge=0, le=1, description="serve: share of a batch that this environment must fill."
    )
    worker_timeout: float = Field(
        default=600, ge=-1, description="serve: seconds for one group; -1: no limit."
    )

    @property
    def has_dataset(self) -> bool:
        """Whether a dataset is named, on the hub or as a file."""
        return bool(self.dataset_name or self.dataset_path)


def check_config(config: Any, env_cls: type) -> AgentEnvConfig:
    """The config that an environment is made with.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(config, AgentEnvConfig):
        raise ConfigError(f"{env_cls.__name__} takes an AgentEnvConfig, got {type(config).__name__}")
    return config


logger = logging.getLogger(__name__)


class ModelServerConfig(Section):
    """An OpenAI-compatible model server of any role, and what each request to it has."""

    by_entry: ClassVar[frozenset[str]] = frozenset({"extra_body"})

    base_url: str | None = Field(
        default="",
        repr=False,
        description="Base URL of an OpenAI-compatible server, for example http://localhost:8000/v1.",
    )
    model_name: str = Field(default="default", description="The model to ask for.")
    api_key: str | None = Field(default="none", repr=False, description="API key of the server.")
    num_max_requests_at_once: int = Field(
        default=64, ge=1, le=25_000, description="Requests in flight at once; others wait."
    )
    temperature: float = Field(default=1.0, ge=0, le=2, description="Sampling temperature.")
    top_p: float = Field(default=1.0, gt=0, le=1, description="Nucleus sampling.")
    extra_body: dict[str, Any] = Field(
        default={},
        description="More fields of each request, NAME VALUE (JSON) each: top_k, stop, tool_choice, "
        "chat_template_kwargs, …",
    )
    proxy: str | None = Field(
        default=None,
        repr=False,
        description="Proxy for requests to it; unset on the command line: what http_proxy, https_proxy, "
        "all_proxy and no_proxy name; `none`: no proxy.",
    )

    @field_validator("extra_body")
    @classmethod
    def _ours_stay_ours(cls, value: dict[str, Any]) -> dict[str, Any]:
        if own := sorted(value.keys() & cls.model_fields.keys()):
            raise ValueError(f"cannot set {own[0]}: set --{cls.section}.{own[0]}")
        return dict(validate_extra_body(value))


class SecondModelConfig(ModelServerConfig):
    """A model beside the policy, asked by messages for text that is not trained on."""

    max_tokens: int = Field(default=1024, ge=1, description="Tokens of one answer, reasoning included.")


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
        description="Requests in flight at once, each over a connection of its own; more than this process "
        "may open files is refused.",
    )
    server_type: Literal["auto", "chat", "vllm", "vllm_generate", "sglang", "sglang_chat"] = Field(
        default="auto",
        description="How it is asked. chat: messages, over /chat/completions. The others send token ids, "
        "which needs the model's own --env.tokenizer_name: vllm over /v1/completions, vllm_generate over "
        "/inference/v1/generate, sglang over /generate, sglang_chat over /v1/chat/completions with "
        "input_ids. auto: asks the server what it is, and logs it.",
    )
    family: str | None = Field(
        default=None,
        description="The model's chat format, for its token ids and for tool calls that it writes as text: "
        "chatml, or a name of `turnwise doctor model --families`. Unset: by the model's name.",
    )
    context_tokens: int | None = Field(
        default=None,
        ge=16,
        description="The model's context window; unset: as the server reports it, if it does.",
    )

    @field_validator("server_type", mode="before")
    @classmethod
    def _in_atropos_words(cls, value: object) -> object:
        return "chat" if value in ("openai", "trl") else value


def sampling_of(servers: Sequence[ServerConfig]) -> dict[str, float]:
    """How the policy's servers are asked to sample; empty if nothing reshapes what the model gives.

    Raises:
        ConfigError: two of them sample differently.
    """
    several = {(server.temperature, server.top_p) for server in servers}
    if len(several) > 1:
        raise ConfigError(
            "--openai.temperature and --openai.top_p differ between the model servers of one policy"
        )
    temperature, top_p = next(iter(several), (1.0, 1.0))
    return {} if temperature == top_p == 1.0 else {"temperature": temperature, "top_p": top_p}


def server_configs(configured: Any) -> list[ModelServerConfig]:
    """The servers that `config_init` names, one or a list, in our words or in Atropos'.

    What Atropos' words set and has no effect here is logged as a warning.

    Raises:
        ConfigError: one of them is no server config.
    """
    servers = cast("list[Any]", configured) if isinstance(configured, list | tuple) else [configured]
    for server in servers:
        if not isinstance(server, BaseModel):
            raise ConfigError(f"a model server is a ServerConfig, got {type(server).__name__}")
    # Atropos' ServerBaseline stands for "no server": it has no base_url.
    return [
        server if isinstance(server, ModelServerConfig) else _in_our_words(server)
        for server in servers
        if hasattr(server, "base_url")
    ]


def _in_our_words(server: BaseModel) -> ServerConfig:
    for name, (_, instead) in ServerConfig.without_effect.items():
        if name in server.model_fields_set and name != "health_check":
            logger.warning("config_init sets %s, which has no effect in Turnwise: %s", name, instead)
    known = {name: getattr(server, name) for name in ServerConfig.model_fields if hasattr(server, name)}
    if "server_type" not in server.model_fields_set:
        known.pop("server_type", None)  # `openai` is Atropos' default, and says nothing
    return ServerConfig(**known)
