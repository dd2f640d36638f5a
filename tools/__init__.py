"""Tools for agents, and the sandboxes they run in. Never imports `environments`."""
