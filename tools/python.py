"""The `python` toolset: code runs in one persistent interpreter per rollout."""

import inspect
import json
from typing import Annotated

from pydantic import Field

from tools import python_program
from tools.errors import ToolError
from tools.registry import ToolOutput, Toolset, tool
from tools.sandbox.base import ExecResult, Sandbox, run_python

_PROGRAM = inspect.getsource(python_program)
_LONGEST_S, _END_S = 3600.0, 10.0
_GONE = "variables, functions and imports are gone; the next call starts a new interpreter"


@tool(name="python")
async def run_code(sandbox: Sandbox, code: Annotated[str, Field(examples=["2**64 % 1000003"])]) -> ToolOutput:
    """Run Python code and see what it prints, and the value of its last expression.

    All your code runs in the same interpreter: variables, functions and imports stay from one call to the
    next. An exception is shown as a traceback, and what was assigned before it stays. There is usually no
    network, and nobody can type input. Very long output loses its middle.

    Args:
        code: Python statements; it may have several lines.
    """
    if not code.strip():
        raise ToolError("`code` is empty; give Python code")
    request = json.dumps({"code": code, "source": _PROGRAM}).encode()
    result = await run_python(sandbox, _PROGRAM, stdin=request, timeout_s=_LONGEST_S)
    known = result.exit_code < 2 * python_program.ANEW and not result.timed_out
    anew, status = divmod(result.exit_code, python_program.ANEW) if known else (0, python_program.ENDED)
    if status == python_program.FAILED:
        raise ToolError(f"no interpreter can be reached: {result.stderr.decode('utf-8', 'replace').strip()}")
    if not known:
        await run_python(sandbox, _PROGRAM, stdin=b'{"end": true}', timeout_s=_END_S)
    exit_code = status if known else result.exit_code
    return ToolOutput(
        content=_report(result, status, bool(anew)), exit_code=exit_code, timed_out=result.timed_out
    )


python = Toolset("python", (run_code,))
"""Toolset `python`."""


def _report(result: ExecResult, status: int, anew: bool) -> str:
    lines = ["[the interpreter of the calls before had ended: their variables are gone]"] if anew else []
    text = (result.text() + result.stderr.decode("utf-8", "replace")).removesuffix("\n")
    lines.append(text or "[no output]")
    if result.truncated:
        lines.append(f"[{result.stdout_total} bytes were printed; only the beginning and the end were kept]")
    if result.timed_out:
        lines.append(f"[stopped: still running after {result.duration_s:.1f} s; {_GONE}]")
    elif result.oom_killed:
        lines.append(f"[killed: the code used more memory than the sandbox has; {_GONE}]")
    elif status == python_program.ENDED:
        lines.append(f"[the code ended the interpreter; {_GONE}]")
    return "\n".join(lines)
