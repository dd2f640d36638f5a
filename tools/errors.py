"""The error tree of Turnwise, sorted by who must act.

```
TurnwiseError
├── ToolError                 the model acts: the text becomes the tool's result, the rollout goes on
├── RolloutError              no action: this sibling is dropped and recorded, the group goes on
│   ├── PolicyError           the model call is lost (after its retries)
│   │   ├── ContextOverflow   the conversation no longer fits: the rollout ends there and still counts
│   │   └── SecondModelError  a judge or a simulated user gave no answer
│   ├── SandboxError          the sandbox is broken; never shown to the model as output
│   │   ├── SandboxCreateError
│   │   │   └── ImageUnavailable   the image of one item; other items' rollouts go on
│   │   └── SandboxUnavailable
│   ├── ToolServerLost        the server of a rollout's tools ended, or cannot be reached
│   ├── RewardError           the environment's reward broke the contract
│   ├── AgentCausedError      the agent broke it: scored with the floor, never a missing sibling
│   ├── GroupRefused          dropping it alone would select on behaviour: its group fails
│   ├── TimeLimitExceeded     a hook, a tool or a policy took longer than it may
│   ├── UserCodeBroke         the environment's code raised what is no `Exception`, its cause
│   └── WireError             rows that a trainer would misread; the group is put aside with the reason
├── RunError                  the developer acts: the run cannot go on, exit code 1; its cause is shown whole
└── UsageError                the developer acts: one line, exit code 2, never a traceback
    ├── ConfigError           a setting, a name or an option
    │   ├── ServerAway        a model server that does not answer now; `serve` waits for it
    │   └── NoModelError      no model plays the judge or the user: no rollout can go on
    ├── DatasetError          an item source
    ├── RecordError           a rollout JSONL
    ├── CreditError           the numbers or parameters given to an estimator
    └── IsolationError        this machine cannot isolate code as asked
```
"""

from typing import Literal

AgentCause = Literal[
    "sandbox_lost", "tool_timeout", "unreadable_files", "unusable_answer", "agent_error", "no_verdict"
]
"""What an agent can break: its sandbox, the limit of a tool, the files that a hook reads or writes, the
answer of a second model that reads its text, its own program where hooks find nothing to score then, tests
that give a verdict without its files and none with them."""


class TurnwiseError(Exception):
    """Base of every error that Turnwise raises on purpose."""


class ToolError(TurnwiseError):
    """A tool refuses a call; the message is written for the model."""


class RolloutError(TurnwiseError):
    """A rollout is lost. The sibling is dropped and never scored."""


class PolicyError(RolloutError):
    """The policy gave no usable completion."""


class ContextOverflow(PolicyError):
    """The prompt is longer than the model's context."""


class SecondModelError(PolicyError):
    """A judge or a simulated user gave no answer that can be used."""


class SandboxError(RolloutError):
    """The sandbox itself is broken, as opposed to a command that failed in it."""


class SandboxCreateError(SandboxError):
    """No sandbox could be made; nothing of it is left behind."""


class ImageUnavailable(SandboxCreateError):
    """The image that an item asks for cannot be had."""


class SandboxUnavailable(SandboxError):
    """A sandbox that was open is gone or no longer answers."""


class ToolServerLost(RolloutError):
    """The server of a rollout's tools ended, or cannot be reached."""


class RewardError(RolloutError):
    """A reward broke the contract: wrong length, NaN or infinity."""


class AgentCausedError(RolloutError):
    """What the agent broke, as the message shows: its trajectory gets the floor as outcome."""

    def __init__(self, message: str, *, cause: AgentCause) -> None:
        super().__init__(message)
        self.cause: AgentCause = cause


class GroupRefused(RolloutError):
    """Dropping this sibling alone would select on behaviour: its whole group fails."""


class TimeLimitExceeded(RolloutError):
    """A hook, a tool or a policy took longer than it may."""

    def __init__(self, message: str, *, still_running: bool = False) -> None:
        super().__init__(message)
        self.still_running = still_running
        """Whether it goes on, and may still change what it knows of."""


class UserCodeBroke(RolloutError):
    """An environment's code raised what is no `Exception` (`SystemExit`, `CancelledError`, …): the cause."""


class WireError(RolloutError):
    """Rows that a trainer would misread: they never leave."""


class RunError(TurnwiseError):
    """The run cannot go on. What an environment's code raised is the cause."""


class UsageError(TurnwiseError):
    """Wrong input from the person who runs Turnwise."""


class ConfigError(UsageError):
    """A setting, a name or an option is wrong."""


class ServerAway(ConfigError):
    """A model server does not answer now, and may later."""


class NoModelError(ConfigError):
    """An environment asks a model that has no server and no script: every rollout of the run would fail."""


class DatasetError(UsageError):
    """Items cannot be loaded, or one of them is malformed."""


class RecordError(UsageError):
    """A rollout JSONL cannot be read or written."""


class CreditError(UsageError):
    """An estimator got numbers or parameters that it cannot use."""


class IsolationError(UsageError):
    """This machine cannot isolate code the way it was asked to."""
