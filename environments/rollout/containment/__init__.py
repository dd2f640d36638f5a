"""Calls of an environment's code, so that its errors and hangs end its own rollout only."""
