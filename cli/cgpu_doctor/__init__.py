"""What keeps this node from dividing its GPUs, and what mends it: ``cgpu doctor``."""
