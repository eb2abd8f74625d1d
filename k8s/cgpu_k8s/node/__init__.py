"""The agent of a node, which finds the node's GPUs, offers them, and audits the pods' shares."""
