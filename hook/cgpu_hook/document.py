"""A container's ``config.json``, read without trusting it, and written in one step.

After us, the low-level runtime reads the file again. If it could read something else than we do
(duplicate names, or names in another case, which Go accepts), the file is refused.
"""

from __future__ import annotations

import os
import stat

from cgpu_env.errors import LONGEST_PATH, CgpuError, printable
from cgpu_node import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_BYTES = 16 << 20
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
# The sections that are read or written here, each with its fields and their types. "" is the
# document itself.
_FIELDS: dict[str, dict[str, type]] = {
    "": {
        "process": dict,
        "root": dict,
        "mounts": list,
        "linux": dict,
        "hooks": dict,
        "annotations": dict,
    },
    "process": {"env": list, "args": list},
    "root": {"path": str},
    "linux": {"devices": list, "resources": dict, "maskedPaths": list},
    "linux.resources": {"devices": list},
    "hooks": {"prestart": list, "poststop": list},
}
_MOUNT: dict[str, type] = {"destination": str, "type": str, "source": str, "options": list}
_DEVICE: dict[str, type] = {"path": str, "type": str, "major": int, "minor": int}

_IN_WORDS: dict[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "a whole number",
}


def read(path: str) -> dict[str, Any]:
    """Return the configuration at ``path``, following links as the runtime does; never wait.

    Raises:
        CgpuError: one sentence that says what is wrong with the file.
    """
    return parse(_read_bytes(path), path)


def parse(data: bytes, name: str) -> dict[str, Any]:
    """Return the configuration in ``data``. Messages call it ``name``.

    Raises:
        CgpuError: ``data`` is no configuration.
    """
    try:
        text = data.decode()
        config = jsontext.loads(text)
    except UnicodeDecodeError:
        raise CgpuError(f"{printable(name, LONGEST_PATH)}: not UTF-8") from None
    except ValueError as error:
        raise CgpuError(
            f"{printable(name, LONGEST_PATH)}: not valid JSON:"
            f" {printable(str(error), LONGEST_PATH)}"
        ) from None
    found = check_config(config, name)
    if "\\u0000" in text or "\\ud" in text or "\\uD" in text:  # rare
        _check_strings(found, name)
    return found


def _check_strings(config: dict[str, Any], name: str) -> None:
    """Refuse strings that cannot be paths or variables, because programs read them differently.

    Annotations are not checked: no program reads one as a path or a variable.
    """
    todo: list[Any] = [value for key, value in config.items() if key != "annotations"]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo += [*value, *value.values()]
        elif isinstance(value, list):
            todo += value
        elif isinstance(value, str) and ("\0" in value or not is_utf8(value)):
            raise CgpuError(
                f"{printable(name, LONGEST_PATH)}: {printable(value)}: expected no NUL and no half"
                " of a surrogate pair in a string"
            )


def is_utf8(text: str) -> bool:
    """Return whether ``text`` can be written as UTF-8; some names of files cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_config(config: object, name: str) -> dict[str, Any]:
    """Return ``config`` if each value in it that cgpu reads has the right type.

    Raises:
        CgpuError: a value has another type.
    """
    if not isinstance(config, dict):
        raise CgpuError(f"{printable(name, LONGEST_PATH)}: expected a JSON object")
    for section, fields in _FIELDS.items():
        part: Any = config
        for key in filter(None, section.split(".")):
            part = part.get(key) if isinstance(part, dict) else None
        _check_section(part, section, fields, name)
    for mount in config.get("mounts") or []:
        if not isinstance(mount, dict) or not isinstance(mount.get("destination"), str):
            raise CgpuError(
                f"{printable(name, LONGEST_PATH)}: mounts: expected objects with a destination"
            )
        _check_section(mount, "mounts", _MOUNT, name)
    for device in (config.get("linux") or {}).get("devices") or []:
        _check_section(device, "linux.devices", _DEVICE, name)
    return config


def _check_section(part: object, section: str, fields: dict[str, type], name: str) -> None:
    if not isinstance(part, dict):
        return  # absent, null, or reported with its parent
    folded = {field.casefold(): field for field in fields}
    for key, value in part.items():
        field = folded.get(key.casefold())  # Go takes a long s and the sign of Kelvin for s and k
        if field is None:
            continue
        where = f"{section}.{field}".lstrip(".")
        if key != field:
            raise CgpuError(
                f"{printable(name, LONGEST_PATH)}: {printable(key)}: expected it to be written"
                f" {where}"
            )
        if value is not None and not isinstance(value, fields[field]):
            allowed = _IN_WORDS[fields[field]]
            raise CgpuError(
                f"{printable(name, LONGEST_PATH)}: {where} has the wrong type: expected {allowed}"
            )


def pack_config(config: dict[str, Any], name: str) -> bytes:
    """Return the bytes of ``config``. Messages call it ``name``.

    Raises:
        CgpuError: it is nested too deeply.
    """
    try:
        return jsontext.dumps(config).encode()
    except ValueError as error:
        raise CgpuError(f"{printable(name, LONGEST_PATH)}: cannot be written: {error}") from None


def write(path: str, config: dict[str, Any]) -> None:
    """Replace the file at ``path`` in one step, keeping its mode and owner.

    A link is replaced itself; the file that it leads to may be a template of many bundles, and does
    not change.

    Raises:
        CgpuError: it cannot be written; it is unchanged then.
    """
    folder, base = os.path.split(path)
    temporary = os.path.join(folder, f".{base}.cgpu.{os.getpid()}")
    data = pack_config(config, path)
    try:
        before = os.stat(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o600)
        try:
            with open(fd, "wb") as file:
                file.write(data)
                os.fchown(fd, before.st_uid, before.st_gid)
                os.fchmod(fd, stat.S_IMODE(before.st_mode))
            os.rename(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise CgpuError(
            f"{printable(path, LONGEST_PATH)}: cannot be written: {error.strerror}"
        ) from None


def _read_bytes(path: str) -> bytes:
    try:
        fd = os.open(path, _READ)
    except OSError as error:
        raise CgpuError(f"{printable(path, LONGEST_PATH)}: {error.strerror}") from None
    except ValueError:  # it has a NUL, or half of a surrogate pair
        raise CgpuError(f"{printable(path, LONGEST_PATH)}: no file can have this name") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise CgpuError(f"{printable(path, LONGEST_PATH)}: not a regular file")
    with open(fd, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise CgpuError(f"{printable(path, LONGEST_PATH)}: larger than {MAX_BYTES >> 20} MiB")
    return data
