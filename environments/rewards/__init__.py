"""Rewards: functions of values, rubrics, judges and verdicts of tests."""
