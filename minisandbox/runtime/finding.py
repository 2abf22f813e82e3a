"""One value, `Finding`: what was found out about one feature of this host."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one look or one trial showed."""

    name: str
    ok: bool | None
    """True: it is there. False: it is missing, and the default policy cannot do without. None: missing but not needed,
    or not tried."""
    detail: str
    """What was seen."""
    advice: str = ""
    """How to get what is missing."""
