"""Which pods, and which changes to them, the API server lets in: one table of rules, pure."""
