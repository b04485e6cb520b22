"""Dumps in the formats that trainers read: each with its own layers' spelling and its own idea of the last state."""
