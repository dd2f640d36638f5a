"""Renderers between conversations and token ids, one per chat format."""
