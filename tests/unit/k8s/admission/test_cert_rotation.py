"""Several replicas of the guard, which renew one certificate and write what API servers trust."""

from __future__ import annotations

import asyncio
import base64
import copy
from datetime import datetime, timedelta

import pytest
from cryptography import x509
from test_guard_certificates import DAY, HOST, NOW, Json

from cgpu_k8s.admission.cert_rotation import CertRotator
from cgpu_k8s.admission.certificates import AUTHORITY, Keys
from cgpu_k8s.apiserver.errors import ConflictError, ForbiddenError
from cgpu_k8s.apiserver.resources import MUTATING, SECRETS, VALIDATING

pytestmark = pytest.mark.unit

SECRET = SECRETS.path("cgpu-guard", namespace="kube-system")
HOOKS = [each.path("cgpu-guard") for each in (MUTATING, VALIDATING)]
URL = "https://guard:8443/"


class Store:
    """The objects of an API server that replicas share; each call lets the others go on."""

    def __init__(self) -> None:
        self.items: dict[str, Json] = {SECRET: {"metadata": {"resourceVersion": "1"}}}
        for path in HOOKS:
            hooks = [
                {"name": name, "clientConfig": {"url": URL.format("validate")}}
                for name in ("a", "b")
            ]
            self.items[path] = {"metadata": {"resourceVersion": "1"}, "webhooks": hooks}
        self.version = 1
        self.writes: list[str] = []
        self.refused = 0
        self.pause: dict[str, asyncio.Event] = {}
        self.forbidden = ""
        self.ahead = 0  # conflicts to come

    async def get(self, path: str) -> Json:
        await self._wait(f"get {path}")
        found = copy.deepcopy(self.items[path])
        await self._wait(f"got {path}")
        return found

    async def put(self, path: str, body: Json) -> Json:
        await self._wait(f"put {path}")
        return self._write(path, body)

    async def patch(self, path: str, body: Json) -> Json:
        await self._wait(f"patch {path}")
        changed = copy.deepcopy(self.items[path])
        changed["metadata"] |= body["metadata"]
        for hook, change in zip(changed["webhooks"], body["webhooks"], strict=True):
            assert hook["name"] == change["name"]
            hook["clientConfig"] |= change["clientConfig"]
        return self._write(path, changed)

    async def _wait(self, call: str) -> None:
        await asyncio.sleep(0)
        if call in self.pause:
            await self.pause.pop(call).wait()
        if self.forbidden and call.startswith(self.forbidden):
            raise ForbiddenError(f"{call}: forbidden", status=403)

    def _write(self, path: str, body: Json) -> Json:
        about = self.items[path]["metadata"]
        if self.ahead or body["metadata"]["resourceVersion"] != about["resourceVersion"]:
            self.ahead = max(self.ahead - 1, 0)
            self.refused += 1
            raise ConflictError("the object has been modified", status=409)
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.items[path] = copy.deepcopy(body)
        self.writes.append(path)
        return body

    def keys(self) -> Keys:
        data = self.items[SECRET]["data"]
        names = ("ca.crt", "ca.key", "tls.crt", "tls.key", "path")
        return Keys(*(base64.b64decode(data[name]) for name in names))

    def bundles(self) -> set[bytes]:
        """What API servers trust, by all configurations; all call the path that is kept."""
        hooks = [hook for path in HOOKS for hook in self.items[path]["webhooks"]]
        paths = {hook["clientConfig"]["url"].removeprefix(URL) for hook in hooks}
        assert {path[64:] for path in paths} == {"/mutate", "/validate"}
        assert len({path[:64] for path in paths}) == 1
        return {base64.b64decode(hook["clientConfig"]["caBundle"]) for hook in hooks}


