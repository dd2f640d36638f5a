"""Entry point in containers, where agent and supervisor are one unprivileged user."""

from __future__ import annotations

import os

from tools.sandbox.inside import supervisor
from tools.sandbox.inside.account import Configuration, keep_score_open
from tools.sandbox.inside.kernel import adopt_orphans, filter_calls, hide_process, no_new_privileges
from tools.sandbox.inside.messages import Facts, encode

_OOM_FILES = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
"""With a line `oom_kill N`; control groups version 2 and 1."""


def enter(control: int, reply: int) -> None:
    config = Configuration.read(control)
    settings = config.settings
    os.write(reply, encode(facts(settings["workdir"])))
    settings["reply_fd"] = str(reply)
    settings["oom_fd"] = str(_open_first(_OOM_FILES))
    keep_score_open(settings)
    adopt_orphans()
    no_new_privileges()
    if config.seccomp:
        filter_calls(config.seccomp)
    hide_process()
    supervisor.prepare_signals(lambda _number, _frame: None)
    supervisor.serve(control, config)


def facts(workdir: str) -> Facts:
    usable = [name for name, path in (("workdir", workdir), ("tmp", "/tmp")) if os.access(path, os.W_OK)]
    usable += ["bash"] if os.access("/bin/bash", os.X_OK) else []
    return Facts(
        memory=_first("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        pids=_first("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"),
        cpu=_first("/sys/fs/cgroup/cpu.max")
        or _first("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") + _first("/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
        status=_first("/proc/self/status"),
        devices=_first("/proc/net/dev"),
        usable=" ".join(usable),
    )


def _first(*paths: str) -> str:
    fd = _open_first(paths)
    if fd < 0:
        return ""
    try:
        return os.read(fd, 1 << 16).decode("utf-8", "replace")
    finally:
        os.close(fd)


def _open_first(paths: tuple[str, ...]) -> int:
    for path in paths:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
    return -1
