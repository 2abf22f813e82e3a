"""The command line: arguments in, output and exit codes out. The only part that prints, reads the environment or exits."""
