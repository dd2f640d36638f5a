"""Records as tables: Arrow, parquet and `datasets`, one row per group, rollout or turn."""
