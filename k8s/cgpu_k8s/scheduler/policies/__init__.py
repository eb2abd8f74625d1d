"""ResourcePolicies: which unit of nodes each pod goes to, and what the API server is sent."""
