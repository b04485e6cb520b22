"""A run of the server: launched, followed, sampled, journaled, stopped."""
