"""The release of this code."""

from __future__ import annotations

VERSION = "0.2.0.dev0"
