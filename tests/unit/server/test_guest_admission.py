"""Who may be the owner of a guest's session (REL-8)."""

from __future__ import annotations

import os
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from cgpu_env import CgpuError
from cgpu_server.control import connections
from cgpu_server.control.connections import Peer
from cgpu_server.control.guests import admit_guest

pytestmark = pytest.mark.unit

ASKED = {"variables": {"ALIYUN_COM_GPU_MEM_CONTAINER": "1"}, "command": ["true"]}


def refusal(peer: Peer) -> str:
    """Why a guest is refused; "asked" if its process would own the session."""

    def known_node() -> Any:
        raise CgpuError("asked")

    state: Any = SimpleNamespace(registry=None, known_node=known_node)
    with pytest.raises(CgpuError) as refused:
        admit_guest(state, ASKED, peer)
    return str(refused.value)


def test_a_process_of_another_user_never_owns_a_guests_session() -> None:
    """The one that connected may have ended, and another may have its id, and live for ever."""
    own = os.getuid()
    assert refusal(Peer(os.getpid(), own, 0)) == "asked"
    ended = "admit: the process that connected has ended"
    assert refusal(Peer(os.getpid(), own + 1, 0)) == ended
    assert refusal(Peer(0, own, 0)) == "admit: your process is not seen from here"


def test_numbers_of_users_and_groups_are_read_without_a_sign() -> None:
    """Nobody could be given a file for a negative one."""
    end = SimpleNamespace(getsockopt=lambda *_: struct.pack("=iII", 7, 1 << 31, (1 << 32) - 2))
    writer: Any = SimpleNamespace(get_extra_info=lambda _: end)
    assert connections._read_peer(writer) == (7, 1 << 31, (1 << 32) - 2)  # noqa: SLF001 (who it is)
