"""Shares of GPU time, with programs that keep it busy."""
