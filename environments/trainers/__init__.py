"""Adapters to trainers' frameworks."""
