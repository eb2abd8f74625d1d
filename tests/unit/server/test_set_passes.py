"""``cgpu set`` is one connection and one pass over the containers (SCH-9, TREE-4)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from cgpu_cli.commands import commands
from cgpu_env import CgpuError, GpuShare, Request
from cgpu_node import server
from cgpu_node.facts.node import Node, NodeGpu
from cgpu_node.shares.liveness import start_time
from cgpu_node.shares.registry import Owner, Registry
from cgpu_server.control import connections
from cgpu_server.control.connections import Control
from cgpu_server.control.set_request import set_values
from cgpu_server.state.server_state import ServerState
from cgpu_server.tree.nodes import Tree

if TYPE_CHECKING:
    from pathlib import Path

    from cgpu_node.shares.record import Record
    from cgpu_node.shares.registry import Gone
    from cgpu_server.control.connections import Peer

pytestmark = pytest.mark.unit

MIB = 1 << 20
GPU = NodeGpu(0, "GPU-00000000-1111-2222-3333-444444444444", "Tesla T4", 1000 * MIB, 0, ())
NODE = Node("1", "/", {}, {}, (GPU,), ())


class World:
    """A server's knowledge of one container, and what it does."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.registry = Registry(str(folder))
        owner = Owner(os.getpid(), start_time(os.getpid()) or 0, None)
        request = Request((GpuShare(0, GPU.uuid, 100 * MIB),), 1, high_priority=False)
        self.registry.admit("0abc", "container", request, NODE, owner, ["true"])
        self.arbitrated: list[tuple[Record, ...]] = []

        def reconcile(records: tuple[Record, ...], _: object) -> None:
            self.arbitrated.append(records)

        arbiters = cast("Any", SimpleNamespace(reconcile=reconcile))
        self.state = ServerState(self.registry, arbiters)
        self.node: Node | None = NODE
        monkeypatch.setattr(self.state, "find_node", lambda: self.node)
        self.passes = 0
        whole = Registry.reap

        def reap(registry: Registry, gone: Gone) -> list[Record]:
            self.passes += 1
            return whole(registry, gone)

        monkeypatch.setattr(Registry, "reap", reap)

    def set(self, word: str, **values: Any) -> tuple[str, ...]:
        """``cgpu set`` by root: its notes."""
        tree = Tree(self.state, lambda: None)
        answer = set_values(self.state, {"target": word, "values": values}, tree)
        notes: tuple[str, ...] = answer["notes"]
        return notes


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_a_change_is_one_pass_over_the_containers(world: World) -> None:
    world.set("0a", weight=4, memsize=50 * MIB)
    assert world.passes == 1
    world.set("0", policy=3)
    assert world.passes == 2
    world.set("node", default_memsize=5 * MIB)
    assert world.passes == 3
    assert world.state.records == tuple(world.registry.list_records())
    (entry,) = world.state.records
    assert (entry.weight, entry.policy, entry.gpus[0].cap_bytes) == (4, 3, 50 * MIB)
    assert world.arbitrated[1] == world.state.records, "the arbiter follows at once"
    assert world.state.rules_of(GPU.uuid).policy == 3


def test_a_default_size_that_a_gpu_cannot_give_is_set_with_a_note(world: World) -> None:
    """ENV-4."""
    sentence = "GPU 0 has 1000 MiB, less than default_memsize=101376MiB"
    above = (f"{sentence}: a container that names no size gets the whole GPU",)
    assert world.set("node", default_memsize="99GiB") == above
    assert world.set("node", default_memsize="6/15") == (
        "GPU 0 has 1000 MiB, not the 15 GiB of default_memsize=6/15: 6 of 15 is 400 MiB",
    )
    assert world.set("node", default_memsize="1000MiB") == ()
    assert world.set("node", default_memsize=0) == ()
    world.node = None
    assert world.set("node", default_memsize="99GiB") == ()


def test_the_gpus_of_containers_that_have_ended_are_not_meant(world: World) -> None:
    """Without a driver the GPUs are those that containers have."""
    world.node = None
    world.state.refresh()
    world.registry.remove("0abc")
    for word in ("0", "all"):
        with pytest.raises(CgpuError, match=f"'{word}': no such GPU.*; this node has no GPU$") as e:
            world.set(word, policy=3)
        assert e.value.hint == "cgpu doctor says why"


@pytest.mark.parametrize(
    ("word", "name", "meant"), [("al", "policy", "all"), ("0/0abc", "memory", "memsize")]
)
def test_a_misspelt_word_is_refused_with_the_one_that_was_probably_meant(
    world: World, word: str, name: str, meant: str
) -> None:
    with pytest.raises(CgpuError, match=rf": did you mean {meant}\?$"):
        world.set(word, **{name: 1})


