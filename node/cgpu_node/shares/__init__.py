"""The shares of GPUs: their records, their admission, and their changes."""
