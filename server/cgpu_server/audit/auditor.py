"""The audit: compares ledgers, which containers can write to, with what the driver reports.

It runs in a thread of its own and holds no lock of the server, because the driver may take long.
What a container holds outside its ledger is written into its limits, where it counts as used.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence

import cgpu_native
from cgpu_env import CgpuError
from cgpu_env.logline import locate_error
from cgpu_env.values import MIB
from cgpu_node.facts import driver
from cgpu_node.facts.node import Node
from cgpu_node.shares.liveness import folder_of
from cgpu_node.shares.record import Record
from cgpu_node.view.usage import usage_of, use_of
from cgpu_node.view.view import Usage, Use
from cgpu_server.audit.accounts import read_accounts
from cgpu_server.audit.driver_probe import DriverProbe, Reading
from cgpu_server.audit.interfaces import find_interface
from cgpu_server.audit.lost_gpus import LostGpus
from cgpu_server.audit.process_owners import HostProcess, OwnerTracker, read_process
from cgpu_server.audit.snapshot import EMPTY, Snapshot, gpus_to_ask, utilisation_by_container
from cgpu_server.audit.utilisation import Utilisation
from cgpu_server.audit.verdict import (
    CALM,
    Discrepancy,
    LedgerAccount,
    ReportedMemory,
    Tenant,
    Verdict,
    excuse_bypasses,
    intersect_verdicts,
    judge_container,
    merge_larger,
    sum_explained,
)
from cgpu_server.journal import log
from cgpu_server.state.limits import charge_outside, limits_of
from cgpu_server.state.server_state import ServerState

_READINGS = 8  # of one comparison, as long as each finds something
_PAUSE_SECONDS = (0.001, 0.02)  # between them; irregular, because programs are regular
_NAP_SECONDS = 1.0
# after the last container, the driver stays in use for so long, for an audit that is due
_LINGER_SECONDS = 10.0
_BACK_OFF_SECONDS = 30.0  # so that a driver that hangs is not asked all the time
_WORTH_LOGGING = 64 * MIB
_ADVICE = "look at the program and its image, or end the container; see Audit in deploy/README.md"
_ADVICE_LEDGER = "its ledger was tampered with: end the container and look at its image"


class Audit:
    """Audits the containers of ``state``.

    Attributes:
        last: the figures that it read last; any thread may read them.
        utilisation: how busy the GPUs are by the driver's own figure.
    """

    def __init__(self, state: ServerState, back_off: float = _BACK_OFF_SECONDS) -> None:
        self.last = EMPTY
        self.utilisation = Utilisation(lambda: self.last)
        self._state, self._back_off = state, back_off
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._ended = threading.Event()
        self._probe: DriverProbe | None = None
        self._lost = LostGpus(state)
        self._failure: str | None = None
        self._not_before, self._looked_at = 0.0, time.monotonic()
        self._before: dict[Tenant, Verdict] = {}
        self._reported: dict[tuple[Tenant, tuple[int, ...]], int] = {}
        self._owners = OwnerTracker()
        self._strangers: set[int] = set()

    def start(self) -> None:
        """Audit from now on."""
        self._thread.start()

    def close(self) -> None:
        """Stop auditing, without waiting for the driver."""
        self._ended.set()
        probe = self._probe
        if probe is not None:
            probe.interrupt()
        self._thread.join(_NAP_SECONDS)

    def describe(
        self, node: Node | None, visible: Collection[str] | None = None, others: Iterable[Use] = ()
    ) -> Usage:
        """Describe the containers of the node, without the host's process ids.

        Args:
            node: the facts about it; None: the driver does not answer.
            visible: the ids of the containers that are shown one by one; None: all.
            others: containers without a record.
        """
        uses = [*self.utilisation.add_estimates(map(use_of, self._state.records)), *others]
        whole = usage_of(node, uses, self._state.rules_of, visible, self.last.utilisation)
        return whole.with_foreign(self.last.foreign_bytes)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._ended.is_set():
            config, now = self._state.config, time.monotonic()
            watched = self._state.records or self._state.exclusive or self._lost.seen
            # A container that has ended since the last audit may have been the first to find a GPU
            # lost.
            unseen = self._state.inhabited_at > self._looked_at
            if config.action == "off" or not (watched or unseen):
                self._release_driver(lift=config.action == "off")
                due = now + config.interval_seconds
            elif now >= due and now >= self._not_before:
                self._looked_at = now
                self._try_audit()
                due = now + config.interval_seconds
            elif not watched and due - now > _LINGER_SECONDS:
                self._release_driver(lift=False)
            left = max(due, self._not_before) - time.monotonic()
            self._ended.wait(min(max(left, 0.0), _NAP_SECONDS))
        self._release_driver(lift=False)

    def _release_driver(self, *, lift: bool) -> None:
        """Release the driver and, if ``lift``, take back what the audit charged to containers."""
        if self._probe is not None:
            self._probe.close()
        self._before, self._reported, self._owners = {}, {}, OwnerTracker()
        self.last, self._lost = EMPTY, LostGpus(self._state)
        for key, _, gpu in _list_limits(self._state.records if lift else ()):
            charge_outside(key, gpu, 0)

    def _try_audit(self) -> None:
        try:
            self._audit_once()
            self._lost.follow(self._open_probe().lost)
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
            self._drop_stale()
        except Exception as error:  # noqa: BLE001 (the next one may succeed)
            self._not_before = time.monotonic() + self._back_off
            log.error(
                "audit_fails", error=f"{error!r} at {locate_error(error)}", do="report this line"
            )
            self._drop_stale()

    def _drop_stale(self) -> None:
        """Remove from the last snapshot what is no longer known."""
        readable = dict.fromkeys(self.last.readable, False)
        self.last = self.last._replace(readable=readable, utilisation={}, shares={}, used_bytes={})

    def _audit_once(self) -> None:
        """Compare several times; act on what all these comparisons and the last audit agree on.

        A charge is lowered only to the most that any of these comparisons found. A single one may
        have missed memory, because the program allocated at that moment.
        """
        records = self._state.records
        charged = {key: gpu.outside_bytes for key, _, gpu in _list_limits(records)}
        found = self._compare_once(records, gpus_to_ask(self.last, records))
        most = {key: verdict.outside_bytes for key, verdict in found.items()}
        for _ in range(_READINGS - 1):
            if all(found[key] == CALM and not charged.get(key) for key in found):
                break
            time.sleep(random.uniform(*_PAUSE_SECONDS))  # noqa: S311 (nothing is gained by guessing it)
            again = self._compare_once(records)
            found = {
                key: intersect_verdicts(found[key], again[key])
                for key in found.keys() & again.keys()
            }
            most = {key: max(most[key], again[key].outside_bytes) for key in found}
        for key, record, gpu in _list_limits(records):
            if key in found:
                # the server before us may have charged memory that is still held
                before = self._before.get(key, Verdict(gpu.outside_bytes))
                verdict = intersect_verdicts(before, found[key])
                outside = max(verdict.outside_bytes, min(gpu.outside_bytes, most[key]))
                if charge_outside(key, gpu, outside):
                    _log_change(record, gpu, outside)
                self._act_on_findings(record, key, gpu, verdict)
        living = {record.directory for record in records}
        known = {**self._before, **found}
        self._before = {key: each for key, each in known.items() if key[0] in living}

    def _compare_once(
        self, records: Sequence[Record], asked: Collection[str] | None = None
    ) -> dict[Tenant, Verdict]:
        """Compare all containers once.

        Containers on a GPU that reports no figures of processes are left out. ``asked``: the GPUs
        whose processes' utilisation is read as well; None: keep the last one.

        Raises:
            CgpuError: the driver does not answer.
        """
        probe = self._open_probe()
        before = read_accounts(records)
        readings = probe.read(asked or ())
        after = read_accounts(records)
        accounts = {
            key: merge_larger(before[key], after[key]) for key in before.keys() & after.keys()
        }
        holders = {pid for reading in readings.values() for pid in reading.holders}
        self._strangers &= holders
        owners = self._owners.find_owners(holders, records)
        readable, foreign, verdicts = {}, {}, {}
        for uuid, reading in readings.items():
            here = [
                (record, number)
                for record in records
                for number, gpu in enumerate(record.gpus)
                if gpu.uuid == uuid and (record.directory, number) in accounts
            ]
            readable[uuid] = None not in reading.holders.values()
            if not readable[uuid] and self.last.readable.get(uuid, True):
                log.warning("audit_blind", gpu=uuid, do="nothing: caps hold for all that use cgpu")
            if readable[uuid] and uuid not in self._state.exclusive:
                foreign[uuid] = self._sum_foreign(uuid, reading, owners)
                verdicts.update(_judge_gpu(here, reading, accounts, owners, foreign[uuid]))
        busy = {u: r.utilisation for u, r in readings.items() if r.utilisation is not None}
        shares = (
            self.last.shares
            if asked is None
            else utilisation_by_container(readings, owners, records)
        )
        used = {uuid: reading.used_bytes for uuid, reading in readings.items()}
        bypasses = {key: self.last.bypasses.get(key, 0) for key in accounts}
        self.last = Snapshot(readable, foreign, bypasses, busy, shares, used)
        return verdicts

    def _open_probe(self) -> DriverProbe:
        folder = self._state.driver_dir or self._state.config.library_dir
        folder = folder or driver.find_driver_dir()
        if self._probe is None or self._probe.folder != folder:
            if self._probe is not None:
                self._probe.close()
            self._probe = DriverProbe(folder)
        return self._probe

    def _sum_foreign(
        self, uuid: str, reading: Reading, owners: dict[int, tuple[HostProcess, Record | None]]
    ) -> int:
        """Return the memory that processes outside containers hold; log each of them once."""
        total = 0
        for pid, used in reading.holders.items():
            process, record = owners.get(pid, (None, None))
            if record is None:
                total += used or 0
                self._log_foreign(uuid, pid, process, used or 0)
        return total

    def _log_foreign(self, uuid: str, pid: int, process: HostProcess | None, used: int) -> None:
        # a user's server knows only that user's sessions; other processes may be in containers
        if pid not in self._strangers and os.geteuid() == 0:
            program = _read_program(pid) if process else "-"
            log.info("memory_foreign", gpu=uuid, pid=pid, program=program, bytes=used)
        self._strangers.add(pid)

    def _excuse_findings(
        self, record: Record, key: Tenant, gpu: cgpu_native.LimitsGpu, verdict: Verdict
    ) -> Verdict:
        """Excuse processes that use an interface that cgpu does not charge; log each once."""
        through = {
            pid: interface
            for finding in verdict.findings
            if finding.kind == "bypass"
            for pid in finding.pids
            if (interface := find_interface(pid)) is not None
        }
        milder = excuse_bypasses(verdict, through)
        for before, finding in zip(verdict.findings, milder.findings, strict=True):
            if finding.kind != before.kind and (key, finding.pids) not in self._reported:
                self._reported[key, finding.pids] = finding.excess_bytes
                log.info(
                    "memory_unmetered",
                    container=record.id,
                    gpu=gpu.uuid,
                    pid=",".join(map(str, finding.pids)),
                    program=",".join(map(_read_program, finding.pids)),
                    interface=through[finding.pids[0]],
                    bytes=finding.excess_bytes,
                )
        return milder

    def _act_on_findings(
        self, record: Record, key: Tenant, gpu: cgpu_native.LimitsGpu, verdict: Verdict
    ) -> None:
        verdict = self._excuse_findings(record, key, gpu, verdict)
        found = {finding.pids for finding in verdict.findings}
        self._reported = {k: n for k, n in self._reported.items() if k[0] != key or k[1] in found}
        for finding in verdict.findings:
            if finding.kind == "bypass":
                self._report_bypass(record, key, gpu.uuid, finding)
                if self._state.config.action == "kill":
                    for pid in finding.pids:
                        self._kill_process(pid, record)

    def _report_bypass(self, record: Record, key: Tenant, uuid: str, finding: Discrepancy) -> None:
        last = self._reported.get((key, finding.pids))
        if last is not None and finding.excess_bytes < 2 * last:
            return
        if last is None:
            counts = self.last.bypasses
            self.last = self.last._replace(bypasses={**counts, key: counts.get(key, 0) + 1})
        self._reported[key, finding.pids] = finding.excess_bytes
        log.warning(
            "memory_bypass",
            container=record.id,
            gpu=uuid,
            pid=",".join(map(str, finding.pids)) or "-",
            program=",".join(map(_read_program, finding.pids)) or "-",
            bytes=finding.excess_bytes,
            do=_ADVICE if finding.pids else _ADVICE_LEDGER,
        )

    def _kill_process(self, pid: int, record: Record) -> None:
        """Kill a process if the pid is still that process's, and it is still in the container."""
        known = self._owners.find_known(pid)
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                now = read_process(pid)
                same = known is not None and now is not None and now[:2] == known[:2]
                if now is not None and same and self._owners.is_still(now, record):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    log.warning("bypass_ended", container=record.id, pid=pid, do=_ADVICE)
            except PermissionError as error:
                log.error("bypass_goes_on", container=record.id, pid=pid, error=error, do=_ADVICE)
            finally:
                os.close(descriptor)


