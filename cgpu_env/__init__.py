"""A container's environment variables: their names, their units and their meaning.

It uses little of the standard library and nothing else, because every start of a container imports
it.
"""

from cgpu_env.devices import Gpu
from cgpu_env.errors import CgpuError, EnvError
from cgpu_env.request import GpuShare, Request, parse_environment, parse_request

__all__ = [
    "CgpuError",
    "EnvError",
    "Gpu",
    "GpuShare",
    "Request",
    "parse_environment",
    "parse_request",
]
