"""The command line of Turnwise; a command is imported when it runs."""
