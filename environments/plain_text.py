"""Text as a terminal and as a file can hold it."""


def printable(text: str, unknown: str = " ") -> str:
    """The text with `unknown` for each character that would steer a terminal."""
    return "".join(each if each.isprintable() else unknown for each in text)


def is_utf8(text: str) -> bool:
    """Whether UTF-8 has the text; it has no half of a surrogate pair, as in an undecodable file name."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
