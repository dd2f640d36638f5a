"""An agent's text in a judge's prompt, between marks that it cannot write itself."""

from hashlib import blake2b


def quoted(text: str, name: str = "answer") -> str:
    """A text between two marks that name it and hold a hash of it, so that no text can close its own.

    Equal texts give equal quotes, which a judge is asked about once. It keeps apart what is judged and what
    is said about it; whether a judge is talked over by what stands in it, no mark decides.
    """
    mark = f"{name} {blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}"
    return f"<<<{mark}\n{text}\n{mark}>>>"
