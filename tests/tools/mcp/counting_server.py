"""A server made with the official package, for its standard streams or, with a port, for HTTP."""

import sys

from mcp.server.mcpserver import Image, MCPServer

server = MCPServer("counting")
count = 0


@server.tool()
def add(number: int) -> str:
    """Add to the counter.

    Args:
        number: What to add.
    """
    global count
    count += number
    return str(count)


@server.tool()
def picture() -> list:
    """A picture, and a word about it."""
    return ["a dot", Image(data=b"\x89PNG", format="png")]


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", port=int(sys.argv[1]))
