"""Figures of claims: Dynamic Resource Allocation."""
