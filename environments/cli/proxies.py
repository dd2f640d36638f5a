"""The proxy that a user's shell names, read once: below the command line nothing reads the environment."""

from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from environments.config import ServerConfig


def with_proxies(servers: list[ServerConfig]) -> list[ServerConfig]:
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
    if not named or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return "none"
    return named if "://" in named else f"http://{named}"
