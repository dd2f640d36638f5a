"""Files that a run writes before its first group: settings, source code and fingerprint."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import SecretBytes, SecretStr
from pydantic_core import PydanticSerializationError

from environments.base_env import AgentEnv
from environments.config import Section
from environments.record.origin import RunOrigin
from environments.record.private_file import read_object, write_private
from environments.record.run_folder import RunFolder
from environments.run.experiment import WHERE_WRITTEN, environment_files
from environments.run.run_list import moment
from tools.errors import RecordError
from tools.plain_text import public_url, without_credentials

Sources = Mapping[str, str]
COMMAND_LINE = "command line"
MOST_BYTES = 16 * 1024 * 1024
MOST_FILES = 2_000
_SECRET_NAME = re.compile(r".*(key|secret|password|passwd|credentials?|authorization)", re.IGNORECASE)
_TOKEN_NAME = re.compile(r".*[_-]?(token|auth)", re.IGNORECASE)
_SHORTEST_TOKEN = 12
"""Characters of an access token, unlike a text token such as `</s>`."""
_HIDDEN = "**********"


def write_run_files(
    folder: RunFolder,
    env: AgentEnv,
    origin: RunOrigin,
    *,
    sources: Sources | None,
    accepted: Sequence[str],
    resumed: bool,
) -> list[str]:
    before = read_object(folder.fingerprint, MOST_BYTES) if resumed else {}
    head = f"# {env.name}, last started {moment()}; --config takes this file.\n"
    write_private(folder.config, (head + settings_text(env, sources)).encode("utf-8", "backslashreplace"))
    earlier: list[dict[str, Any]] = []
    if isinstance(before.get("fingerprint"), str):
        if before["fingerprint"] != origin.fingerprint:
            # Keep the source of earlier groups under another name.
            kept = folder.path / f"environment-{before['fingerprint'][:8]}"
            try:
                if folder.environment.is_dir() and not kept.exists():
                    folder.environment.rename(kept)
            except OSError as error:
                raise RecordError(f"cannot write {kept}: {error.strerror}") from error
        elif folder.environment.is_dir():
            return []
        earlier = [*before.pop("earlier", []), before][-100:]
    left_out = copy_environment(environment_files(env), folder.environment)
    now: dict[str, Any] = {
        "fingerprint": origin.fingerprint,
        "since": moment(),
        "facts": origin.facts(),
        "credit": origin.credit_facts(),
        "accepted": list(accepted),
        "not_in_environment": left_out,
        "earlier": earlier,
    }
    text = json.dumps(now, indent=2, ensure_ascii=False)
    write_private(folder.fingerprint, text.encode("utf-8", "backslashreplace") + b"\n")
    names = [f"{name} ({why})" for name, why in left_out.items()]
    return [f"left out of {folder.environment}: {', '.join(names[:3])}, {len(names)} in all"] if names else []


def copy_environment(files: Mapping[str, Path], to: Path) -> dict[str, str]:
    """Replace a folder by copies of files (see `environment_files`).

    Returns the files that were left out, each with the reason. Raises RecordError if the folder cannot be
    written.
    """
    left_out: dict[str, str] = {}
    left = MOST_BYTES
    try:
        if to.is_symlink() or to.is_file():
            to.unlink()  # not the target of a link
        else:
            shutil.rmtree(to, ignore_errors=True)
        # `files` has code before data.
        for index, (known, file) in enumerate(files.items()):
            name = known.removeprefix("code of ").removeprefix("data of ").replace("../", "above/")
            try:
                size = file.stat().st_size
                data = file.read_bytes() if size <= left and index < MOST_FILES else None
            except OSError as error:
                left_out[name] = f"cannot be read: {error.strerror}"
                continue
            if data is None:
                left_out[name] = f"{size:,} bytes"
                continue
            left -= size
            (to / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private(to / name, data)
    except OSError as error:
        raise RecordError(f"cannot write {to}: {error.strerror}") from error
    return left_out


class _OneLine(yaml.SafeDumper):
    """Writes each value on one line, since a comment follows it."""


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = '"' if len(text.splitlines()) > 1 else None
    return yaml.ScalarNode("tag:yaml.org,2002:str", text, style=style)


_OneLine.add_representer(str, _text_node)


def settings_text(env: AgentEnv, sources: Sources | None) -> str:
    """Return every setting as YAML for `--config`, without possible secrets.

    `sources` is the origin of each setting; `None`: a program.
    """
    lines = ["env:", *_lines(env.config, sources)]
    lines += ["openai:"] if env.servers else []
    for server in env.servers:
        first, *rest = _lines(server, sources)
        lines += [first if len(env.servers) == 1 else f"- {first.lstrip()}", *rest]
    for server in env.lifecycle.parts.second_servers:
        lines += [f"{server.section}:", *_lines(server, sources)]
    return "\n".join(lines) + "\n"


def _lines(section: Section, sources: Sources | None) -> Iterator[str]:
    # Comments last: the first line of a server in a list must be a setting.
    left_out: list[str] = []
    for name, setting in type(section).model_fields.items():
        if name in WHERE_WRITTEN:
            continue
        source = "program" if sources is None and name in section.model_fields_set else "class default"
        source = (sources or {}).get(f"{section.section}.{name}") or source
        written = _yaml_line(section, name, shown=setting.repr)
        if written is not None:
            yield f"  {written}  # {source}"
        elif getattr(section, name) != setting.default:
            left_out.append(f"  # {name}: not written, since it is or may hold a secret")
    yield from left_out


def _yaml_line(section: Section, name: str, *, shown: bool) -> str | None:
    value = getattr(section, name)
    is_address = name.endswith("_url") and isinstance(value, str) and public_url(value) == value
    if not (shown or is_address) or _is_secret(name, value):
        return None
    try:
        plain = section.model_dump(mode="json", include={name})[name]
        text: str = yaml.dump(
            {name: plain},
            Dumper=_OneLine,
            default_flow_style=True,
            width=float("inf"),
            allow_unicode=True,
            sort_keys=False,
        )
    except (PydanticSerializationError, yaml.YAMLError, ValueError, RecursionError):
        return None
    return None if _HIDDEN in text else text.strip()[1:-1]


def _is_secret(name: str, value: object) -> bool:
    if isinstance(value, SecretStr | SecretBytes):
        return True
    if isinstance(value, Mapping):
        return any(_is_secret(str(key), each) for key, each in cast("Mapping[Any, Any]", value).items())
    if isinstance(value, list | tuple | set | frozenset):
        return any(_is_secret(name, each) for each in cast("Sequence[Any]", value))
    if not isinstance(value, str | bytes):
        return False
    if _SECRET_NAME.fullmatch(name) and value not in ("", "none"):
        return True
    text = value if isinstance(value, str) else value.decode("utf-8", "replace")
    is_token = len(text) >= _SHORTEST_TOKEN and _TOKEN_NAME.fullmatch(name) is not None
    return is_token or without_credentials(text) != text
