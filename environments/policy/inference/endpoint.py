"""Where a server is: what may be shown of its URL, apart from the credentials in it."""

import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from tools.errors import ConfigError

_SHORTEST_SECRET = 4
"""Shorter secrets are hidden only inside URLs, since they occur in ordinary words."""
_USER_IN_TEXT = re.compile(
    r"(?:(?<=:/)(/?)[^\s'\"<>?#]{1,300}|(?<![\w.+-])[\w.+-]{1,64}:[^\s'\"<>?#/]{1,300})@(?!sha\d+:)"
)
"""Bounded, since a server may send a text full of partial matches. One slash for a path of a URL, none
without a scheme; an image tag may be followed by its digest.
"""
_QUERY_IN_TEXT = re.compile(r"(?<=[?&])([\w.~%-]{1,64})=[^\s&#'\"<>),;]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A parsed URL; `repr` and `url` contain no credentials."""

    url: str
    query: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    secrets: frozenset[str] = field(default=frozenset(), repr=False)

    with_credentials: str = field(default="", repr=False)
    """Never show this."""

    def at(self, path: str, *, at_root: bool = False) -> str:
        """Return the request URL for a path, with the query, which may be secret."""
        url = self.url.removesuffix("/v1") if at_root else self.url
        return f"{url}{path}{'?' if self.query else ''}{self.query}"

    def without_secrets(self, text: str) -> str:
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return without_credentials(text)


def endpoint(url: str, *, name: str, example: str, api_key: str = "") -> Endpoint:
    """Parse a URL; `name` and `example` are for the error message.

    Raises:
        ConfigError: if the URL is invalid or the key cannot be a header value.
    """
    parts = _split(url)
    if parts is None:
        raise ConfigError(f"{name} {shown_url(url)!r} is no URL; give one such as {example}")
    api_key = api_key.strip()
    if not (api_key.isascii() and api_key.isprintable()):
        raise ConfigError(f"the API key for {shown_url(url)} has characters that no header can carry")
    secrets = {api_key, parts.query, *(value for pair in parse_qsl(parts.query) for value in pair[1:])}
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    userinfo, at, _ = parts.netloc.rpartition("@")
    if at:
        user, _, password = userinfo.partition(":")
        basic = b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
        headers = {"Authorization": f"Basic {basic}"}
        secrets |= {userinfo, password or user, unquote(password or user), basic}
    secrets |= {value for each in parts.query.split("&") for value in each.split("=")[1:]}
    return Endpoint(
        url=shown_url(url).rstrip("/"),
        query=parts.query,
        headers=headers,
        secrets=frozenset(secret for secret in secrets - {"none"} if len(secret) >= _SHORTEST_SECRET),
        with_credentials=url.strip(),
    )


def without_credentials(text: str) -> str:
    """Replace user info and query values by `***` in each URL that a text quotes."""
    return _QUERY_IN_TEXT.sub(r"\1=***", _USER_IN_TEXT.sub(r"\1***@", text))


def shown_url(url: str) -> str:
    """Return a URL, even a malformed one, without user, password and query."""
    parts = _split(url)
    if parts is not None:
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    start = re.split(r"[?#]", url, maxsplit=1)[0]
    return "(hidden)" if "@" in url and "@" not in start else start.rpartition("@")[2]


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url.strip())
        # `port` raises ValueError if it is malformed, as with a slash in the password.
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if known and not re.search(r"\s", url.strip()) else None
