"""What cgpu reads from the objects of the API server, and what it writes into them: pure."""
