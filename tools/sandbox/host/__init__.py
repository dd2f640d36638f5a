"""What the backends share: the way to a supervisor, and what goes over it."""
