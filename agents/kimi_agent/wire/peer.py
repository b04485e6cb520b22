"""Who is at the other end of a unix socket."""

import os
import socket
import struct

_CREDENTIALS = struct.Struct("3i")


def same_user(sock: socket.socket) -> bool:
    """Whether the peer's process runs as this user; the kernel vouches for it."""
    _, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(uid == os.getuid())
