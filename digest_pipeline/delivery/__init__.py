"""Gate two: claim, send, settle."""
