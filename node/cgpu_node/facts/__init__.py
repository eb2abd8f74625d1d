"""The node's driver and GPUs, asked once and kept."""
