"""Coding agents of others, each a `Command` of one line: `agent = ClaudeCode()`."""

import json
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from environments.rollout.agents.command import Command, host_path
from tools.errors import ConfigError

_MODEL = "turnwise"


class _Harness(Command):
    name: ClassVar[str]
    program: ClassVar[Sequence[str]]
    before_prompt: ClassVar[Sequence[str]] = ()
    variables: ClassVar[Mapping[str, str]] = {}
    options: ClassVar[Mapping[str, Any]] = {}
    install: ClassVar[str]

    def __init__(
        self,
        *arguments: str,
        argv: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """`arguments` follow the program's own, or `argv` is all of them; `options` are those of `Command`.

        Threads that never offer tools, such as one for a title, are not trained.
        """
        argv = argv or [*self.program, *arguments, *self.before_prompt]
        options = {"train_threads": "with_tools", **self.options, **options}
        super().__init__(argv, env={**self.variables, **(env or {})}, **options)

    def refuse_missing(self, env: str) -> None:
        if self.where == "host" and shutil.which(self.name, path=host_path()) is None:
            problem = f"there is no program {self.name!r} on the PATH; install it: {self.install}"
            raise ConfigError(f"environment {env!r}: agent: {problem}")
        super().refuse_missing(env)


class ClaudeCode(_Harness):
    """Anthropic's command `claude`, which asks no permission."""

    name = "claude"
    program = ("claude", "--print", "--dangerously-skip-permissions")
    before_prompt = ("--",)
    variables: ClassVar = {
        "ANTHROPIC_MODEL": _MODEL, "ANTHROPIC_SMALL_FAST_MODEL": _MODEL, "IS_SANDBOX": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
    }  # fmt: skip
    install = "npm install --global @anthropic-ai/claude-code"


class Codex(_Harness):
    """OpenAI's command `codex exec`, without Codex's own sandbox."""

    name = "codex"
    program = (
        "sh", "-c", """exec codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox \\
            --model turnwise --config model_provider=turnwise \\
            --config "model_providers.turnwise={name='turnwise', base_url='$OPENAI_BASE_URL', \\
                env_key='OPENAI_API_KEY', wire_api='responses'}" "$@" """, "codex",
    )  # fmt: skip
    before_prompt = ("--",)
    install = "npm install --global @openai/codex"


class OpenCode(_Harness):
    """The command `opencode run`."""

    name = "opencode"
    program = ("opencode", "run", "--model", f"{_MODEL}/{_MODEL}")
    before_prompt = ("--",)
    variables: ClassVar = {
        "OPENCODE_CONFIG_CONTENT": json.dumps({
            "autoupdate": False, "share": "disabled", "permission": "allow",
            "provider": {_MODEL: {
                "npm": "@ai-sdk/openai-compatible", "models": {_MODEL: {}},
                "options": {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"},
            }},
        }),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }  # fmt: skip
    install = "npm install --global opencode-ai"


class MiniSweAgent(_Harness):
    """The command `mini` of mini-swe-agent, which runs shell commands without asking first."""

    name = "mini"
    program = ("mini", "--yolo", "--exit-immediately", "--model", f"openai/{_MODEL}")
    before_prompt = ("--task",)
    variables: ClassVar = {
        "MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_SILENT_STARTUP": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }  # fmt: skip
    install = "pip install mini-swe-agent"


class QwenCode(_Harness):
    """The command `qwen` of Qwen Code, which asks no permission."""

    name = "qwen"
    program = ("qwen", "--yolo", "--auth-type", "openai")
    variables: ClassVar = {"OPENAI_MODEL": _MODEL}
    options: ClassVar = {"prompt": "stdin"}
    install = "npm install --global @qwen-code/qwen-code"
