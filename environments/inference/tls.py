"""How the certificate of an https server is checked."""

import ssl

from tools.errors import ConfigError


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Checks certificates and host names.

    Args:
        ca_file: PEM file of the certificates that are trusted, and no others; `None`: those of the system.

    Raises:
        ConfigError: the file cannot be read, or holds no certificate.
    """
    # Not `create_default_context`, which takes a file for the session's keys from the process environment.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    if ca_file is None:
        context.load_default_certs()
        return context
    try:
        context.load_verify_locations(cafile=ca_file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise ConfigError(
            f"--openai.ca_file {ca_file!r} cannot be used: {reason}; give a PEM file of certificates"
        ) from None
    return context
