"""What crosses a socket, an SSH channel or a file: events and messages as JSON lines."""
