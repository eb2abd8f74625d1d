"""ResourcePolicies of the cluster: to which unit of nodes a pod goes, and what follows from it."""
