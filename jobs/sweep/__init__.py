"""A sweep spec and the cells that it asks for: reading, checking and expanding it."""
