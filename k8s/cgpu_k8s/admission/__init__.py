"""Admission by one table of rules: pods, changes to them, and changes to nodes."""
