"""The release that this is."""

from __future__ import annotations

VERSION = "0.2.0.dev0"