def _judge_gpu(
    here: Sequence[tuple[Record, int]],
    reading: Reading,
    accounts: dict[Tenant, LedgerAccount],
    owners: dict[int, tuple[HostProcess, Record | None]],
    foreign_bytes: int,
) -> dict[Tenant, Verdict]:
    """Return a verdict on each container of one GPU."""
    held: dict[Tenant, list[ReportedMemory]] = {}
    for record, number in here:
        held[record.directory, number] = [
            ReportedMemory(pid, owners[pid][0].own_pid, used or 0, owners[pid][0].ends)
            for pid, used in reading.holders.items()
            if pid in owners and owners[pid][1] is record
        ]
    known = sum(sum_explained(theirs, accounts[key]) for key, theirs in held.items())
    unexplained = max(0, reading.used_bytes - foreign_bytes - known)
    having = _list_limits({record for record, _ in here})
    contexts = {key: gpu.context_bytes for key, _, gpu in having}
    return {
        key: judge_container(theirs, accounts[key], contexts[key], unexplained)
        for key, theirs in held.items()
        if key in contexts
    }


def _list_limits(
    records: Iterable[Record],
) -> Iterator[tuple[Tenant, Record, cgpu_native.LimitsGpu]]:
    """Yield each container once for each of its GPUs, with its limits there."""
    for record in records:
        for number, gpu in enumerate(limits_of(record)):
            yield (record.directory, number), record, gpu


def _log_change(record: Record, gpu: cgpu_native.LimitsGpu, now: int) -> None:
    is_slight = abs(now - gpu.outside_bytes) < _WORTH_LOGGING
    if now != gpu.outside_bytes and not (now and is_slight):
        log.info("memory_outside", container=record.id, gpu=gpu.uuid, bytes=now)


def _read_program(pid: int) -> str:
    try:
        return os.readlink(f"{folder_of(pid)}/exe")
    except OSError:
        return "-"
