"""The server's facts about containers and rules, and the arbitration between containers."""