class Replica(CertRotator):
    """A replica whose clock a test sets, with the lines of its log."""

    def __init__(self, store: Store, now: datetime = NOW) -> None:
        self.now = now
        self.log: list[str] = []
        self.pauses: list[float] = []
        super().__init__(store, "kube-system", HOST, self.note, lambda: self.now, self.rest)

    async def rest(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    def note(self, event: str, fields: Json) -> None:
        self.log.append(f"{event} {fields.get('error', '')}".strip())


def test_of_many_replicas_one_is_first_and_all_show_the_same() -> None:
    store = Store()

    async def act() -> list[Replica]:
        replicas = [Replica(store) for _ in range(5)]
        await asyncio.gather(*(each.wait_for_keys() for each in replicas))
        return replicas

    replicas = asyncio.run(act())
    assert store.writes.count(SECRET) == 1
    assert store.bundles() == {store.keys().authorities}
    assert store.refused
    assert [each.log.count("renewed") for each in replicas].count(1) == 1
    assert all(each.log.count("shows") == 1 for each in replicas)


def test_a_replica_that_others_are_ahead_of_pauses_longer_each_time() -> None:
    store = Store()
    replica = Replica(store)
    store.ahead = 3
    assert asyncio.run(replica.try_reconcile())
    assert store.refused == 3
    assert [0.05 <= replica.pauses[n] / 2**n <= 0.1 for n in range(3)] == [True] * 3
    store.items[SECRET]["data"], store.ahead = {}, 1000
    assert not asyncio.run(replica.try_reconcile())
    assert store.refused == 3 + 6
    assert replica.log[-1] == "failed the object has been modified"


def test_replicas_at_rest_write_nothing_but_the_word_of_an_hour() -> None:
    """Nor does one whose clock is behind take the newer word away."""
    store = Store()

    async def act() -> None:
        replicas = [Replica(store) for _ in range(2)]
        await asyncio.gather(*(each.wait_for_keys() for each in replicas))
        before = len(store.writes)
        for day in range(59):
            for each in replicas:
                each.now = NOW + day * DAY
                await each.reconcile()
        assert store.writes[before:] == HOOKS * 58
        first, second = replicas
        for step in range(1, 5):
            second.now = first.now + timedelta(hours=1)
            for each in (second, first, second):
                await each.reconcile()
            called = store.items[HOOKS[0]]["webhooks"][0]["clientConfig"]["url"]
            assert called.removeprefix(URL).partition("/")[0] == second.compute_words().now
            assert second.compute_words().now in first.compute_words()
            assert store.writes[before:] == HOOKS * (58 + step)
            first.now = second.now

    asyncio.run(act())


@pytest.mark.long
def test_replicas_rotate_over_thirty_years_without_a_fight() -> None:
    store = Store()

    async def act() -> int:
        replicas = [Replica(store) for _ in range(2)]
        rounds = 0
        for day in range(0, 30 * 365, 20):
            for number, each in enumerate(replicas):
                each.now = NOW + day * DAY + timedelta(minutes=5 * number)
            for _ in range(2):  # whoever was second sees it at its next look
                await asyncio.gather(*(each.try_reconcile() for each in replicas))
            assert store.bundles() == {store.keys().authorities}
            assert all(each.shown == store.keys() for each in replicas)
            rounds += 1
        return rounds

    rounds = asyncio.run(act())
    assert store.writes.count(SECRET) <= rounds // 3 + 8


@pytest.mark.parametrize("path", HOOKS)
@pytest.mark.parametrize("at", ["get", "got", "got secret", "patch"])
def test_a_slow_replica_does_not_take_a_new_authority_away(path: str, at: str) -> None:
    """The other one rotates at any time between what it reads and what it writes."""
    store = Store()

    async def act() -> None:
        slow, quick = Replica(store), Replica(store)
        await slow.wait_for_keys()
        call = f"got {SECRET}" if at == "got secret" else f"{at} {path}"
        store.items[path]["webhooks"][0]["clientConfig"]["caBundle"] = ""  # so it has to write
        store.pause[call] = go_on = asyncio.Event()
        late = asyncio.create_task(slow.try_reconcile())
        while call in store.pause:  # noqa: ASYNC110 (it takes it)
            await asyncio.sleep(0)
        quick.now = NOW + AUTHORITY.life - 100 * DAY
        await quick.try_reconcile()
        assert len(x509.load_pem_x509_certificates(store.keys().authorities)) == 2
        go_on.set()
        await late
        assert store.bundles() == {store.keys().authorities}

    asyncio.run(act())


def test_what_somebody_changes_is_put_right() -> None:
    store = Store()

    async def act() -> None:
        replica = Replica(store)
        await replica.wait_for_keys()
        shown = store.keys()
        for damage in ({}, {"data": {"ca.crt": "%"}}, {"data": {"tls.crt": ""}}, {"data": None}):
            store.items[SECRET] = {"metadata": store.items[SECRET]["metadata"], **damage}
            await replica.reconcile()
            assert store.keys() != shown
            shown = store.keys()
            assert store.bundles() == {shown.authorities}
        store.items[HOOKS[1]]["webhooks"][1]["clientConfig"]["caBundle"] = "b3RoZXI="
        before = len(store.writes)
        await replica.reconcile()
        assert store.writes[before:] == [HOOKS[1]]

    asyncio.run(act())


def test_what_is_refused_is_said_once_and_tried_again() -> None:
    store = Store()

    async def act() -> None:
        replica = Replica(store)
        store.forbidden = "put"
        assert not await replica.try_reconcile()
        assert not await replica.try_reconcile()
        assert replica.log == [f"failed put {SECRET}: forbidden"]
        store.forbidden = f"patch {HOOKS[0]}"
        assert not await replica.try_reconcile()  # and yet it serves
        log = ["renewed", "shows", "trusted", f"failed patch {HOOKS[0]}: forbidden"]
        assert replica.log[1:] == log
        store.forbidden = f"get {HOOKS[0]}"
        store.items[SECRET]["data"] = {}
        assert not await replica.try_reconcile()
        assert replica.log[5:] == [each.replace("patch", "get") for each in log]
        store.forbidden = ""
        assert await replica.try_reconcile()
        assert store.bundles() == {store.keys().authorities}

    asyncio.run(act())
