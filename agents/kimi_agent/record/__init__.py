"""Recordings: events in compressed blocks, with state checkpoints and marks, in one SQLite file."""
