"""Code that runs inside a sandbox; it imports only the standard library."""
