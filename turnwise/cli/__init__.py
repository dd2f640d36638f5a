"""The command line of Turnwise, one file per command, imported only when it runs."""
