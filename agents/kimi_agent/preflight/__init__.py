"""All that can be known before a launch: checks of the command line, the host and the model's files."""
