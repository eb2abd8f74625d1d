"""The ablation of the gate and the arbiter, see docs/model.md."""
