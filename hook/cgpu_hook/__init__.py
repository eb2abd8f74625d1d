"""Container creation: the planner, what carries a plan out, and the registry of shares."""
