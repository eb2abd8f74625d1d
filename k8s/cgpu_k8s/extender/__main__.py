"""``python -m cgpu_k8s.extender``."""

from cgpu_k8s.extender.main import main

main()
