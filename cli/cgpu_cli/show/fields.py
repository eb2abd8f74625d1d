"""``cgpu-smi --query-gpu`` and its like: chosen fields as CSV, as nvidia-smi prints them."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, NamedTuple

from cgpu_env.errors import find_nearest, format_suggestion, printable
from cgpu_env.values import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from cgpu_node.view.processes import Holding
    from cgpu_node.view.view import GpuTotals, GpuUse, Usage, Use

    Value = str | int | float | None

_ABSENT = "[N/A]"
_PERCENT, _SIZE = "%", "MiB"


class FieldSource(NamedTuple):
    """The source of a field's value; None if rows of this kind lack the field."""

    usage: Usage
    gpu: GpuTotals
    use: Use | None = None
    its: GpuUse | None = None
    process: Holding | None = None


class Field(NamedTuple):
    """One column."""

    read: Callable[[FieldSource], Value]
    unit: str = ""


class Form(NamedTuple):
    """The value of ``--format``."""

    has_header: bool = True
    has_units: bool = True


def _container_field(read: Callable[[Use, GpuUse], Value], unit: str = "") -> Field:
    return Field(lambda row: read(row.use, row.its) if row.use and row.its else None, unit)


def _process_field(read: Callable[[Holding], Value], unit: str = "") -> Field:
    return Field(lambda row: read(row.process) if row.process else None, unit)


