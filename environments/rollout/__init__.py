"""One rollout: the tool-calling loop and the token rows that it grows."""
