"""The proxy that a user's shell names, read once: below the command line nothing reads the environment."""

from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from typing import TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from environments.server_config import ModelServerConfig

ServerT = TypeVar("ServerT", bound=ModelServerConfig)


def with_proxies(servers: Sequence[ServerT]) -> list[ServerT]:
    """The servers, each with the proxy that `http_proxy` and its like name, where its setting names none."""
    return [
        server.model_copy(update={"proxy": _proxy_for(server.base_url)})
        if server.base_url and server.proxy is None
        else server
        for server in servers
    ]


def _proxy_for(url: str) -> str:
    proxies = getproxies_environment()
    try:
        parts = urlsplit(url)
    except ValueError:
        return "none"  # the URL is refused where it is used
    named = proxies.get(parts.scheme) or proxies.get("all")
    if not named or proxy_bypass(parts.netloc.rpartition("@")[2]) or _is_within(parts.hostname, proxies):
        return "none"
    return named if "://" in named else f"http://{named}"


def _is_within(host: str | None, proxies: dict[str, str]) -> bool:
    """Whether `no_proxy` has an address's network (`10.0.0.0/8`) or IPv6 address: urllib reads neither."""
    try:
        address = ip_address(host or "")
    except ValueError:
        return False
    for name in proxies.get("no", "").split(","):
        try:
            if address in ip_network(name.strip().strip("[]"), strict=False):
                return True
        except ValueError:
            continue
    return False
