"""What ``cgpu-run`` is made of, and how a user's session gets into the account of the node."""
