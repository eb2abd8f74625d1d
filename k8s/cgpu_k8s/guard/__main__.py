"""``python -m cgpu_k8s.guard``."""

from cgpu_k8s.guard.main import main

main()
