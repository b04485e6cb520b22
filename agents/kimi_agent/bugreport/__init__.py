"""A bundle for a bug report: what is known of a run, without what must not leave the host."""
