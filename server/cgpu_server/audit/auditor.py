"""The audit: compares ledgers, which containers can write, with what the driver says they hold.

A thread of its own, which holds no lock of the server's: the driver may take its time. What a
container holds around its ledger is written into its limits page, where it counts as used.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING

import cgpu_native
from cgpu_env import CgpuError
from cgpu_env.logline import place as place_of
from cgpu_node.facts import driver
from cgpu_node.shares.liveness import folder_of
from cgpu_server.audit.comparison import (
    CALM,
    MIB,
    Account,
    Finding,
    Held,
    Verdict,
    at_most,
    excused,
    explained,
    judge,
    larger,
    steady,
)
from cgpu_server.audit.driver_probe import Gauge, Reading
from cgpu_server.audit.interfaces import used_by
from cgpu_server.audit.process_owners import Belonging, Owners, Process, read_process
from cgpu_server.audit.snapshot import NOTHING, Look, asked_by_process, by_container
from cgpu_server.audit.utilisation import Utilisation
from cgpu_server.journal import log
from cgpu_server.state.limits import pages_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from cgpu_node.shares.record import Record
    from cgpu_server.state.server_state import ServerState

    Place = tuple[str, int]  # a container's directory, and which of its GPUs

_READINGS = 8  # of one look, as long as each finds something
_PAUSE_SECONDS = (0.001, 0.02)  # between them: irregular, as programs are regular
_NAP_SECONDS = 1.0
_BACK_OFF_SECONDS = 30.0  # a driver that hangs is not asked again and again
_WORTH_SAYING = 64 * MIB
_ADVICE = "look at the program and its image, or end the container; see Audit in deploy/README.md"
_ADVICE_LEDGER = "its ledger was tampered with: end the container and look at its image"


class Audit:
    """Audits the containers of ``state``.

    Attributes:
        last: what it last saw, for others to read.
        utilisation: how busy the GPUs are by the driver's own figure.
    """

    def __init__(self, state: ServerState, back_off: float = _BACK_OFF_SECONDS) -> None:
        self.last = NOTHING
        self.utilisation = Utilisation(lambda: self.last)
        self._state, self._back_off = state, back_off
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._ended = threading.Event()
        self._gauge: Gauge | None = None
        self._failure: str | None = None
        self._not_before = 0.0
        self._before: dict[Place, Verdict] = {}
        self._said: dict[tuple[Place, tuple[int, ...]], int] = {}
        self._owners = Owners()
        self._strangers: set[int] = set()

    def start(self) -> None:
        """Audit from now on."""
        self._thread.start()

    def close(self) -> None:
        """Audit no more, whatever the driver is about to answer."""
        self._ended.set()
        gauge = self._gauge
        if gauge is not None:
            gauge.interrupt()
        self._thread.join(_NAP_SECONDS)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._ended.is_set():
            config, now = self._state.config, time.monotonic()
            if config.action == "off" or not self._state.records:
                self._rest(lift=config.action == "off")
                due = now + config.interval_seconds
            elif now >= due and now >= self._not_before:
                self._try_look()
                due = now + config.interval_seconds
            left = max(due, self._not_before) - time.monotonic()
            self._ended.wait(min(max(left, 0.0), _NAP_SECONDS))
        self._rest(lift=False)

    def _rest(self, *, lift: bool) -> None:
        """Let go of the driver and, if ``lift``, charge nobody."""
        if self._gauge is not None:
            self._gauge.close()
        self._gauge = None
        self._before, self._said, self._owners = {}, {}, Owners()
        self.last = NOTHING
        for record in self._state.records if lift else ():
            for place, page in enumerate(pages_of(record)[0]):
                _charge(record, place, page, 0)

    def _try_look(self) -> None:
        try:
            self._look()
            if self._failure is not None:
                log.info("audit_resumes")
            self._failure = None
        except CgpuError as error:
            if self._ended.is_set():
                return
            self._not_before = time.monotonic() + self._back_off
            if str(error) != self._failure:
                log.error("audit_fails", error=error, do=error.hint or "cgpu doctor")
            self._failure = str(error)
            self._forget()
        except Exception as error:  # noqa: BLE001 (whatever it is, the next look may do better)
            self._not_before = time.monotonic() + self._back_off
            log.error("audit_fails", error=f"{error!r} at {place_of(error)}", do="report this line")
            self._forget()

    def _forget(self) -> None:
        """What the last look saw is not so for ever."""
        told = dict.fromkeys(self.last.told, False)
        self.last = self.last._replace(told=told, utilisation={}, shares={})

    def _look(self) -> None:
        """Look several times, and act on what all of it and the look before say."""
        records = self._state.records
        found = self._compare(records, asked_by_process(self.last, records))
        for _ in range(_READINGS - 1):
            if all(verdict == CALM for verdict in found.values()):
                break
            time.sleep(random.uniform(*_PAUSE_SECONDS))  # noqa: S311 (nobody profits by guessing it)
            again = self._compare(records)
            found = {key: steady(found[key], again[key]) for key in found.keys() & again.keys()}
        for record in records:
            for place, page in enumerate(pages_of(record)[0]):
                key = record.directory, place
                if key in found:
                    # the server before us may have charged what is still there
                    before = self._before.get(key, Verdict(page.outside_bytes))
                    verdict = steady(before, found[key])
                    if _charge(record, place, page, verdict.outside_bytes):
                        self._tell_change(record, page, verdict)
                    self._act(record, place, page, self._excuse(record, place, page, verdict))
        self._before = {**self._before, **found}
        living = {record.directory for record in records}
        self._before = {key: each for key, each in self._before.items() if key[0] in living}

    def _compare(
        self, records: Sequence[Record], asked: Collection[str] | None = None
    ) -> dict[Place, Verdict]:
        """One comparison of all containers; those of a GPU whose driver does not tell are absent.

        ``asked`` are the GPUs whose time is divided anew by the driver's figures; None: as before.

        Raises:
            CgpuError: the driver does not answer.
        """
        gauge = self._opened()
        before = _accounts(records)
        readings = gauge.read(asked or ())
        after = _accounts(records)
        accounts = {key: larger(before[key], after[key]) for key in before.keys() & after.keys()}
        whose = self._whose(readings.values(), records)
        told, foreign, verdicts = {}, {}, {}
        for uuid, reading in readings.items():
            here = [
                (record, place)
                for record in records
                for place, share in enumerate(record.gpus)
                if share.uuid == uuid and (record.directory, place) in accounts
            ]
            told[uuid] = None not in reading.holders.values()
            if not told[uuid]:
                self._say_untold(uuid)
                continue
            foreign[uuid] = self._foreign(uuid, reading, whose)
            verdicts.update(_verdicts(here, reading, accounts, whose, foreign[uuid]))
        busy = {u: r.utilisation for u, r in readings.items() if r.utilisation is not None}
        shares = self.last.shares if asked is None else by_container(readings, whose, records)
        self.last = Look(told, foreign, self._counts(accounts), busy, shares)
        return verdicts

    def _opened(self) -> Gauge:
        folder = self._state.driver_dir or self._state.config.library_dir
        folder = folder or driver.find_driver_dir()
        if self._gauge is None or self._gauge.folder != folder:
            if self._gauge is not None:
                self._gauge.close()
            self._gauge = Gauge(folder)
        return self._gauge

    def _whose(
        self, readings: Iterable[Reading], records: Sequence[Record]
    ) -> dict[int, tuple[Process, Record | None]]:
        """The processes that hold memory."""
        there = {pid for reading in readings for pid in reading.holders}
        self._strangers &= there
        return self._owners.of(there, records)

    def _foreign(
        self, uuid: str, reading: Reading, whose: dict[int, tuple[Process, Record | None]]
    ) -> int:
        """What processes of no container hold; told once for each."""
        total = 0
        for pid, used in reading.holders.items():
            process, record = whose.get(pid, (None, None))
            if record is None:
                total += used or 0
                self._say_foreign(uuid, pid, process, used or 0)
        return total

    def _say_foreign(self, uuid: str, pid: int, process: Process | None, used: int) -> None:
        # a user's server knows the user's sessions only: the rest may be containers of others
        if pid not in self._strangers and os.geteuid() == 0:
            program = _program(pid) if process else "-"
            log.info("memory_foreign", gpu=uuid, pid=pid, program=program, bytes=used)
        self._strangers.add(pid)

    def _say_untold(self, uuid: str) -> None:
        if self.last.told.get(uuid, True):
            log.warning("audit_blind", gpu=uuid, do="nothing: caps hold for all that use cgpu")

    def _counts(self, there: Iterable[Place]) -> dict[Place, int]:
        return {key: self.last.bypasses.get(key, 0) for key in there}

    def _tell_change(self, record: Record, page: cgpu_native.LimitsGpu, verdict: Verdict) -> None:
        now, before = verdict.outside_bytes, page.outside_bytes
        if now and abs(now - before) < _WORTH_SAYING:
            return
        if now != before:
            log.info("memory_outside", container=record.id, gpu=page.uuid, bytes=now)

    def _excuse(
        self, record: Record, place: int, page: cgpu_native.LimitsGpu, verdict: Verdict
    ) -> Verdict:
        """Accuse nobody who uses an interface that cgpu does not charge, and say so once."""
        through = {
            pid: interface
            for finding in verdict.findings
            if finding.kind == "bypass"
            for pid in finding.pids
            if (interface := used_by(pid)) is not None
        }
        milder = excused(verdict, through)
        key = record.directory, place
        for before, finding in zip(verdict.findings, milder.findings, strict=True):
            if finding.kind != before.kind and (key, finding.pids) not in self._said:
                self._said[key, finding.pids] = finding.excess_bytes
                log.info(
                    "memory_unmetered",
                    container=record.id,
                    gpu=page.uuid,
                    pid=",".join(map(str, finding.pids)),
                    program=",".join(map(_program, finding.pids)),
                    interface=through[finding.pids[0]],
                    bytes=finding.excess_bytes,
                )
        return milder

    def _act(
        self, record: Record, place: int, page: cgpu_native.LimitsGpu, verdict: Verdict
    ) -> None:
        key = record.directory, place
        there = {finding.pids for finding in verdict.findings}
        self._said = {k: n for k, n in self._said.items() if k[0] != key or k[1] in there}
        for finding in verdict.findings:
            if finding.kind == "bypass":
                self._say(record, key, page.uuid, finding)
                if self._state.config.action == "kill":
                    for pid in finding.pids:
                        self._kill(pid, record)

    def _say(self, record: Record, key: Place, uuid: str, finding: Finding) -> None:
        last = self._said.get((key, finding.pids))
        if last is not None and finding.excess_bytes < 2 * last:
            return
        if last is None:
            counts = self.last.bypasses
            self.last = self.last._replace(bypasses={**counts, key: counts.get(key, 0) + 1})
        self._said[key, finding.pids] = finding.excess_bytes
        log.warning(
            "memory_bypass",
            container=record.id,
            gpu=uuid,
            pid=",".join(map(str, finding.pids)) or "-",
            program=",".join(map(_program, finding.pids)) or "-",
            bytes=finding.excess_bytes,
            do=_ADVICE if finding.pids else _ADVICE_LEDGER,
        )

    def _kill(self, pid: int, record: Record) -> None:
        """End a process, if it is still the one that was found, and still the container's."""
        known = self._owners.known(pid)
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                now = read_process(pid)
                same = known is not None and now is not None and now[:2] == known[:2]
                if now is not None and same and Belonging([record]).of(now) is record:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    log.warning("bypass_ended", container=record.id, pid=pid, do=_ADVICE)
            except PermissionError as error:
                log.error("bypass_goes_on", container=record.id, pid=pid, error=error, do=_ADVICE)
            finally:
                os.close(descriptor)


