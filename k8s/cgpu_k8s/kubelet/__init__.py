"""The kubelet and its container runtime: what a node's programs ask them, and tell them."""
