"""One delivery's life as pure values, and an explorer that takes every interleaving of it."""
