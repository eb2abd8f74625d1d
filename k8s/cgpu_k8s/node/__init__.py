"""The agent of a node: what its GPUs are, what the node offers of them, and how pods are held."""
