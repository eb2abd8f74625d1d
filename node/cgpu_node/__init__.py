"""This machine, the shares of its GPUs, and the way to reach its server."""
