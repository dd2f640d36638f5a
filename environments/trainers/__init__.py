"""Adapters to trainers' own frameworks."""
