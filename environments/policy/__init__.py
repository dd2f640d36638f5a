"""Who writes the assistant turns."""
