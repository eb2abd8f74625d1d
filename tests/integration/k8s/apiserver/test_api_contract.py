"""What cgpu relies on in an API server: of the fake one, and of the real Kubernetes.

Each test runs against both, so that the fake does not drift.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from cgpu_env.errors import CgpuError
from cgpu_k8s.apiserver.client import MERGE, open_client
from cgpu_k8s.apiserver.cluster import Cluster, Fixed, make_bearer
from cgpu_k8s.apiserver.errors import (
    ApiError,
    ConflictError,
    InvalidError,
    NotFoundError,
    UnauthorizedError,
)
from cgpu_k8s.apiserver.resources import EVENTS, LEASES, NODES, PODS
from lab.kubernetes.control_plane import ControlPlane
from lab.kubernetes.objects import binding, node, pod
from lab.worlds.contract import Json, Server, World, names, refused, tried

pytestmark = pytest.mark.integration


def test_a_write_that_is_stopped_before_its_body_is_not_carried_out(server: Server) -> None:
    async def act(world: World) -> None:
        def stop() -> None:
            raise CgpuError("not now")

        for _ in range(2):  # the second one has the connection of a read that went well
            with pytest.raises(CgpuError, match="not now"):
                await world.client.post(world.pods, pod("a"), stop)
            assert await names(world, world.pods) == []
        assert await world.client.post(world.pods, pod("a"), lambda: None)
        assert await names(world, world.pods) == ["a"]

    tried(server, act)


def test_an_object_is_created_read_listed_and_deleted(server: Server) -> None:
    async def act(world: World) -> None:
        client = world.client
        made = await client.post(world.pods, pod("a", {"aliyun.com/gpu-mem": "3"}))
        about = made["metadata"]
        assert about["uid"]
        assert about["namespace"] == world.namespace
        assert about["resourceVersion"].isdecimal()
        assert made["status"]["phase"] == "Pending"
        assert made["spec"]["schedulerName"] == "default-scheduler"
        found = await client.get(world.pod("a"))
        assert found["spec"]["containers"][0]["resources"]["limits"] == {"aliyun.com/gpu-mem": "3"}
        assert await names(world, world.pods) == ["a"]
        await client.delete(world.pod("a"))
        assert isinstance(await refused(client.get(world.pod("a"))), NotFoundError)
        assert isinstance(await refused(client.delete(world.pod("a"))), NotFoundError)
        assert await names(world, world.pods) == []

    tried(server, act)


def test_a_name_is_taken_once_and_may_be_generated(server: Server) -> None:
    async def act(world: World) -> None:
        await world.client.post(world.pods, pod("a"))
        error = await refused(world.client.post(world.pods, pod("a")))
        assert isinstance(error, ConflictError)
        assert error.reason == "AlreadyExists"
        assert error.sure
        body = pod("") | {"metadata": {"generateName": "b-"}}
        made = await world.client.post(world.pods, body)
        assert made["metadata"]["name"].startswith("b-")

    tried(server, act)


def test_what_is_no_such_object_is_refused(server: Server) -> None:
    async def act(world: World) -> None:
        post = world.client.post
        assert (await refused(post(world.pods, node("a")))).status == 400
        bare: Json = {"metadata": {"name": "a"}}  # a kind that is not stated is that of the path
        assert isinstance(await refused(post(world.pods, bare)), InvalidError)
        assert isinstance(await refused(post(world.pods, pod("A_b"))), InvalidError)
        assert isinstance(await refused(post(world.pods, pod(""))), InvalidError)
        other = PODS.path(namespace="not-there")
        assert isinstance(await refused(post(other, pod("a"))), NotFoundError)
        elsewhere = pod("a")
        elsewhere["metadata"]["namespace"] = "default"
        assert (await refused(post(world.pods, elsewhere))).status == 400
        for path in ("/api/v1/nothing", "/apis/example.com/v1/things"):
            assert isinstance(await refused(world.client.get(path)), NotFoundError)

    tried(server, act)


def test_who_is_not_known_is_refused(server: Server) -> None:
    cluster = server.cluster()

    async def act() -> ApiError:
        other = Cluster(cluster.server, "the test", cluster.trust, Fixed(make_bearer("wrong")))
        async with open_client(other) as client:
            return await refused(client.get(NODES.path()))

    error = asyncio.run(act())
    assert isinstance(error, UnauthorizedError)
    assert error.hint.startswith("check the credentials of the test")


def test_an_older_version_replaces_nothing(server: Server) -> None:
    async def act(world: World) -> None:
        client = world.client
        old = await client.post(world.pods, pod("a"))
        new = await client.put(world.pod("a"), labelled(old, "first"))
        error = await refused(client.put(world.pod("a"), labelled(old, "second")))
        assert isinstance(error, ConflictError)
        assert error.reason == "Conflict"
        stale = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}}
        error = await refused(client.patch(world.pod("a"), stale))
        assert isinstance(error, ConflictError)
        assert (await client.get(world.pod("a"))) == new

    def labelled(item: Json, value: str) -> Json:
        return {**item, "metadata": {**item["metadata"], "labels": {"app": value}}}

    tried(server, act)


def test_a_patch_adds_changes_and_removes(server: Server) -> None:
    async def act(world: World) -> None:
        patch, path = world.client.patch, world.pod("a")
        await world.client.post(world.pods, pod("a"))
        for kind in ("strategic", "merge"):
            more = (MERGE,) if kind == "merge" else ()
            add: Json = {"metadata": {"annotations": {"one": "1", "two": "2"}}}
            assert annotations(await patch(path, add, *more)) == {"one": "1", "two": "2"}
            add = {"metadata": {"annotations": {"one": None, "two": "3"}}}
            assert annotations(await patch(path, add, *more)) == {"two": "3"}
        assert isinstance(await refused(patch(world.pod("b"), add)), NotFoundError)

    def annotations(item: Json) -> Json:
        found: Json = item["metadata"]["annotations"]
        return found

    tried(server, act)


def test_the_status_is_a_part_of_its_own(server: Server) -> None:
    async def act(world: World) -> None:
        client, name = world.client, world.namespace
        await client.post(NODES.path(), node(name, {"a": "b"}, cpu="4"))
        status = NODES.path(name, part="status")
        more: Json = {"status": {"capacity": {"aliyun.com/gpu-mem": "60"}}}
        made = await client.patch(status, more)
        assert made["status"]["capacity"] == {"cpu": "4", "aliyun.com/gpu-mem": "60"}
        await client.patch(NODES.path(name), {"status": {"capacity": {"cpu": "8"}}})
        changed = await client.patch(status, {"spec": {"unschedulable": True}})
        assert changed["status"]["capacity"]["cpu"] == "4"
        assert not changed["spec"].get("unschedulable")
        conditions = [("Ready", "True"), ("MemoryPressure", "False"), ("Ready", "False")]
        for kind, value in conditions:
            body: Json = {"status": {"conditions": [{"type": kind, "status": value}]}}
            changed = await client.patch(status, body)
        found = {each["type"]: each["status"] for each in changed["status"]["conditions"]}
        assert found == {"Ready": "False", "MemoryPressure": "False"}
        gone: Json = {"status": {"capacity": {"aliyun.com/gpu-mem": None}}}
        assert (await client.patch(status, gone))["status"]["capacity"] == {"cpu": "4"}
        await client.delete(NODES.path(name))

    tried(server, act)


def test_a_binding_puts_its_annotations_on_the_pod_in_the_same_write(server: Server) -> None:
    async def act(world: World) -> None:
        client = world.client
        made = pod("a")
        made["metadata"]["annotations"] = {"mine": "1", "ours": "0"}
        await client.post(world.pods, made)
        async with aclosing(aiter(world.watch())) as events:
            await anext(events)
            uid = {"uid": "00000000-0000-0000-0000-000000000000"}  # not looked at before 1.23
            body = binding("a", "gpu-a", {"ours": "1", "cgpu/allocation": "{}"}, **uid)
            if isinstance(server, ControlPlane) and server.release.is_since(23):
                error = await refused(client.post(world.pod("a", "binding"), body))
                assert isinstance(error, ConflictError)
                del body["metadata"]["uid"]
            await client.post(world.pod("a", "binding"), body)
            change = await anext(events)
            assert change.kind == "MODIFIED"
            bound = change.item
        expected = {"mine": "1", "ours": "1", "cgpu/allocation": "{}"}
        assert bound["metadata"]["annotations"] == expected
        assert bound["spec"]["nodeName"] == "gpu-a"
        scheduled = [(each["type"], each["status"]) for each in bound["status"]["conditions"]]
        assert scheduled == [("PodScheduled", "True")]
        body = binding("a", "gpu-b", {"ours": "2"})
        error = await refused(client.post(world.pod("a", "binding"), body))
        assert isinstance(error, ConflictError)
        assert await client.get(world.pod("a")) == bound
        error = await refused(client.post(world.pod("b", "binding"), binding("b", "gpu-a")))
        assert isinstance(error, NotFoundError)

    tried(server, act)


def test_the_spec_of_a_pod_does_not_change(server: Server) -> None:
    async def act(world: World) -> None:
        await world.client.post(world.pods, pod("a"))
        limits = {"limits": {"aliyun.com/gpu-mem": "9"}}
        body = {"spec": {"containers": [{"name": "main", "resources": limits}]}}
        assert isinstance(await refused(world.client.patch(world.pod("a"), body)), InvalidError)
        error = await refused(world.client.patch(world.pod("a"), {"spec": {"nodeName": "x"}}))
        assert isinstance(error, InvalidError)
        image = {"spec": {"containers": [{"name": "main", "image": "other"}]}}
        changed = await world.client.patch(world.pod("a"), image)
        assert changed["spec"]["containers"][0]["image"] == "other"

    tried(server, act)


def test_a_pod_on_a_node_stays_until_its_kubelet_removes_it(server: Server) -> None:
    async def act(world: World) -> None:
        client, path = world.client, world.pod("a")
        made = await client.post(world.pods, pod("a"))
        await client.post(world.pod("a", "binding"), binding("a", "gpu-a"))
        assert (await client.get(path))["spec"]["nodeName"] == "gpu-a"
        # Kubernetes 1.36 goes by its cache, and deletes a pod at once that is on no node there: it
        # did so with 11 of 300 pods beside three busy loops.
        cached: Json = {"spec": {}}
        while "nodeName" not in cached["spec"]:
            [cached] = (await client.get(world.pods, {"resourceVersion": "0"}))["items"] or [cached]
        await client.delete(path)
        found = await client.get(path)
        assert found["metadata"]["deletionTimestamp"]
        assert found["metadata"]["uid"] == made["metadata"]["uid"]
        wrong: Json = {"preconditions": {"uid": "other"}, "gracePeriodSeconds": 0}
        assert isinstance(await refused(client.delete(path, wrong)), ConflictError)
        right: Json = {"preconditions": {"uid": made["metadata"]["uid"]}, "gracePeriodSeconds": 0}
        await client.delete(path, right)
        assert isinstance(await refused(client.get(path)), NotFoundError)

    tried(server, act)


def test_a_pod_that_is_being_deleted_is_bound_to_nothing(server: Server) -> None:
    async def act(world: World) -> None:
        client = world.client
        made = pod("a")
        made["metadata"]["finalizers"] = ["cgpu.test/kept"]
        await client.post(world.pods, made)
        await client.delete(world.pod("a"))
        error = await refused(client.post(world.pod("a", "binding"), binding("a", "gpu-a")))
        assert isinstance(error, ConflictError)
        await client.patch(world.pod("a"), {"metadata": {"finalizers": None}}, MERGE)
        assert await names(world, world.pods) == []

    tried(server, act)


def test_leases_and_events_are_written(server: Server) -> None:
    async def act(world: World) -> None:
        client = world.client
        about = {"name": "a", "namespace": world.namespace}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": about}
        path = LEASES.path("a", namespace=world.namespace)
        spec = {"holderIdentity": "me", "renewTime": "2026-11-23T21:54:53.000000Z"}
        await client.post(LEASES.path(namespace=world.namespace), {**lease, "spec": spec})
        changed = await client.patch(path, {"spec": {"holderIdentity": "you"}}, MERGE)
        assert changed["spec"]["holderIdentity"] == "you"
        assert changed["spec"]["renewTime"] == spec["renewTime"]
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": about,
            "involvedObject": {"kind": "Pod", "name": "a", "namespace": world.namespace},
            "reason": "Waits",
            "message": "for a GPU",
            "type": "Warning",
        }
        await client.post(EVENTS.path(namespace=world.namespace), event)
        assert await names(world, EVENTS.path(namespace=world.namespace)) == ["a"]

    tried(server, act)
