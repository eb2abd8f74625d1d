"""Many nodes and pods on a real control plane, and what goes wrong between its programs."""
