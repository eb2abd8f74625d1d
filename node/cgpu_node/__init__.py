"""What this machine is, who has which share of its GPUs, and how to reach its server."""
