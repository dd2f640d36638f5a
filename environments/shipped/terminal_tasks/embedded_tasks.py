"""The embedded tasks: each asks for one file, with its required content and a command that makes it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalTask:
    """One file to make."""

    task_id: str
    instruction: str
    path: str
    """Where the file must be, from the workspace."""
    expected: str
    command: str
    """A shell command that solves the task; only the scripted agent sees it."""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the workspace holds at the start."""
    compare: Literal["text", "json"] = "text"
    """`text`: equal but for white space at the end; `json`: the same value."""

    def solved_by(self, data: bytes) -> bool:
        """Whether this content of the file is what was asked for."""
        try:
            text = data.decode("utf-8")
            if self.compare == "text":
                return text.rstrip() == self.expected.rstrip()
            return _canonical(json.loads(text)) == _canonical(json.loads(self.expected))
        except (ValueError, RecursionError):
            return False


def _canonical(value: Any) -> str:
    # As text, because for Python 1, 1.0 and True are equal.
    return json.dumps(value, sort_keys=True)


_LOG = "".join(
    f"2031-05-{day:02d} {level} {text}\n"
    for day, level, text in [
        (1, "INFO", "started"),
        (1, "ERROR", "disk full"),
        (2, "INFO", "resumed"),
        (3, "ERROR", "no route to printer"),
        (3, "WARNING", "slow answer"),
        (4, "ERROR", "disk full"),
    ]
)
_SALES = "region,amount\nnorth,12\nsouth,7\nnorth,30\nwest,5\nsouth,1\n"

TASKS: tuple[TerminalTask, ...] = (
    TerminalTask(
        task_id="terminal/greeting",
        instruction="Create a file `greeting.txt` with the text `Hello, Turnwise!`.",
        path="greeting.txt",
        expected="Hello, Turnwise!",
        command="echo 'Hello, Turnwise!' > greeting.txt",
    ),
    TerminalTask(
        task_id="terminal/nested",
        instruction="Create a file `reports/2031/may/status.txt` with the text `green`.",
        path="reports/2031/may/status.txt",
        expected="green",
        command="mkdir -p reports/2031/may && echo green > reports/2031/may/status.txt",
    ),
    TerminalTask(
        task_id="terminal/lines",
        instruction="Create a file `squares.txt` with the squares of 1 to 12, one per line, smallest first.",
        path="squares.txt",
        expected="\n".join(str(number * number) for number in range(1, 13)),
        command="for i in $(seq 12); do echo $((i * i)); done > squares.txt",
    ),
    TerminalTask(
        task_id="terminal/sort",
        instruction="`fruit.txt` has one word per line. Write its words in alphabetical order, each once, to "
        "`sorted.txt`, one per line.",
        path="sorted.txt",
        expected="apple\nbanana\ncherry\nplum",
        command="sort -u fruit.txt > sorted.txt",
        files={"fruit.txt": "plum\napple\ncherry\napple\nbanana\nplum\n"},
    ),
    TerminalTask(
        task_id="terminal/json",
        instruction='Create a JSON file `config.json`: an object with `name` "probe", `retries` 3 (a number) '
        "and `enabled` true (a boolean).",
        path="config.json",
        expected='{"name": "probe", "retries": 3, "enabled": true}',
        command="""echo '{"name": "probe", "retries": 3, "enabled": true}' > config.json""",
        compare="json",
    ),
    TerminalTask(
        task_id="terminal/count_files",
        instruction="Count the files whose names end in `.log` anywhere under `data`. Write the number to "
        "`count.txt`.",
        path="count.txt",
        expected="4",
        command="find data -type f -name '*.log' | wc -l > count.txt",
        files={
            "data/a.log": "1",
            "data/b.txt": "2",
            "data/deep/c.log": "3",
            "data/deep/deeper/d.log": "4",
            "data/deep/catalog": "5",
            "data/.hidden.log": "6",
        },
    ),
    TerminalTask(
        task_id="terminal/count_lines",
        instruction="How many lines of `service.log` have the level ERROR? Write the number to `errors.txt`.",
        path="errors.txt",
        expected="3",
        command="grep -c ' ERROR ' service.log > errors.txt",
        files={"service.log": _LOG},
    ),
    TerminalTask(
        task_id="terminal/last_error",
        instruction="Write the message of the last ERROR line of `service.log`, without date and level, to "
        "`last.txt`.",
        path="last.txt",
        expected="disk full",
        command="grep ' ERROR ' service.log | tail -n 1 | cut -d ' ' -f 3- > last.txt",
        files={"service.log": _LOG},
    ),
    TerminalTask(
        task_id="terminal/sum",
        instruction="`sales.csv` has a header and the columns region and amount. Write the total of each "
        "region to `totals.json` as a JSON object from region to number.",
        path="totals.json",
        expected='{"north": 42, "south": 8, "west": 5}',
        command='python3 -c "\n'
        "import csv, json\n"
        "totals = {}\n"
        "for row in csv.DictReader(open('sales.csv')):\n"
        "    totals[row['region']] = totals.get(row['region'], 0) + int(row['amount'])\n"
        "json.dump(totals, open('totals.json', 'w'))\n"
        '"',
        files={"sales.csv": _SALES},
        compare="json",
    ),
    TerminalTask(
        task_id="terminal/replace",
        instruction="Write a copy of `letter.txt` to `letter_new.txt` in which every `colour` is `color`.",
        path="letter_new.txt",
        expected="The color of the sky.\nNo colors here, colorful.\n",
        command="sed 's/colour/color/g' letter.txt > letter_new.txt",
        files={"letter.txt": "The colour of the sky.\nNo colours here, colourful.\n"},
    ),
    TerminalTask(
        task_id="terminal/largest",
        instruction="Which file in `parts` is the largest? Write its name, without folder, to `largest.txt`.",
        path="largest.txt",
        expected="middle.bin",
        command="ls -S parts | head -n 1 > largest.txt",
        files={"parts/first.bin": "x" * 90, "parts/last.bin": "x" * 7, "parts/middle.bin": "x" * 400},
    ),
    TerminalTask(
        task_id="terminal/join",
        instruction="Write the lines of `left.txt` and `right.txt` side by side to `joined.txt`: the first "
        "line of each, separated by one comma, then the second of each, and so on.",
        path="joined.txt",
        expected="a,1\nb,2\nc,3",
        command="paste -d , left.txt right.txt > joined.txt",
        files={"left.txt": "a\nb\nc\n", "right.txt": "1\n2\n3\n"},
    ),
    TerminalTask(
        task_id="terminal/reverse",
        instruction="Write the lines of `steps.txt` in reverse order to `undo.txt`.",
        path="undo.txt",
        expected="cool\nbake\nmix\nweigh",
        command="tac steps.txt > undo.txt",
        files={"steps.txt": "weigh\nmix\nbake\ncool\n"},
    ),
    TerminalTask(
        task_id="terminal/unicode",
        instruction="Create a UTF-8 file `signs.txt` with two lines: `naïve café` and `東京 → 大阪`.",
        path="signs.txt",
        expected="naïve café\n東京 → 大阪",
        command="printf 'naïve café\\n東京 → 大阪\\n' > signs.txt",
    ),
    TerminalTask(
        task_id="terminal/unpack",
        instruction="`words.b64` is base64. Write the decoded text to `words.txt`.",
        path="words.txt",
        expected="every turn counts",
        command="base64 -d words.b64 > words.txt",
        files={"words.b64": "ZXZlcnkgdHVybiBjb3VudHM=\n"},
    ),
)
