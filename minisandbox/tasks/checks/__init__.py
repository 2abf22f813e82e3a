"""What is asked of a task before it may reward, a group of checks a module."""
