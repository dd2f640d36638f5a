"""The `terminal` toolset: commands in the rollout's persistent shell."""

from typing import Annotated

from pydantic import Field

from tools.errors import ToolError
from tools.registry import ToolOutput, Toolset, tool
from tools.sandbox.base import Sandbox


@tool(name="terminal")
async def run_command(
    sandbox: Sandbox,
    command: Annotated[str, Field(examples=["ls -la"])],
    timeout_s: Annotated[float, Field(gt=0)] = 60.0,
) -> ToolOutput:
    """Run a bash command and see what it prints.

    All your commands run in the same shell, one after the other: the working directory, variables, functions
    and background jobs stay from one call to the next. There is usually no network. Nobody can type input, so
    use flags that avoid questions (`-y`). Start servers and other long jobs in the background
    (`server > log.txt 2>&1 &`). Print only what you need: very long output loses its middle.

    You get the standard output, then `[stderr]` with the error output if there is any, then the exit code.

    Args:
        command: The bash command; it may have several lines.
        timeout_s: Seconds after which the command is stopped. The task may set a lower limit.
    """
    if not command.strip():
        raise ToolError("`command` is empty; give a bash command")
    if "\0" in command:
        raise ToolError("`command` contains a NUL character, which bash cannot run")
    result = await sandbox.shell(command, timeout_s=timeout_s)
    stdout, stderr = result.text(), result.stderr.decode("utf-8", "replace")
    lines = [stdout.removesuffix("\n")] if stdout else []
    if stderr:
        lines.append(f"[stderr]\n{stderr.removesuffix(chr(10))}")
    if not stdout and not stderr:
        lines.append("[no output]")
    if result.truncated:
        lines.append(
            f"[the command printed {result.stdout_total} bytes to stdout and {result.stderr_total} bytes to "
            f"stderr; only the beginning and the end were kept]"
        )
    if result.timed_out:
        lines.append(f"[stopped: still running after {result.duration_s:.1f} s]")
    if result.oom_killed:
        lines.append("[killed: the command used more memory than the sandbox has]")
    if result.shell_restarted:
        lines.append("[the shell had to be restarted: working directory, variables and functions are reset]")
    lines.append(f"[exit code: {result.exit_code}]")
    return ToolOutput(content="\n".join(lines), exit_code=result.exit_code, timed_out=result.timed_out)


terminal = Toolset("terminal", (run_command,))
"""Toolset `terminal`."""
