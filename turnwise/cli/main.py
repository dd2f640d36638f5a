"""The command line: the table of commands, each imported when it runs, and errors in one line."""

import errno
import gc
import importlib
import os
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import current_thread, main_thread
from threading import enumerate as enumerate_threads
from typing import Any, NamedTuple, NoReturn, cast

import click

from environments.run.console_streams import (
    HUNG_THREAD,
    open_closed_descriptors,
    redirect_to_null,
    robust_console,
)
from tools.errors import TurnwiseError, UsageError
from tools.extras import OWN_FOLDERS
from tools.plain_text import did_you_mean, without_credentials

FAILED_EXIT = 1
USAGE_EXIT = 2
COMPLETE = "_TURNWISE_COMPLETE"
"""Set by click's completion script when the shell asks for completions."""
_DESCRIPTORS = 65_536
_STDOUT = 1


class LazyCommand(NamedTuple):
    module: str
    """A module of `turnwise.cli`; `module:name` if its `click.Command` is not named `command`."""
    help: str
    group: str
    runs_env: bool

    def load(self) -> click.Command:
        """Import the command, without collecting garbage in its modules: that takes a seventh of a start."""
        if not self.module:
            return LazyGroup(_DOCTOR, help=self.help)
        module, _, name = self.module.partition(":")
        collects = gc.isenabled()
        gc.disable()
        try:
            return getattr(importlib.import_module(f"turnwise.cli.{module}"), name or "command")
        finally:
            gc.freeze()
            if collects:
                gc.enable()


_TABLE: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "First steps": {
        "new": ("new:new_command", "Make a folder with an environment that runs: code, data, test, README."),
        "check": ("check_env", "Find out whether an environment is right, without a model."),
        "list": (
            "new:list_command",
            "Name the environments: those that are shipped, and those of installed packages.",
        ),
    },
    "Run": {
        "process": ("process:process_command", "Roll out an environment's items into a rollout JSONL."),
        "evaluate": (
            "evaluate:evaluate_command",
            "Run the evaluation items several times each and report score and pass@k.",
        ),
        "serve": (
            "process:serve_command",
            "Roll out for ever and feed a trainer behind an Atropos trajectory API.",
        ),
        "mock-model": ("mock_model", "Serve an environment's scripted agent as an OpenAI-compatible model."),
        "smol": (
            "smol",
            "Serve a small language model from a GGUF on this machine, and print the flags to use.",
        ),
    },
    "Look": {
        "view": ("view", "Show a rollout JSONL or a run: one HTML file, or --text in the terminal."),
        "runs": ("runs", "List what has been run: groups, score, fingerprint, finished or not."),
        "compare": ("evaluate:compare_command", "Put two runs, evaluations or records side by side."),
    },
    "Credit": {
        "credit": ("credit", "List the estimators; compute a record's credit, or its rewards, anew."),
    },
    "Records": {
        "export": (
            "export",
            "Write a rollout JSONL as the rows that a trainer would get, as text or as a table.",
        ),
        "import": (
            "import_sessions",
            "Make a rollout JSONL of logged conversations with votes and outcomes.",
        ),
    },
    "Examine": {
        "doctor": ("", "Examine a model server, a trainer or the sandboxes of this machine."),
    },
    "Commands": {  # of doctor
        "model": (
            "doctor_model",
            "Find out what a model server gives: token ids, logprobs, tool calls, and what to set.",
        ),
        "trainer": ("doctor_trainer", "Find out whether your trainer takes the gradient of per-turn credit."),
        "sandbox": ("doctor_sandbox", "Prove a sandbox backend, list sandboxes, remove orphans."),
    },
}
_OF_ENV = frozenset({"check", "process", "evaluate", "serve", "mock-model", "credit"})
_EVERY = {
    name: LazyCommand(module, text, group, name in _OF_ENV)
    for group, commands in _TABLE.items()
    for name, (module, text) in commands.items()
}
_DOCTOR = {name: command for name, command in _EVERY.items() if command.group == "Commands"}
COMMANDS = {name: command for name, command in _EVERY.items() if name not in _DOCTOR}
_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class OutputError(TurnwiseError):
    """A command's output cannot be written."""


