"""Sandboxes on this machine: namespaces, or Landlock, around one supervisor."""
