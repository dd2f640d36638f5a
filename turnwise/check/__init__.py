"""Whether an environment is right, found out without a model: `turnwise check`."""
