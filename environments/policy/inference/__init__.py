"""Requests to model servers: transport, formats and readers."""
