"""The agent of a node: it finds the node's GPUs, offers them, and audits the pods' shares."""
