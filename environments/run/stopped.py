"""Why a run ends before its work is done."""


class StoppedError(Exception):
    """One line for the user; the run exits with 1, and what is finished is kept."""
