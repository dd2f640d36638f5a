"""The network setting: none by default, the host's on request, and the record says which."""

import socket
from pathlib import Path

import pytest

from tests.tools.sandbox.conftest import SMALL, TEST_IMAGE
from tools.errors import IsolationError
from tools.sandbox import open_sandbox
from tools.sandbox.base import SandboxLimits
from tools.sandbox.local.backend import open_local

CONNECT = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 2)"


@pytest.fixture
def host_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_the_full_network_reaches_what_the_host_reaches(host_port):
    async with open_local(SandboxLimits(network="full"), tier="B") as sandbox:
        assert (await sandbox.exec(["python3", "-c", CONNECT, str(host_port)])).exit_code == 0


async def test_the_full_network_is_recorded_as_what_is_missing():
    async with open_local(SandboxLimits(network="full"), tier="B") as sandbox:
        assert sandbox.record.limits.network == "full"
        assert "network" not in sandbox.record.enforced
        assert sandbox.record.lacks == ("network",)


async def test_names_are_resolved_as_the_host_does():
    async with open_local(SandboxLimits(network="full"), tier="B") as sandbox:
        found = await sandbox.exec(
            "cat /etc/resolv.conf; grep hosts: /etc/nsswitch.conf; getent hosts localhost"
        )
    assert found.text().startswith(Path("/etc/resolv.conf").read_text())
    assert "hosts: files dns\n" in found.text()
    assert "localhost" in found.text().splitlines()[-1]


@pytest.mark.docker
async def test_a_container_gets_the_engines_default_network_or_a_refusal(docker_engine):
    bridged = any(one["Name"] == "bridge" for one in docker_engine._api.networks())
    limits = SandboxLimits(memory_mb=SMALL.memory_mb, disk_mb=SMALL.disk_mb, network="full")
    if not bridged:
        with pytest.raises(IsolationError, match="no network, for lack of a bridge"):
            async with open_sandbox("docker", limits=limits, image=TEST_IMAGE):
                pass
        return
    async with open_sandbox("docker", limits=limits, image=TEST_IMAGE) as sandbox:
        devices = (await sandbox.exec("cat /proc/net/dev")).text()
        assert "eth0" in devices
        assert sandbox.record.lacks == ("network", "oom_score")
