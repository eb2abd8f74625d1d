"""The server's facts about containers and rules, and their arbitration."""