def _format_now() -> str:
    ms = time.time_ns() // 1_000_000
    day_and_time = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(ms // 1000))
    return f"{day_and_time}.{ms % 1000:03}"


_TIMESTAMP = Field(lambda _: _format_now())
_GPU_NAME = Field(lambda row: row.gpu.name)
_GPU_UUID = Field(lambda row: row.gpu.uuid)
_PROCESS_NAME = _process_field(lambda its: _read_program(its.pid))
_USED_BY_PROCESS = _process_field(lambda its: its.used_bytes // MIB, _SIZE)

GPU: dict[str, Field] = {
    "timestamp": _TIMESTAMP,
    "driver_version": Field(lambda row: row.usage.driver_version),
    "count": Field(lambda row: len(row.usage.gpus)),
    "index": Field(lambda row: row.gpu.index),
    "name": _GPU_NAME,
    "gpu_name": _GPU_NAME,
    "uuid": _GPU_UUID,
    "gpu_uuid": _GPU_UUID,
    "memory.total": Field(lambda row: row.gpu.total_bytes // MIB, _SIZE),
    "memory.used": Field(lambda row: row.gpu.used_bytes // MIB, _SIZE),
    "memory.free": Field(
        lambda row: max(0, row.gpu.total_bytes - row.gpu.used_bytes) // MIB, _SIZE
    ),
    "memory.promised": Field(lambda row: row.gpu.promised_bytes // MIB, _SIZE),
    "memory.foreign": Field(
        lambda row: None if row.gpu.foreign_bytes is None else row.gpu.foreign_bytes // MIB, _SIZE
    ),
    "utilization.gpu": Field(lambda row: _read_utilisation(row.gpu), _PERCENT),
    "containers": Field(lambda row: row.gpu.containers),
    "weight": Field(lambda row: row.gpu.weight),
    "max_inst": Field(lambda row: row.gpu.max_inst),
    "policy": Field(lambda row: row.gpu.policy),
    "prio_ratio": Field(lambda row: row.gpu.prio_ratio, _PERCENT),
}
APPS: dict[str, Field] = {
    "timestamp": _TIMESTAMP,
    "gpu_name": _GPU_NAME,
    "gpu_uuid": _GPU_UUID,
    "pid": _process_field(lambda its: its.pid or None),
    "process_name": _PROCESS_NAME,
    "name": _PROCESS_NAME,
    "used_gpu_memory": _USED_BY_PROCESS,
    "used_memory": _USED_BY_PROCESS,
    "container": _container_field(lambda use, _: use.id),
    "container_pid": _process_field(lambda its: its.container_pid),
}
CONTAINERS: dict[str, Field] = {
    "timestamp": _TIMESTAMP,
    "id": _container_field(lambda use, _: use.id),
    "name": _container_field(lambda use, _: use.name),
    "kind": _container_field(lambda use, _: use.kind),
    "gpu_index": Field(lambda row: row.gpu.index),
    "gpu_name": _GPU_NAME,
    "gpu_uuid": _GPU_UUID,
    "weight": _container_field(lambda use, _: use.weight),
    "high_priority": _container_field(lambda use, _: int(use.high_priority)),
    "memory.cap": _container_field(lambda _, its: its.cap_bytes // MIB, _SIZE),
    "memory.used": _container_field(
        lambda _, its: its.used_bytes // MIB if its.is_readable else None, _SIZE
    ),
    "memory.promised": _container_field(lambda _, its: its.promised_bytes // MIB, _SIZE),
    "memory.refused": _container_field(lambda _, its: its.refused),
    "utilization.gpu": _container_field(
        lambda _, its: its.compute and _round_percent(its.compute.measured_percent), _PERCENT
    ),
    "utilization.estimate": _container_field(
        lambda _, its: its.compute and _round_percent(its.compute.estimated_percent), _PERCENT
    ),
    "utilization.limit": _container_field(
        lambda _, its: its.compute and _round_percent(its.compute.limit_percent), _PERCENT
    ),
    "processes": _container_field(lambda _, its: len(its.processes)),
}


def _list_gpus(usage: Usage) -> Iterator[FieldSource]:
    return (FieldSource(usage, gpu) for gpu in usage.gpus)


def _list_containers(usage: Usage) -> Iterator[FieldSource]:
    return (
        FieldSource(usage, gpu, use, its)
        for gpu in usage.gpus
        for use, its in usage.uses_on_gpu(gpu.uuid)
    )


def _list_apps(usage: Usage) -> Iterator[FieldSource]:
    for row in _list_containers(usage):
        for process in row.its.processes if row.its else ():
            yield row._replace(process=process)


class Query(NamedTuple):
    """An option: its fields, how to list its rows, and what the rows are, in words."""

    known: Mapping[str, Field]
    rows: Callable[[Usage], Iterator[FieldSource]]
    what: str


QUERIES: dict[str, Query] = {
    "gpu": Query(GPU, _list_gpus, "a line for each GPU"),
    "compute-apps": Query(APPS, _list_apps, "a line for each process that holds memory"),
    "containers": Query(CONTAINERS, _list_containers, "a line for each container on each GPU"),
}


class FieldSelection(NamedTuple):
    """A query with the fields that the user chose."""

    query: Query
    names: list[str]

    def format_lines(self, usage: Usage, form: Form) -> Iterator[str]:
        """Yield the header, if it is wanted, and the rows."""
        fields = [self.query.known[name] for name in self.names]
        if form.has_header:
            yield ", ".join(map(_format_head, self.names, fields))
        for row in self.query.rows(usage):
            yield ", ".join(_format_cell(field, row, form) for field in fields)


def make_parser(name: str) -> Callable[[str], FieldSelection]:
    """Return the parser of the value of ``--query-<name>``."""
    query = QUERIES[name]
    allowed = ",".join(query.known)

    def parse_fields(text: str) -> FieldSelection:
        names = [word.strip() for word in text.split(",")]
        for word in names:
            if word not in query.known:
                near = find_nearest(word, query.known)
                meant = f"did you mean {near}?" if near else f"expected some of {allowed}"
                raise argparse.ArgumentTypeError(f"'{printable(word)}' is no field: {meant}")
        return FieldSelection(query, names)

    return parse_fields


def parse_form(text: str) -> Form:
    """Parse the value of ``--format``."""
    words = text.split(",")
    known = ("csv", "noheader", "nounits")
    unknown = [word for word in words if word not in known]
    if "csv" not in words or unknown:
        allowed = "expected csv, with ,noheader and ,nounits if you like"
        allowed += format_suggestion(unknown[0], known) if unknown else ""
        raise argparse.ArgumentTypeError(f"'{printable(text)}': {allowed}")
    return Form("noheader" not in words, "nounits" not in words)


def _format_head(name: str, field: Field) -> str:
    return f"{name} [{field.unit}]" if field.unit else name


def _format_cell(field: Field, row: FieldSource, form: Form) -> str:
    value = field.read(row)
    if value is None or value == "":
        return _ABSENT
    text = printable(str(value), 400)
    if any(mark in text for mark in ',"'):
        text = '"' + text.replace('"', '""') + '"'
    return f"{text} {field.unit}" if field.unit and form.has_units else text


def _read_utilisation(gpu: GpuTotals) -> int | None:
    """Return the driver's own figure, as nvidia-smi does; if there is none, the measured one."""
    known = gpu.utilisation_percent
    percent = gpu.measured_percent if known is None else known
    return None if percent is None else round(percent)


def _round_percent(percent: float | None) -> float | None:
    return None if percent is None else round(percent, 1)


def _read_program(pid: int) -> str | None:
    """Return the first word of a process's command line; None if it cannot be read."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(1 << 12).partition(b"\0")[0].decode(errors="replace")
    except OSError:
        return None
