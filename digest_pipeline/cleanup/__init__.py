"""Gate three: generated rows go after a definitive send, or by a named retention rule."""
