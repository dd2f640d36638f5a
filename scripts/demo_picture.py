"""Draws docs/demo.svg, the picture in the README: what `turnwise process code_debug` really prints.

python -m scripts.demo_picture
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "demo.svg"
COMMAND = "turnwise process code_debug"
WIDTH = 120
# Without rich's web font: a page that shows the picture asks nobody for anything.
FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def main() -> None:
    """Run the command and draw what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "COLUMNS": str(WIDTH)}
        command = [sys.executable, "-m", *COMMAND.split()]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=True, timeout=600
        )
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere)
        console.print(Text(f"$ {COMMAND}", style="bold"))
        console.print(Text.from_ansi(done.stdout))
        PICTURE.write_text(console.export_svg(title="Turnwise", code_format=FORMAT, unique_id="demo"))


if __name__ == "__main__":
    main()
