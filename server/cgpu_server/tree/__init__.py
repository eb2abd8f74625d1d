"""The control tree, and the file system that shows it."""
