"""The ``digest`` command."""
