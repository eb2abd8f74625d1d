"""The facts about the node's driver and GPUs: asked once, and kept."""
