"""The rollout JSONL and what a run came to."""
