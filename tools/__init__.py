"""Tools an agent calls, and the sandboxes they run in. Never imports `environments`."""
