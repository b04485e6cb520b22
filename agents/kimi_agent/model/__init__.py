"""Events, state and the reducer between them: standard library only, no clock, no I/O."""
