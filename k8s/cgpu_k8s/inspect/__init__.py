"""``kubectl inspect cgpu``: the pods' shares of each GPU, and the reason why a pod waits."""
