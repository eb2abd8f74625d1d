"""Pure functions that read and write cgpu's fields of Kubernetes objects."""
