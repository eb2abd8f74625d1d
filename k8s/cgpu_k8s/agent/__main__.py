"""``python -m cgpu_k8s.agent``."""

from cgpu_k8s.agent.main import main

main()
