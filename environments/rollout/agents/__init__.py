"""Agents that own their loop: programs that call a model, recorded at the endpoint that they call."""
