"""Typed tuples without the cost of ``typing``: this package is imported when a container starts.

``typing`` takes about 8 ms to import cold. The same few lines stand in ``cgpu_env.record``, because
this package stands by itself. Type checkers see ``typing.NamedTuple``; at run time the class
statement is turned into a ``namedtuple``.
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple  # noqa: PLC0414 (an explicit re-export)
else:

    class _Fields(type):
        def __new__(cls, name, bases, space):  # noqa: ANN001, ANN204
            """Make a namedtuple of the annotated names; values given to them are defaults."""
            if not bases:
                return super().__new__(cls, name, bases, space)
            fields = list(space.pop("__annotations__"))
            defaults = [space.pop(field) for field in fields if field in space]
            base = namedtuple(name, fields, defaults=defaults)  # noqa: PYI024
            space.pop("__classcell__", None)
            return type(name, (base,), {"__slots__": (), **space})

    class NamedTuple(metaclass=_Fields):
        """What ``typing.NamedTuple`` is, for classes whose annotations are strings."""
