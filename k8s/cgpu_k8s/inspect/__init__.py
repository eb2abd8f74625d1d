"""``kubectl inspect cgpu``: which pods have what of which GPU, and why a pod waits."""
