"""Two recordings beside each other: what each start did, and where they part."""
