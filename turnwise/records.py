"""Records: their groups, also of a growing record, and a table of their turns as a dataset."""

from turnwise.own_packages import refuse_foreign_packages

refuse_foreign_packages()

from environments.record.record_feed import FollowedGroup, follow
from environments.record.recorder import read_groups
from environments.record.table import load

__all__ = [
    "FollowedGroup",
    "follow",
    "load",
    "read_groups",
]
