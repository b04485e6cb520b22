"""What opens over the board: confirmations, the launch form, the shard browser, sheets of text."""
