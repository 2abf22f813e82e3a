"""The command line: the only part that parses arguments, prints, reads the environment or exits."""
