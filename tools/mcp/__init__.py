"""Tools of Model Context Protocol servers: toolset, sessions and transports."""
