"""The ids of a row, which a server repeats with every turn: compared as bytes; only what is new is read."""

_NAME = b'"prompt_token_ids":['


def without_row(content: bytes, row_json: bytes) -> bytes | None:
    """A reply whose prompt's ids are those that follow a row, where they begin with all of it.

    The name cannot stand inside a text, where a quote is escaped; a reply that has it twice is left alone.

    Args:
        content: JSON, or events of it.
        row_json: the row's ids as they stand in a JSON list, without its brackets.

    Returns:
        The reply; `None` where its prompt begins otherwise, ends with the row, or is written otherwise.
    """
    start = content.find(_NAME) + len(_NAME)
    end = start + len(row_json)
    if start < len(_NAME) or not row_json or content[end : end + 1] != b",":
        return None
    if not content.startswith(row_json, start) or content.find(_NAME, end) >= 0:
        return None
    return content[:start] + content[end + 1 :]
