"""What the demonstration shows, and what it runs."""