def test_a_write_to_the_tree_is_one_pass_too(world: World) -> None:
    world.state.refresh()
    world.passes = 0
    tree = Tree(world.state, lambda: None)
    for passes, (path, text) in enumerate((("0/0abc/weight", "2"), ("0/policy", "2")), 1):
        tree.write(path, text)
        assert (world.passes, tree.read(path)) == (passes, f"{text}\n")


def test_a_refused_change_is_followed_by_what_else_is_new(world: World) -> None:
    with pytest.raises(CgpuError, match="weight=21: expected"):
        world.set("0abc", weight=21)
    assert [entry.id for entry in world.arbitrated[-1]] == ["0abc"]
    with pytest.raises(CgpuError, match="set 0 weight: a GPU has"):
        world.set("0", weight=2)
    assert world.state.records[0].weight == 1
    assert world.passes == 2


@pytest.mark.parametrize("is_guest", [False, True])
def test_only_a_connection_without_a_request_asks_for_a_refresh(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_guest: bool,  # noqa: FBT001 (a column of the table)
) -> None:
    """Whoever admits connects and goes; a request refreshes what it needs itself.

    REL-8: connections of other users do nothing.
    """
    if is_guest:
        peer = connections.Peer(1, os.getuid() + 1, 0)
        monkeypatch.setattr(connections, "_read_peer", lambda _: peer)
    touched: list[int] = []

    def answer(_: dict[str, Any], __: Peer) -> dict[str, Any]:
        return {"touched": len(touched)}

    async def play() -> None:
        is_touched = asyncio.Event()

        def touch() -> None:
            touched.append(1)
            is_touched.set()

        folder = os.open(tmp_path, os.O_PATH)
        path = server.socket_address(folder)
        serving = Control(answer, touch).listen(bound(path))
        for _ in range(2):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b'{"request": "set"}\n')
            assert json.loads(await reader.readline()) == {"touched": 0}
            writer.close()
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write_eof()
        assert await reader.read() == b"", "it is closed"
        assert is_touched.is_set() is not is_guest
        serving.cancel()
        os.close(folder)

    asyncio.run(asyncio.wait_for(play(), 60))
    assert touched == ([] if is_guest else [1])


def bound(path: str) -> socket.socket:
    """A socket at this path, for ``Control.listen``."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.settimeout(0)
    return listener


@pytest.mark.parametrize("bound_name", ["_REST_SECONDS", "_LONGEST_REST"])
def test_guests_who_never_stop_asking_are_served_after_a_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound_name: str
) -> None:
    """REL-8: else they would take the processor that root's programs need."""
    whole = connections._read_peer  # noqa: SLF001 (who it is)

    def peer(writer: asyncio.StreamWriter) -> Peer:
        is_guest = writer.get_extra_info("sockname").endswith(server.SOCKET)
        return connections.Peer(1, os.getuid() + 1, 0) if is_guest else whole(writer)

    monkeypatch.setattr(connections, "_read_peer", peer)
    monkeypatch.setattr(connections, "_REST_TIMES", 10**12)
    for name in ("_REST_SECONDS", "_LONGEST_REST"):
        monkeypatch.setattr(connections, name, 3600.0 if name == bound_name else 0.0)

    async def ask(path: str) -> bytes:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"{}\n")
        line = await reader.readline()
        writer.close()
        return line

    async def play() -> None:
        folder = os.open(tmp_path, os.O_PATH)
        common, root = (
            server.socket_address(folder, n) for n in (server.SOCKET, server.ROOT_SOCKET)
        )
        control = Control(lambda _, __: {}, lambda: None)
        serving = [control.listen(bound(path)) for path in (common, root)]
        assert await ask(common) == b"{}\n"
        second = asyncio.create_task(ask(common))
        for _ in range(20):
            assert await ask(root) == b"{}\n"
        assert not second.done()
        for task in (second, *serving):
            task.cancel()
        os.close(folder)

    asyncio.run(asyncio.wait_for(play(), 60))


def test_the_command_connects_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    folder, connections = os.open(tmp_path, os.O_PATH), 0
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(server.socket_address(folder))
        listener.listen()

        def serve() -> None:
            nonlocal connections
            with contextlib.suppress(OSError):  # it is shut down at the end
                while True:
                    end, _ = listener.accept()
                    connections += 1
                    with end, end.makefile("rw") as file:
                        if file.readline():
                            file.write('{"notes": []}\n')

        thread = threading.Thread(target=serve)
        thread.start()
        words = ["set", "0", "policy=2", "--state-dir", str(tmp_path)]
        given = commands.build_parser().parse_args(words)
        assert given.command.run(given) == 0
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    os.close(folder)
    assert connections == 1
