"""Dynamic Resource Allocation: GPUs as devices that claims get parts of."""
