"""Records: their groups, also as they come, and their tables as datasets."""

from turnwise.own_packages import refuse_foreign_packages

refuse_foreign_packages()

from environments.record.record_feed import FollowedGroup, follow
from environments.record.recorder import read_groups
from environments.record.tables.loading import features, load

__all__ = [
    "FollowedGroup",
    "features",
    "follow",
    "load",
    "read_groups",
]
