"""The part that runs inside a sandbox: the standard library only, and nothing of Turnwise but this folder."""
