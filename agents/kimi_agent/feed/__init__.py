"""Driving a dataset through a running server into a dump: what is sent, what came of it, row by row."""
