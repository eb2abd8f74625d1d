"""What the administrator decided: the configuration, and the rules of each GPU."""
