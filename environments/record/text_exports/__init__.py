"""Text exports: a record as lines for those who train on messages, not on tokens."""
