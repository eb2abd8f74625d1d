"""Limits of memory, in a capped child and from outside."""
