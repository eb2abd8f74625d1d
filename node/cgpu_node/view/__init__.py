"""The description of a node's containers that everything prints from."""
