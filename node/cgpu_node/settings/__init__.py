"""The administrator's settings: the configuration, and the rules of each GPU."""
