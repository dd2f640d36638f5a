import json
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import datasets
import huggingface_hub.constants
import pytest
from datasets import Dataset

from environments.rollout.items.items import check_items, load_items
from tests.equipment.commands import turnwise
from tests.tables import cases
from tools.errors import DatasetError

ROWS = [{"task_id": f"t/{n}", "n": n, "nested": {"words": ["a", "b"][: n % 3]}} for n in range(7)]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def jsonl(path: Path, rows=ROWS) -> Path:
    return write(path, "".join(json.dumps(row) + "\n" for row in rows))


def parquet(path: Path) -> Path:
    Dataset.from_list(ROWS).to_parquet(str(path))
    return path


@pytest.fixture
def hub_answering_404():
    """The endpoint of a reachable hub that knows no dataset."""

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

        def log_message(self, *_args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def hub_unreachable(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", f"http://127.0.0.1:{port}")


def test_every_form_gives_the_items_in_their_order_with_their_values(tmp_path):
    listed = write(tmp_path / "list.json", json.dumps(ROWS, indent=1))
    lines = jsonl(tmp_path / "a.jsonl"), jsonl(tmp_path / "lines.json")
    for path in (*lines, listed, parquet(tmp_path / "a.parquet")):
        assert load_items(path=path) == ROWS


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
def test_a_limit_keeps_the_first_items(tmp_path, limit):
    assert load_items(path=jsonl(tmp_path / "a.jsonl"), limit=limit) == ROWS[:limit]


def test_blank_lines_and_a_byte_order_mark_are_no_items(tmp_path):
    path = write(tmp_path / "a.jsonl", '\ufeff{"a": 1}\n\n   \n{"a": 2}\n')
    assert load_items(path=path) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_json_values_are_what_the_file_says(tmp_path, name):
    rows = [{"n": 2, "at": "2024-01-02T03:04:05"}, {"n": 2.5, "more": 9223372036854775809, "long": 10**40}]
    text = json.dumps(rows) if name == "a.json" else "".join(json.dumps(row) + "\n" for row in rows)
    items = load_items(path=write(tmp_path / name, text))
    assert repr(items) == repr(rows)


def test_an_integer_too_long_for_python_is_named_by_its_line(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"n": 1}\n{"n": ' + "9" * 5000 + "}\n")
    with pytest.raises(DatasetError, match=r"line 2: not valid JSON: Exceeds the limit"):
        load_items(path=path)


def test_a_local_file_is_loaded_without_a_trace(tmp_path, monkeypatch, capfd):
    """No request is made, nothing is cached or printed, and `datasets` is set as before."""

    def settings():
        return datasets.utils.logging.get_verbosity(), datasets.are_progress_bars_disabled()

    def refuse(*_args, **_kwargs):
        raise AssertionError("a request was made")

    path, before = parquet(tmp_path / "a.parquet"), settings()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    capfd.readouterr()
    assert load_items(path=path) == ROWS
    assert not (tmp_path / "cache").exists()
    assert (capfd.readouterr(), settings()) == (("", ""), before)


@cases(
    ("name", "text", "said"),
    [
        ("a.jsonl", '{"a": 1}\n\n{"a": 2,\n', "a.jsonl, line 3: not valid JSON: Expecting property name"),
        (
            "a.jsonl",
            '{"a": 1}\n\n{"a": ]}\n',
            "line 3: not valid JSON: Expecting value at column 7; expected one JSON",
        ),
        ("a.jsonl", '{"a": 1}\n[2]\n', "a.jsonl, line 2: expected a JSON object, got a list"),
        ("a.jsonl", '{"a": 1}\nnull\n', "a.jsonl, line 2: expected a JSON object, got null"),
        ("a.json", '[{"a": 1},\n {"a": ]', "a.json, line 2: not valid JSON"),
        ("a.json", '[{"a": 1}, "b"]', "a.json, row 2: expected a JSON object, got a string"),
        ("a.json", '{\n "a": 1\n}', "a.json, line 1: not valid JSON"),
        ("a.jsonl", "", "a.jsonl has no items"),
        ("a.jsonl", "\n \n", "a.jsonl has no items"),
        ("a.json", "[]", "a.json has no items"),
        ("a.csv", "a\n1\n", "expected a .jsonl, .json or .parquet file"),
        ("a.parquet", "not parquet", "a.parquet as parquet: ArrowInvalid: Parquet magic bytes"),
    ],
)
def test_a_bad_file_is_named_in_one_line_with_what_is_wrong(tmp_path, name, text, said):
    with pytest.raises(DatasetError) as error:
        load_items(path=write(tmp_path / name, text))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_bytes_that_are_not_utf8_are_reported_with_their_line(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n{"a": "\xff"}\n')
    with pytest.raises(DatasetError, match=r"line 2: not UTF-8"):
        load_items(path=tmp_path / "a.jsonl")


def test_a_path_that_leads_to_no_file_is_named(tmp_path):
    for path, says in (
        (tmp_path / "gone.jsonl", r"no dataset file at .*gone\.jsonl"),
        (tmp_path, "not a file"),
    ):
        with pytest.raises(DatasetError, match=says):
            load_items(path=path)


def test_an_empty_parquet_file_has_no_items(tmp_path):
    Dataset.from_dict({"a": []}).to_parquet(str(tmp_path / "a.parquet"))
    with pytest.raises(DatasetError, match="has no items"):
        load_items(path=tmp_path / "a.parquet")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_read_permission_is_reported(tmp_path):
    path = jsonl(tmp_path / "a.jsonl")
    path.chmod(0)
    with pytest.raises(DatasetError, match="Permission denied"):
        load_items(path=path)


def test_a_missing_field_is_named_with_its_line_and_the_fields_that_exist(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"a": 1, "b": 1}\n\n{"a": 2}\n')
    with pytest.raises(DatasetError, match=r"a\.jsonl, line 3: no field 'b'; it has \['a'\]"):
        load_items(path=path, required_fields=("a", "b"))


def test_a_missing_field_in_parquet_is_named_with_its_row(tmp_path):
    Dataset.from_list([{"a": 1}]).to_parquet(str(tmp_path / "a.parquet"))
    with pytest.raises(DatasetError, match=r"row 1: no field 'b'"):
        load_items(path=tmp_path / "a.parquet", required_fields=("b",))


def test_a_dataset_needs_exactly_one_source(tmp_path):
    with pytest.raises(
        DatasetError, match=r"either from a hub dataset .* or from a file .* unless .* load_items"
    ):
        load_items(name="a/b", path=tmp_path / "a.jsonl")


def test_an_unreachable_hub_is_asked_once_and_one_line_with_the_way_out(hub_unreachable, monkeypatch):
    delays = []
    monkeypatch.setattr("time.sleep", delays.append)
    with pytest.raises(
        DatasetError, match=r"cannot reach the Hugging Face hub for dataset 'a/b'.*dataset_path"
    ):
        load_items(name="a/b")
    assert delays == []


@pytest.mark.soak  # it imports the hub client anew
def test_a_hub_that_does_not_know_the_dataset_is_quoted(hub_answering_404, tmp_path):
    # In its own process: the hub client reads its endpoint once, when it is imported.
    env = os.environ | {"HF_ENDPOINT": hub_answering_404, "HF_HOME": str(tmp_path)}
    code = "from environments.rollout.items.items import load_items\nload_items(name='a/b')"
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert "DatasetError: cannot load hub dataset 'a/b' (config None, split 'train')" in run.stderr


@pytest.mark.parametrize("item", [{"id": 2}, "two"], ids=["mapping", "text"])
def test_a_field_that_an_item_of_load_items_lacks_is_named(item):
    items = [{"id": 1, "answer": None}, item]
    with pytest.raises(DatasetError, match="environment 'mine', item 2: no field 'answer'"):
        check_items(items, None, ("answer",), env="mine")
    assert check_items(items, 1, ("answer",), env="mine") == items[:1]


OWN_FILE = """
from turnwise import AgentEnv
class Mine(AgentEnv):
    name = "mine"
    sandbox = "none"
    dataset_path = "items.jsonl"
    def format_prompt(self, item):
        return item["q"]
    def compute_reward(self, item, trajectory, ctx):
        return 1.0
"""


@pytest.mark.parametrize(
    ("flags", "ids"), [((), ["own"]), (("--env.dataset_path", "other.jsonl"), ["other"])]
)
def test_a_class_names_the_file_next_to_it_and_a_setting_another(tmp_path, flags, ids):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.py").write_text(OWN_FILE)
    (tmp_path / "there" / "items.jsonl").write_text('{"id": "own", "q": "?"}\n')
    (tmp_path / "other.jsonl").write_text('{"id": "other", "q": "?"}\n')
    ended = turnwise("process", "there/mine.py", "--out", "r.jsonl", *flags, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert [json.loads(line)["item_id"] for line in (tmp_path / "r.jsonl").open()] == ids
