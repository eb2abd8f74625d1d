"""What the server knows of containers and rules, and the arbitration that follows it."""
