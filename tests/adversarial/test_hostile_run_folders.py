"""Run folders under attack: names that lead elsewhere, secrets, links, full disks, damaged files."""

import asyncio
import json
import resource
import signal
from pathlib import Path

import pytest
from pydantic import Field, SecretStr

from environments.config import AgentEnvConfig, JudgeConfig, ServerConfig
from environments.record.recorder import read_groups
from environments.record.run_folder import RunFolder
from environments.run.open_run import RunOptions
from environments.run.process_run import process
from environments.run.run_files import settings_text
from environments.run.run_list import MOST_LOG_BYTES, RunLog
from tests.environments.chat.chat_env import Chat, chat
from tests.environments.write_file import quiet
from tools.errors import RecordError, UsageError
from turnwise.cli.main import main
from turnwise.cli.settings import read_yaml

FOLDER = RunFolder(Path("runs/chat/default"))
FILES = [FOLDER.path / name for name in ("config.yaml", "summary.json", "fingerprint", "log", "environment")]


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def run(*, name=None, fresh=False, **fields):
    options = RunOptions(name=name, fresh=fresh)
    return asyncio.run(process(chat(**{"group_size": 2, **fields}), quiet(), options=options))


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "..", "", ".hidden", "-x", "a" * 64, "a\nb", "a\0b", "𠀀" * 63], ids=ascii
)
def test_a_name_that_is_no_plain_name_is_refused_in_one_line(name, capsys):
    assert main(["process", "code_debug", f"--name={name}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "names a folder: it takes letters, digits" in line
    assert not list(Path("..").rglob("record.jsonl"))


class Secretive(AgentEnvConfig):
    """Settings with secrets of every kind."""

    search_key: str = "none"
    hidden: str = Field(default="", repr=False)
    password: SecretStr = SecretStr("")
    nested: dict[str, object] = Field(default={})
    database: str = ""
    database_url: str = ""
    hf_token: str = ""
    stop: list[str] = Field(default=[])
    plain: str = ""


SECRETS = {
    "search_key": "S3CRET-1",
    "hidden": "S3CRET-2",
    "password": SecretStr("S3CRET-3"),
    "nested": {"deep": [{"Authorization": "Bearer S3CRET-4"}], "deeper": {"api_key": "S3CRET-5"}},
    "database": "postgres://me:S3CRET-6@host/db",
    "database_url": "http://host/?token=S3CRET-7",
    "hf_token": "hf_S3CRET-8S3CRET",
}


def secretive(**fields):
    servers = [
        ServerConfig(
            base_url="http://me:S3CRET-9@127.0.0.1:9/v1", api_key="S3CRET-a", proxy="http://a:S3CRET-b@p"
        ),
        JudgeConfig(
            base_url="http://127.0.0.1:9/v1", api_key="S3CRET-c", extra_body={"api_token": "S3CRET-defgh"}
        ),
    ]
    return Chat(Secretive(**SECRETS, **fields), servers)


def test_no_secret_is_written_into_the_settings_and_those_left_out_are_named():
    text = settings_text(secretive(plain="kept", stop=["</s>"]), None)
    assert "S3CRET" not in text
    assert "plain: kept" in text
    assert "stop: [</s>]" in text
    for name in (*SECRETS, "base_url", "api_key", "proxy", "extra_body"):
        assert f"# {name}: not written" in text
    assert "base_url: 'http://127.0.0.1:9/v1'" in text
    Path("c.yaml").write_text(text)
    read_yaml(Path("c.yaml"))


def test_the_log_keeps_no_credentials_and_no_more_than_its_bound():
    for _ in range(3):
        log = RunLog()
        log.add("asking http://me:S3CRET@host")
        log.open(Path("log"), title="x")
        for _ in range(200):
            log.add("y" * 10_000)
        log.close()
    written = Path("log").read_bytes()
    assert b"S3CRET" not in written
    assert len(written) < 2 * MOST_LOG_BYTES
    assert written.count(b"no more is kept") <= 2


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe\x00"], ids=["torn", "binary"])
def test_damaged_files_end_no_run_and_no_refusal(content):
    run(max_items=1)
    for path in FILES:
        if path.is_dir():
            path.rename(FOLDER.path / "moved")
        path.write_bytes(content)
    with pytest.raises(RecordError, match="max_turns was 10, is 5"):
        run(max_turns=5)
    assert run() == 0
    assert json.loads(FOLDER.summary.read_text())["of"]["groups"] == 3


def test_links_in_the_place_of_files_leave_what_they_lead_to():
    Path("mine").write_text("all of it")
    FOLDER.path.mkdir(parents=True)
    for path in FILES:
        path.symlink_to(Path("mine").resolve())
    assert run() == 0
    assert Path("mine").read_text() == "all of it"


@pytest.mark.parametrize("blocked", ["runs", "runs/chat", "runs/chat/default"])
def test_a_file_where_the_folder_should_be_is_told_in_one_line(blocked):
    Path(blocked).parent.mkdir(parents=True, exist_ok=True)
    Path(blocked).write_text("in the way")
    with pytest.raises(UsageError, match="cannot write"):
        run()
    with pytest.raises(UsageError, match="cannot write"):
        run(fresh=True)


@pytest.fixture
def full_disk():
    """Files that grow no longer than so many bytes."""
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


SESSIONS = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n' * 50


@pytest.mark.parametrize(
    "command",
    [
        ["view", FOLDER.record],
        ["export", FOLDER.record],
        ["export", FOLDER.record, "--view", "prompt_response"],
        ["export", FOLDER.record, "--view", "parquet"],
        ["import", "sessions.jsonl"],
    ],
    ids=["view", "export", "text", "parquet", "import"],
)
def test_an_output_that_a_full_disk_cannot_hold_is_one_line_and_no_file(command, full_disk, capsys):
    assert run() == 0
    Path("sessions.jsonl").write_text(SESSIONS)
    before = set(Path().iterdir())
    full_disk(1000)
    code = main([*map(str, command), "--out", "out"])
    full_disk(resource.RLIM_INFINITY)
    assert code == 1
    assert capsys.readouterr().err == "turnwise: error: cannot write out: File too large\n"
    assert set(Path().iterdir()) == before


def test_a_summary_that_cannot_be_written_at_the_end_is_said_and_the_run_has_done_its_work():
    async def block(self, item, turn, ctx):
        if FOLDER.summary.is_file():
            FOLDER.summary.unlink()
            FOLDER.summary.mkdir()
        return 1.0

    console = quiet()
    assert asyncio.run(process(chat(group_size=2, score_turn=block), console)) == 0
    assert "the summary of the run could not be written: cannot write" in console.file.getvalue()
    assert len(list(read_groups(FOLDER.record))) == 3
