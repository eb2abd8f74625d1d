"""The parts of ``cgpu-run``, and how a user's session joins the node's account."""
