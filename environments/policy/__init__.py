"""Policies: the models, servers and scripts that write assistant turns."""
