"""Typed tuples without the cost of ``typing``, for all code that runs when a container starts.

The first import of ``typing`` takes about 8 ms, of ``collections`` 2 ms, and each ``namedtuple`` a
tenth more. Type checkers see the standard ``typing.NamedTuple``. At run time, the few lines here
make a tuple with the same names from the same class statement.
"""

from __future__ import annotations

from _operator import itemgetter  # operator itself imports nothing of use

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple  # noqa: PLC0414 (an explicit re-export)
else:

    def _new(cls, *given, **named):  # noqa: ANN001, ANN002, ANN003, ANN202
        fields = cls._fields
        if named or len(given) != len(fields):
            values = {**cls._field_defaults, **dict(zip(fields, given, strict=False)), **named}
            twice = named.keys() & set(fields[: len(given)])
            if twice or len(given) > len(fields) or values.keys() != set(fields):
                raise TypeError(f"{cls.__name__} takes {', '.join(fields)}")
            given = [values[field] for field in fields]
        return tuple.__new__(cls, given)

    def _asdict(self):  # noqa: ANN001, ANN202
        """Return the fields by name."""
        return dict(zip(self._fields, self, strict=True))

    def _replace(self, **changes):  # noqa: ANN001, ANN003, ANN202
        """Return a copy with some fields changed."""
        return type(self)(**{**_asdict(self), **changes})

    def _repr(self):  # noqa: ANN001, ANN202
        inner = ", ".join(f"{name}={value!r}" for name, value in _asdict(self).items())
        return f"{type(self).__name__}({inner})"

    def _getnewargs(self):  # noqa: ANN001, ANN202
        return tuple(self)

    class _Fields(type):
        def __new__(cls, name, bases, space):  # noqa: ANN001, ANN204
            """Make a tuple of the annotated names; values assigned to them are defaults."""
            if not bases:
                return super().__new__(cls, name, bases, space)
            fields = tuple(space.get("__annotations__", ()))
            defaults = {field: space[field] for field in fields if field in space}
            getters = {field: property(itemgetter(i)) for i, field in enumerate(fields)}
            own = {
                "__slots__": (),
                "__match_args__": fields,
                "__new__": _new,
                "__repr__": _repr,
                "__getnewargs__": _getnewargs,
                "_fields": fields,
                "_field_defaults": defaults,
                "_asdict": _asdict,
                "_replace": _replace,
            }
            return type(name, (tuple,), {**own, **space, **getters})

    class NamedTuple(metaclass=_Fields):
        """A ``typing.NamedTuple`` for classes whose annotations are strings."""
