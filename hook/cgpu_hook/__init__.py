"""Container creation: the planner, and the programs that carry a plan out."""
