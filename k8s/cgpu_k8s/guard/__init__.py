"""Which pods, and which changes to them and to nodes, the API server lets in: by one table."""
