"""What leaves the console: a slice of a recording, its log, its state, without what is private."""
