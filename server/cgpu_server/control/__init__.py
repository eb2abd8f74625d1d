"""The control socket, and what can be asked through it."""
