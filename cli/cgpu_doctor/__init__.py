"""``cgpu doctor``: what is wrong on this node, and what repairs it."""
