"""Mounts the control tree for a server that runs as a confined service.

Such a server has a mount namespace of its own and no right to mount. It opens the FUSE device and
sends it to this program, which runs as root outside, and mounts it where everybody sees it.
"""

from __future__ import annotations

import json
import os
import socket

from cgpu_env import CgpuError
from cgpu_node import server
from cgpu_server.tree import mounts

_PATIENCE = 10.0
_LONGEST_ANSWER = 1 << 16


def mount_for_server(state_dir: str, path: str) -> None:
    """Mount the tree of the server of ``state_dir`` at ``path``.

    Raises:
        CgpuError: no server answers, or it cannot be mounted.
    """
    folder = os.open(state_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
            end.settimeout(_PATIENCE)
            server.connect(end, folder)
            (device,) = _send_request(end, "tree", fds=1)
            mounts.mount_tree(path, device)
            os.close(device)
            _send_request(end, "mounted")
    except OSError as error:
        raise CgpuError(f"control tree {path}: {error.strerror or error}") from None
    finally:
        os.close(folder)


def _send_request(end: socket.socket, request: str, fds: int = 0) -> list[int]:
    """Send a request, and return the descriptors that came with the answer."""
    end.sendall(json.dumps({"request": request}).encode() + b"\n")
    line, found, _, _ = socket.recv_fds(end, _LONGEST_ANSWER, fds)
    answer = json.loads(line)
    if "error" in answer or len(found) != fds:
        raise CgpuError(answer.get("error", "the server sent no device"))
    return found
