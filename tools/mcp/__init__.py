"""Tools of Model Context Protocol servers: the toolset, its sessions and what carries them."""
