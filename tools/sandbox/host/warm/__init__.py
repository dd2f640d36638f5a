"""What the fork server and its owner share, without calls of Linux."""

VARIABLE = "TURNWISE_FORK_SERVER"
MAX_REPORT_BYTES = 1 << 17
