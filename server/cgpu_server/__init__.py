"""``cgpud``, the node's server. It has one arbiter thread for each GPU that has containers."""
