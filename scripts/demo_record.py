"""Makes the record of `turnwise view --demo`: groups of shipped environments, with scripted models.

python -m scripts.demo_record
"""

import gzip
import subprocess
import sys
import tempfile
from pathlib import Path

from environments.record.group_line import with_crc
from environments.rewards.reward_context import RolloutContext
from environments.shipped.sales_chat.env import Item, SalesChatEnv
from environments.trajectory import Turn
from turnwise.cli.view import DEMO

ROOT = Path(__file__).resolve().parent.parent
RUNS = (
    ("code_debug", "--env.max_items", "8", "--env.group_size", "6"),
    (
        "sales_chat", "--env.max_items", "4", "--env.group_size", "6", "--env.condenser", "fit_context",
        "--env.condenser_tokens", "190",
    ),
    ("judged_writing", "--env.max_items", "2", "--env.group_size", "4"),
    ("retail", "--env.max_items", "2", "--env.group_size", "4"),
    (f"{__file__}:UnsteadyChatEnv", "--env.max_items", "3", "--env.group_size", "4"),
)  # fmt: skip


class UnsteadyChatEnv(SalesChatEnv):
    """A sales chat in which votes sometimes fail."""

    name = "unsteady_chat"

    async def score_turn(self, item: Item, turn: Turn, ctx: RolloutContext) -> float | None:
        if ctx.seed % 3 == 0 and turn.index > 0:
            raise ConnectionError("the database of votes closed the connection")
        return await super().score_turn(item, turn, ctx)


def main() -> None:
    lines: list[bytes] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, run in enumerate(RUNS):
            out = Path(folder, f"{number}.jsonl")
            command = (Path(sys.executable).with_name("turnwise"), "process", *run, "--out", out)
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            lines += out.read_bytes().splitlines(keepends=True)
    # Tracebacks have absolute paths.
    bare = b"".join(b"%s}\n" % line.rpartition(b',"crc32":')[0] for line in lines)
    bare = bare.replace(f"{ROOT}/".encode(), b"").replace(f"{sys.base_prefix}/".encode(), b"")
    record = b"".join(map(with_crc, bare.splitlines(keepends=True)))
    DEMO.parent.mkdir(exist_ok=True)
    DEMO.write_bytes(gzip.compress(record, mtime=0))
    print(f"{DEMO.relative_to(ROOT)}: {len(lines)} groups, {DEMO.stat().st_size:,} bytes")  # noqa: T201


if __name__ == "__main__":
    main()
