"""The demo: real weeks of real purchases, sent to a sandbox provider that keeps count."""
