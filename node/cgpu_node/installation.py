"""The installations of cgpu: environments in one directory, and a link to the one in use.

``/opt/cgpu`` leads to ``/opt/cgpu-0.2.0``, and ``/opt/cgpu.back`` to the previous environment. A
program that was started from an environment remains in it, because no other environment ever gets
its path. An environment that no upgrade has touched is at ``/opt/cgpu`` itself.
"""

from __future__ import annotations

import glob
import os
import re

from cgpu_env import version
from cgpu_env.record import NamedTuple

_BACK = ".back"
UNKNOWN = "unknown"


class Installation(NamedTuple):
    """One installation of cgpu. Users know it by its ``prefix``."""

    prefix: str

    @property
    def current_environment(self) -> str:
        """Return the environment in use."""
        return os.path.realpath(self.prefix)

    @property
    def back_link(self) -> str:
        """Return the link to the environment that was in use before."""
        return f"{self.prefix}{_BACK}"

    @property
    def previous_environment(self) -> str | None:
        """Return the environment that was in use before; None if there is none."""
        path = os.path.realpath(self.back_link)
        return path if os.path.islink(self.back_link) and os.path.isdir(path) else None


def find_installation(environment: str) -> Installation:
    """Return the installation of an environment, or of the prefix itself."""
    path = os.path.abspath(environment)
    if os.path.islink(path):
        return Installation(path.removesuffix(_BACK))
    folder, name = os.path.split(path)
    for link in sorted(glob.glob(f"{glob.escape(folder)}/*")):
        if os.path.islink(link) and os.readlink(link) == name:
            return Installation(link.removesuffix(_BACK))
    return Installation(path)


def own_environment() -> str | None:
    """Return the virtual environment that this code is in; None if it is in none."""
    packages = os.path.dirname(os.path.dirname(os.path.abspath(version.__file__)))
    path = os.path.normpath(f"{packages}/../../..")
    return path if os.path.isfile(f"{path}/pyvenv.cfg") else None


def find_shared_folder() -> str | None:
    """Return the folder of documents and other shared files; None in a source tree."""
    own = own_environment()
    folders = (f"{own}/share", "/usr/share") if own else ()  # a package's is /usr/lib/cgpu
    return next((each for each in folders if os.path.isdir(f"{each}/doc/cgpu")), None)


def find_clone() -> str | None:
    """Return the clone of the repository that has this code; None if the code is installed."""
    path = os.path.dirname(os.path.dirname(os.path.abspath(version.__file__)))
    return path if os.path.isfile(f"{path}/docs/operating.md") else None


def release_of(environment: str) -> str:
    """Return the release of an environment; nothing in it is run."""
    pattern = f"{glob.escape(environment)}/lib/python3*/site-packages/cgpu_env/version.py"
    # Beside the folder of a newer Python there may be a link with the name of an older one.
    found = [path for path in glob.glob(pattern) if os.path.realpath(path) == os.path.abspath(path)]
    return read_release(found[0]) if found else UNKNOWN


def installed_release() -> str:
    """Return the release that would be started now."""
    own = own_environment()
    if own is None:
        return read_release(version.__file__)
    return release_of(find_installation(own).current_environment)


def read_release(path: str) -> str:
    """Return the release that a ``version.py`` names."""
    try:
        with open(path, encoding="ascii") as file:
            found = re.search(r'^VERSION = "(.+)"$', file.read(), re.MULTILINE)
    except OSError:
        return UNKNOWN
    return found.group(1) if found else UNKNOWN
