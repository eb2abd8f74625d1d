"""Container creation: the planner, and what carries a plan out."""
