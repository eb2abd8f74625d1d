"""Runs a file of Python modules as a Mac would: without what only Linux has.

Start it with ``-I -S``, so that there is nothing but the standard library.
"""

from __future__ import annotations

import fcntl
import os
import re
import runpy
import signal
import socket
import sys
import time
import types

LINUX = {
    fcntl: r"F_(OFD|ADD_SEALS|GET_SEALS|NOTIFY|SETPIPE|GETPIPE|SETLEASE).*",
    os: r"memfd_.*|MFD_.*|sched_(get|set)affinity|pidfd_.*|P_PIDFD|eventfd.*|EFD_.*|splice"
    r"|SPLICE_.*|copy_file_range|posix_fa.*|pipe2|[gs]etresuid|O_(PATH|TMPFILE|DIRECT|NOATIME)|.*xattr"
    r"|getrandom|GRND_.*|unshare|setns|CLONE_.*",
    signal: r"sigtimedwait|sigwaitinfo|SIG(RTMIN|RTMAX|PWR|STKFLT|POLL)",
    socket: r"TCP_(KEEPIDLE|QUICKACK|USER_TIMEOUT)|SO_(PEER|PASS).*|SOCK_(CLOEXEC|NONBLOCK)"
    r"|SO_(DOMAIN|PROTOCOL|BINDTODEVICE|MARK)|AF_(NETLINK|PACKET|VSOCK|ALG)",
    time: r"CLOCK_(BOOTTIME|TAI)|pthread_getcpuclockid",
}
PROXIES = types.SimpleNamespace(
    _get_proxies=dict, _get_proxy_settings=lambda: {"exclude_simple": False}
)


def hide(event: str, arguments: tuple[object, ...]) -> None:
    """There is no /proc."""
    if event in {"open", "os.listdir", "os.scandir"} and str(arguments[0]).startswith("/proc"):
        raise FileNotFoundError(2, "macOS has none", arguments[0])


for module, names in LINUX.items():
    for name in filter(re.compile(names).fullmatch, dir(module)):
        delattr(module, name)
sys.modules["_scproxy"] = PROXIES  # type: ignore[assignment]  # the proxies of a Mac
sys.platform = "darwin"
sys.addaudithook(hide)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
