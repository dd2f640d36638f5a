"""The ids of a row, which a server repeats with every turn: compared as bytes; only what is new is read."""

_NAME = b"prompt_token_ids"
_START = b'"%b":[' % _NAME


def without_row(content: bytes, row_json: bytes) -> bytes | None:
    """A reply whose prompt's ids are those that follow a row, where they begin with all of it.

    A reply that has the name twice, however it is written there, is left alone: the other might be read.

    Args:
        content: JSON, or events of it.
        row_json: the row's ids as they stand in a JSON list, without its brackets.

    Returns:
        The reply; `None` where its prompt begins otherwise, ends with the row, or is written otherwise.
    """
    start = content.find(_START) + len(_START)
    end = start + len(row_json)
    if start < len(_START) or not row_json or content[end : end + 1] != b",":
        return None
    if not content.startswith(row_json, start) or content.count(_NAME) > 1:
        return None
    return content[:start] + content[end + 1 :]
