"""The shares of GPUs: records, admission, changes."""
