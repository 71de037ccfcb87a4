"""Telling people, once per incident: what it says, through which channels, and what they answered."""
