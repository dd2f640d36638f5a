import pytest

from environments.config import ServerConfig
from turnwise.cli.env_command import with_proxies

VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "REQUEST_METHOD")


@pytest.fixture
def shell(monkeypatch):
    """Sets the variables, and no others."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return lambda **named: [monkeypatch.setenv(name, value) for name, value in named.items()]


def proxy(url="http://model:8000/v1", **setting):
    (server,) = with_proxies([ServerConfig(base_url=url, **setting)])
    return server.proxy


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "none"),
        ({"http_proxy": "http://p:1"}, "http://p:1"),
        ({"HTTP_PROXY": "http://p:1"}, "http://p:1"),
        ({"http_proxy": "p:1"}, "http://p:1"),
        ({"https_proxy": "http://p:1"}, "none"),
        ({"ALL_PROXY": "http://p:1"}, "http://p:1"),
        ({"http_proxy": "http://p:1", "all_proxy": "http://q:1"}, "http://p:1"),
        ({"http_proxy": "http://p:1", "no_proxy": "other,model"}, "none"),
        ({"http_proxy": "http://p:1", "NO_PROXY": "model:8000"}, "none"),
        ({"http_proxy": "http://p:1", "no_proxy": "*"}, "none"),
        ({"http_proxy": "http://p:1", "no_proxy": "del"}, "http://p:1"),
        ({"HTTP_PROXY": "http://p:1", "REQUEST_METHOD": "GET"}, "none"),
    ],
    ids=range(12),
)
def test_the_proxy_is_what_the_shell_names(shell, variables, expected):
    shell(**variables)
    assert proxy() == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [("10.1.2.3", "none"), ("11.1.2.3", "http://p:1"), ("[fd00::1]", "none"), ("[fd00::2]", "http://p:1")],
    ids=["in", "out", "ipv6", "another"],
)
def test_no_proxy_names_networks_and_ipv6_addresses(shell, host, expected):
    shell(http_proxy="http://p:1", no_proxy="other, 10.0.0.0/8,fd00::1")
    assert proxy(f"http://{host}:8000/v1") == expected


def test_an_https_server_has_the_proxy_of_its_scheme(shell):
    shell(http_proxy="http://p:1", https_proxy="http://q:1")
    assert proxy("https://model/v1") == "http://q:1"


@pytest.mark.parametrize("setting", ["none", "http://mine:1"])
def test_a_setting_comes_before_the_shell(shell, setting):
    shell(http_proxy="http://p:1")
    assert proxy(proxy=setting) == setting


def test_the_scripted_agent_has_no_proxy(shell):
    shell(http_proxy="http://p:1")
    assert proxy("") is None
