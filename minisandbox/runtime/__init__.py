"""Supervisor, sandboxes and commands: policy, slots, deadlines and accounting. Runs on trio and never forks."""
