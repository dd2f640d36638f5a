"""What a check is, how it is declared and the few words in which it states a fact."""

from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Unpack

from tools.sandbox.base import LimitOverrides
from tools.sandbox.conformance.bench import Bench

CheckFunction = Callable[[Bench], Awaitable[None]]
CHECKS: dict[str, "Check"] = {}
"""Every check by its name, filled when the topic files are imported."""


LACKING: Mapping[str, str] = {
    "disk_mb": "no file system bounds the workspace: it is counted now and then",
    "file_modes": "the modes and times of the user's own files can be changed by path",
    "hidden_processes": "names and arguments of the host's processes can be read",
    "host_files": "files of the host are open as far as their modes allow",
    "kernel_doors": "privileges can be gained from setuid programs, and no call is filtered",
    "network": "the host's network is within reach",
    "oom_score": "in a shortage of memory an agent can make its processes as dear as the host's",
    "own_tmp": "/tmp and /dev/shm are closed; TMPDIR names the folder for temporary files",
    "system_calls": "no system call is filtered: their numbers for this processor are not known",
    "verifier_files": "a verifier's files are files of the agent's user",
    "unix_sockets": "UNIX sockets cannot be made: by path they would lead to the user's services",
}
"""What a sandbox may say that it lacks (`SandboxRecord.lacks`), in words."""


class CheckFailedError(AssertionError):
    """A sandbox does not do what the check says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One claim about a sandbox."""

    number: int
    """From 1: Inspect's own 44, then ours."""
    name: str
    claim: str
    """One line in words."""
    run: CheckFunction | None = None
    """Raises when the claim does not hold; `None` for a check that no backend can pass, see `missing`."""
    limits: LimitOverrides = field(default_factory=LimitOverrides)
    """Of the sandbox that it gets."""
    needs: tuple[str, ...] = ()
    """Limits that have to be enforced; where one is not, the check is skipped."""
    gives: tuple[str, ...] = ()
    """What all of it is about; where the sandbox says that it lacks one, the check is skipped."""
    missing: str | None = None
    """Why the protocol has nothing to check."""


def check(
    number: int,
    *,
    needs: tuple[str, ...] = (),
    gives: tuple[str, ...] = (),
    **limits: Unpack[LimitOverrides],
) -> Callable[[CheckFunction], CheckFunction]:
    """Declare a function as a check; its name is the check's, the first line of its docstring the claim."""

    def declare(function: CheckFunction) -> CheckFunction:
        claim = (function.__doc__ or "").strip().partition("\n")[0]
        name = function.__name__
        CHECKS[name] = Check(
            number=number, name=name, claim=claim, run=function, limits=limits, needs=needs, gives=gives
        )
        return function

    return declare


def declare_missing(number: int, name: str, claim: str, reason: str) -> None:
    """Declare a check that the protocol has no words for."""
    CHECKS[name] = Check(number=number, name=name, claim=claim, missing=reason)


def equal(what: str, got: object, wanted: object) -> None:
    """State that two values are the same.

    Raises:
        CheckFailedError: they are not.
    """
    if got != wanted:
        raise CheckFailedError(f"{what}: got {_short(got)}, wanted {_short(wanted)}")


def holds(claim: str, condition: bool) -> None:
    """State a fact.

    Raises:
        CheckFailedError: it is none.
    """
    if not condition:
        raise CheckFailedError(f"not true: {claim}")


@contextmanager
def raises(*kinds: type[Exception], what: str) -> Generator[None]:
    """State that the block raises one of these errors.

    Raises:
        CheckFailedError: it raises nothing, or something else.
    """
    names = " or ".join(kind.__name__ for kind in kinds)
    try:
        yield
    except kinds:
        return
    except Exception as error:
        raise CheckFailedError(f"{what}: got {type(error).__name__}: {error}; wanted {names}") from error
    raise CheckFailedError(f"{what}: got no error; wanted {names}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:100]} … {text[-60:]} ({len(text)} characters)"
