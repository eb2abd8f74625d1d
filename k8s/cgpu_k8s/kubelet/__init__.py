"""The kubelet and its container runtime: requests of a node's programs to them."""
