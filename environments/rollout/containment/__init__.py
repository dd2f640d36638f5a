"""Code of an environment, called so that what it raises or waits for costs its rollout alone."""
