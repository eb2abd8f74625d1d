"""The parts of ``cgpu-run``, and how a user's session gets into the node's account."""
