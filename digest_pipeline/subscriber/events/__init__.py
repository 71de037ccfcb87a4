"""What providers report: one small module for each, and the routes that they call."""