class LazyGroup(click.Group):
    def __init__(self, lazy: Mapping[str, LazyCommand], **options: Any) -> None:
        super().__init__(no_args_is_help=True, **options)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self.lazy[cmd_name].load() if cmd_name in self.lazy else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.lazy and not name.startswith("-"):
            raise click.UsageError(f"No such command {name!r}{did_you_mean(name, self.lazy)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.lazy))
        for group in dict.fromkeys(each.group for each in self.lazy.values()):
            rows = [(name.ljust(width), each.help) for name, each in self.lazy.items() if each.group == group]
            with formatter.section(group):
                formatter.write_dl(rows)


def main(args: Sequence[str] | None = None) -> int:
    purpose = "Agent environments for reinforcement learning with correct per-turn credit."
    group = LazyGroup(COMMANDS, name="turnwise", help=purpose)
    click.version_option(package_name="turnwise", message="%(prog)s %(version)s")(group)
    if (instruction := os.environ.get(COMPLETE)) is not None:
        from click.shell_completion import shell_complete  # noqa: PLC0415  # rarely needed

        return shell_complete(group, {}, "turnwise", COMPLETE, instruction)
    return _run(group, args, prog_name="turnwise", env_cls=None)


def main_for(env_cls: type, args: Sequence[str] | None = None) -> NoReturn:
    """Run the commands of one environment, as `python my_env.py process …` does, and end the process."""
    of_env = {name: command for name, command in COMMANDS.items() if command.runs_env}
    first_line = (env_cls.__doc__ or "").strip().partition("\n")[0]
    leave(_run(LazyGroup(of_env, help=first_line), args, prog_name=None, env_cls=env_cls))


def leave(code: int) -> NoReturn:
    """Exit the process. If an observer hangs, skip exit handlers, since OpenTelemetry's would wait for it."""
    if any(each.name == HUNG_THREAD for each in enumerate_threads()):
        os._exit(code)
    sys.exit(code)


def _run(
    group: click.Group, args: Sequence[str] | None, *, prog_name: str | None, env_cls: type | None
) -> int:
    _use_more_descriptors()
    warnings.showwarning = _show_warning
    open_closed_descriptors()
    given = sys.argv[1:] if args is None else list(args)
    try:
        # Not `group.main`: it treats BrokenPipeError and EOFError of an environment's code as the user's.
        with group.make_context(prog_name or Path(sys.argv[0]).name, given, obj=env_cls) as context:
            code = group.invoke(context)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return USAGE_EXIT
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "turnwise"
        return _fail(f"{error.format_message().rstrip('.')}; see {where} --help")
    except BaseException as error:  # noqa: BLE001  # no error may look like success
        if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):
            return 128 + signal.SIGPIPE  # `rich` exits so on a broken pipe
        lost = _check_output() if isinstance(error, OSError) else None
        if isinstance(lost, BrokenPipeError):
            return 128 + signal.SIGPIPE
        with robust_console():
            return exit_code_of(error if lost is None else OutputError(f"cannot write the output: {lost}"))
    return code if isinstance(code, int) else 0


def _use_more_descriptors() -> None:
    """Raise the soft limit: a sandbox needs several descriptors, and 1024 only matters for `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # macOS has a lower limit that it does not report.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object
) -> None:
    """Show a warning once; a forgotten `await` is one line, and none if it points into Turnwise."""
    text = f"{Path(filename).name}:{lineno}: {message}"
    if "was never awaited" not in text:
        text = warnings.formatwarning(message, category, filename, lineno).rstrip()
    elif filename.startswith(OWN_FOLDERS):
        return
    else:
        text += "; is `await` missing?"
    if text not in _SHOWN_WARNINGS:
        _SHOWN_WARNINGS.add(text)
        click.echo(text, err=True)


_SHOWN_WARNINGS: set[str] = set()


def exit_code_of(error: BaseException) -> int:
    """Print an error, with a traceback unless the user can fix it; return the exit code."""
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    # Rollouts run in task groups, which collect one error per rollout.
    causes = _leaves(error)
    if all(isinstance(cause, UsageError) for cause in causes):
        for line in getattr(causes[0], "__notes__", ()):
            click.echo(without_credentials(line), err=True)
        # A full or broken disk is no usage error.
        reasons = [cause.__cause__ or cause.__context__ for cause in causes]
        is_disk = any(isinstance(each, OSError) and each.errno in _DISK_ERRORS for each in reasons)
        return _fail(str(causes[0]), FAILED_EXIT if is_disk else USAGE_EXIT)
    if all(isinstance(cause, TurnwiseError) for cause in causes):
        error = causes[0]
    if not isinstance(error, TurnwiseError):
        _show(error)
        return FAILED_EXIT
    if error.__cause__ is not None:
        _show(error.__cause__)
    return _fail(str(error), FAILED_EXIT)


def _show(error: BaseException) -> None:
    click.echo(without_credentials("".join(traceback.format_exception(error))), err=True, nl=False)


def _check_output() -> OSError | None:
    try:
        os.write(_STDOUT, b"\n")
    except OSError as error:
        redirect_to_null(_STDOUT)
        return error
    return None


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    parts = cast(BaseExceptionGroup[BaseException], error).exceptions
    return [leaf for part in parts for leaf in _leaves(part)]


def _fail(message: str, code: int = USAGE_EXIT) -> int:
    click.echo(f"turnwise: error: {without_credentials(' '.join(message.split()))}", err=True)
    return code


@contextmanager
def interrupt_on_sigterm() -> Generator[None]:
    """Turn the first SIGTERM into KeyboardInterrupt; the second ends the process at once."""
    if current_thread() is not main_thread():  # only the main thread handles signals
        yield
        return
    received = False

    def receive(*_: object) -> None:
        nonlocal received
        received = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, receive)
    try:
        yield
    except KeyboardInterrupt:
        if received:
            raise click.exceptions.Exit(128 + signal.SIGTERM) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
