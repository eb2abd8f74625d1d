"""The description of a node's containers from which everything is printed."""
