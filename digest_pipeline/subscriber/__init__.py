"""The HTTPS end: what receives pushes, provider events and unsubscribe requests."""
