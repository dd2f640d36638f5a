"""Agent environments with per-turn credit: rollouts, turn rewards, advantages, records."""
