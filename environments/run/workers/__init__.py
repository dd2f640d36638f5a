"""Groups that are rolled out by workers: more processes of this machine, or of a Ray cluster."""
