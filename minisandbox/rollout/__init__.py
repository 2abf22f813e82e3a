"""The loop: tasks become episodes, a policy plays them in sandboxes, the judge rewards them, and records keep it."""
