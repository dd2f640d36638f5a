"""The subcommands of `turnwise`, one module each."""
