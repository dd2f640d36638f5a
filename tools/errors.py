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
"""What an agent broke: its sandbox, a tool's time limit, files that a hook uses, a second model's answer
about its text, its own program before anything could be scored, or a test run that gives a verdict only
without its files.
"""


class TurnwiseError(Exception):
    """Base class of all errors that Turnwise raises deliberately."""


class ToolError(TurnwiseError):
    """A tool refuses a call; the message is for the model."""


class RolloutError(TurnwiseError):
    """A rollout is lost; the sibling is dropped, never scored."""


class PolicyError(RolloutError):
    """The policy gave no usable completion."""


class ContextOverflow(PolicyError):
    """The prompt exceeds the model's context."""


class SecondModelError(PolicyError):
    """A judge or simulated user gave no usable answer."""


class SandboxError(RolloutError):
    pass


class SandboxCreateError(SandboxError):
    """No sandbox was created; nothing is left behind."""


class ImageUnavailable(SandboxCreateError):
    pass


class SandboxUnavailable(SandboxError):
    pass


class ToolServerLost(RolloutError):
    pass


class RewardError(RolloutError):
    pass


class AgentCausedError(RolloutError):
    """The agent broke something, see the message; its trajectory gets the floor as outcome."""

    def __init__(self, message: str, *, cause: AgentCause) -> None:
        super().__init__(message)
        self.cause: AgentCause = cause


class GroupRefused(RolloutError):
    """The group fails, since dropping this sibling alone would select on behaviour."""


class TimeLimitExceeded(RolloutError):
    def __init__(self, message: str, *, still_running: bool = False) -> None:
        super().__init__(message)
        self.still_running = still_running
        """Whether the code still runs and may change state that it can reach."""


class UserCodeBroke(RolloutError):
    pass


class WireError(RolloutError):
    pass


class RunError(TurnwiseError):
    """The run cannot continue; the cause is an error of the environment's code."""


class UsageError(TurnwiseError):
    """Wrong input from the user of Turnwise."""


class ConfigError(UsageError):
    """A setting, a name or an option is wrong."""


class ServerAway(ConfigError):
    pass


class NoModelError(ConfigError):
    pass


class DatasetError(UsageError):
    pass


class RecordError(UsageError):
    pass


class CreditError(UsageError):
    pass


class IsolationError(UsageError):
    pass
