"""The server's facts of containers and rules, and the arbitration that follows them."""
