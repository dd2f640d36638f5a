"""The error tree of Turnwise, sorted by responsibility.

```
TurnwiseError
├── ToolError                 for the model: the text becomes the tool's result, the rollout continues
├── RolloutError              nobody acts: this sibling is dropped and recorded, the group continues
│   ├── PolicyError           the model call failed after its retries
│   │   ├── ContextOverflow   the conversation no longer fits: the rollout ends there and still counts
│   │   └── SecondModelError  a judge or simulated user gave no usable answer
│   ├── SandboxError          the sandbox is broken; never shown to the model as output
│   │   ├── SandboxCreateError     nothing is left behind
│   │   │   └── ImageUnavailable   the image of one item; other items' rollouts continue
│   │   └── SandboxUnavailable     an open sandbox no longer answers
│   ├── ToolServerLost        the server of a rollout's tools ended or is unreachable
│   ├── RewardError           a reward has a wrong length, NaN or infinity
│   ├── AgentCausedError      the agent broke it: scored with the floor, never a missing sibling
│   ├── GroupRefused          dropping one sibling would select on behaviour: its group fails
│   ├── RequestsRefused       an agent ended without a completion, and its requests were refused
│   ├── TimeLimitExceeded     a hook, a tool or a policy exceeded its limit
│   ├── UserCodeBroke         the environment raised SystemExit, CancelledError, …, its cause
│   └── WireError             a trainer would misread the rows; the group is kept back with the reason
├── RunError                  for the developer: the run stops with exit code 1; its cause is shown whole
└── UsageError                for the developer: one line, exit code 2, never a traceback
    ├── ConfigError           a setting, a name or an option
    │   ├── ServerAway        a model server does not answer now; `serve` waits for it
    │   └── NoModelError      no model plays the judge or the user: every rollout would fail
    ├── DatasetError          items
    ├── RecordError           a rollout JSONL
    ├── CreditError           numbers or parameters of an estimator
    └── IsolationError        this machine cannot isolate code as required
```
"""

from typing import Literal

AgentCause = Literal[
    "sandbox_lost", "tool_timeout", "unreadable_files", "unusable_answer", "agent_error", "no_verdict"
]
"""`no_verdict`: the tests pass only on the original files and give no verdict with the agent's."""


class TurnwiseError(Exception):
    """Base class of all errors that Turnwise raises deliberately."""


class ToolError(TurnwiseError):
    """A tool refuses a call; the message is for the model."""


class RolloutError(TurnwiseError):
    """A rollout is lost; the sibling is dropped, never scored."""


class PolicyError(RolloutError):
    pass


class ContextOverflow(PolicyError):
    pass


class SecondModelError(PolicyError):
    pass


class SandboxError(RolloutError):
    pass


class SandboxCreateError(SandboxError):
    pass


class ImageUnavailable(SandboxCreateError):
    pass


class SandboxUnavailable(SandboxError):
    pass


class ToolServerLost(RolloutError):
    pass


class RewardError(RolloutError):
    pass


class AgentCausedError(RolloutError):
    def __init__(self, message: str, *, cause: AgentCause) -> None:
        super().__init__(message)
        self.cause: AgentCause = cause


class GroupRefused(RolloutError):
    pass


class RequestsRefused(RolloutError):
    pass


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
    pass


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
