"""``cgpud``, the node's server: one arbiter thread for each GPU that has containers."""