def _verdicts(
    here: Sequence[tuple[Record, int]],
    reading: Reading,
    accounts: dict[Place, Account],
    whose: dict[int, tuple[Process, Record | None]],
    foreign_bytes: int,
) -> dict[Place, Verdict]:
    """Judge the containers of one GPU."""
    held: dict[Place, list[Held]] = {}
    for record, place in here:
        held[record.directory, place] = [
            Held(pid, whose[pid][0].own_pid, used or 0, whose[pid][0].ends)
            for pid, used in reading.holders.items()
            if pid in whose and whose[pid][1] is record
        ]
    known = sum(explained(theirs, accounts[key]) for key, theirs in held.items())
    unexplained = max(0, reading.used_bytes - foreign_bytes - known)
    contexts = {
        (record.directory, place): page.context_bytes
        for record in {record for record, _ in here}
        for place, page in enumerate(pages_of(record)[0])
    }
    return {
        key: judge(theirs, accounts[key], contexts[key], unexplained)
        for key, theirs in held.items()
        if key in contexts
    }


def _accounts(records: Iterable[Record]) -> dict[Place, Account]:
    """What ledgers say; nothing at all, where a container has ruined its own."""
    found: dict[Place, Account] = {}
    for record in records:
        places = range(len(record.gpus))
        try:
            with cgpu_native.Ledger.observe(f"{record.directory}/ledger") as ledger:
                look = ledger.look()
                everyone = dict.fromkeys((each.pid for each in look.processes()), 0)
                for place, share in enumerate(record.gpus):
                    slots = {**everyone}
                    for each in look.processes(place):
                        slots[each.pid] += each.used_bytes
                    account = Account(ledger.total(place), slots)
                    # no proxy charges more than was promised, whatever the ledger says
                    found[record.directory, place] = at_most(account, share.memory_bytes)
        except (OSError, cgpu_native.NativeError):
            if os.path.exists(f"{record.directory}/limits"):  # else it ends just now
                found.update({(record.directory, place): Account(0, {}) for place in places})
    return found


def _charge(record: Record, place: int, page: cgpu_native.LimitsGpu, outside_bytes: int) -> bool:
    """Let it count as used; False where the page is not to be written."""
    if page.outside_bytes != outside_bytes:
        path = f"{record.directory}/limits"
        try:
            cgpu_native.set_bytes(path, place, "outside_bytes", outside_bytes)
        except OSError:  # it ends just now, or keeps its page from us
            return False
    return True


def _program(pid: int) -> str:
    try:
        return os.readlink(f"{folder_of(pid)}/exe")
    except OSError:
        return "-"
