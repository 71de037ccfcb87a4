"""Settling what is unknown from evidence, and saying what became of a period."""
