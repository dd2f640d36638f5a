"""Experiments on records, trainers and model servers; imported by the command line and the viewer."""
