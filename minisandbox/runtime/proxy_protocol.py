"""What a client of the proxy says until it is known where it wants to go: HTTP and SOCKS5 as values, without I/O.

`Handshake` is given bytes as they come, and says what to answer and at last what was asked for. Everything that it is
given was written by a program inside a sandbox: it keeps HEAD_MAX_BYTES at most, and refuses what has not exactly the
right form. HTTP: CONNECT, and requests in absolute form for http URLs (RFC 9112). SOCKS5: CONNECT without
authentication (RFC 1928).
"""

from __future__ import annotations

import enum
import ipaddress
import re
from dataclasses import dataclass

from minisandbox.endpoints import Target, normal_host, parse_target
from minisandbox.errors import UsageError

HEAD_MAX_BYTES = 8192

_SOCKS5 = 5
_NO_AUTHENTICATION = 0
_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4

_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([\x21-\x7e]+) (HTTP/1\.[01])")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_HTTP_URL = re.compile(r"http://([^/?#]+)([/?][^#]*)?", re.IGNORECASE)

_OF_THE_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authorization proxy-authenticate te trailer upgrade".split()
)
"""Fields between client and proxy alone (RFC 9110, 7.6.1)."""

_OF_THE_BODY = frozenset((b"content-length", b"transfer-encoding"))
"""Fields that say where the body ends: they stay, whatever `Connection` says of them."""


class Refusal(enum.Enum):
    """Why a request is not served: a status and a phrase for HTTP, a reply code for SOCKS5 (RFC 1928, 6)."""

    MALFORMED = (400, "Bad Request", 1)
    TOO_LARGE = (431, "Request Header Fields Too Large", 1)
    UNSUPPORTED = (501, "Not Implemented", 7)
    NOT_ALLOWED = (403, "Forbidden", 2)
    UNREACHABLE = (502, "Bad Gateway", 4)
    CONNECTION_REFUSED = (502, "Bad Gateway", 5)
    TIMED_OUT = (504, "Gateway Timeout", 4)


class RefusedError(Exception):
    """The client cannot have what it asked for. The text is for its eyes."""

    def __init__(self, refusal: Refusal, text: str) -> None:
        self.refusal = refusal
        super().__init__(text)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a client asked for."""

    target: Target
    head: bytes = b""
    """What the server is to be sent before anything else."""
    tunnel: bool = True
    """Whether all that follows is between client and server alone; else it is one HTTP request."""


class Handshake:
    """The state of one client. Feed it with `receive` until `wanted` is there; then `rest` belongs to the server."""

    def __init__(self) -> None:
        self._buffer = b""
        self._is_socks = False
        self._greeted = False
        self.wanted: Wanted | None = None

    @property
    def rest(self) -> bytes:
        """What came after the request."""
        return self._buffer

    def receive(self, received: bytes) -> bytes:
        """Take bytes of the client and return those to be sent back. Raises RefusedError; then send `refuse`."""
        self._buffer += received
        if not self._greeted:
            self._is_socks = self._buffer[:1] == bytes([_SOCKS5])
        answer = self._take_socks() if self._is_socks else self._take_http()
        if self.wanted is None and len(self._buffer) >= HEAD_MAX_BYTES:
            raise RefusedError(Refusal.TOO_LARGE, f"the request is longer than {HEAD_MAX_BYTES} bytes")
        return answer

    def accept(self) -> bytes:
        """Return what tells the client that it is connected: nothing where the server's answer will."""
        if self._is_socks:
            return _socks_reply(0)
        return b"HTTP/1.1 200 Connection established\r\n\r\n" if self.wanted is None or self.wanted.tunnel else b""

    def refuse(self, error: RefusedError) -> bytes:
        """Return what tells the client that it is not."""
        status, phrase, code = error.refusal.value
        if self._is_socks:  # one that was not greeted expects a method and not a reply: there is none (RFC 1928, 3)
            return _socks_reply(code) if self._greeted else bytes([_SOCKS5, 0xFF])
        body = f"minisandbox: {error}\n".encode("ascii", "backslashreplace")
        head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
        return head.encode() + b"Connection: close\r\n\r\n" + body

    def _take_http(self) -> bytes:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if end and len(head) + len(end) <= HEAD_MAX_BYTES:
            self.wanted = _parse_http(head)
            self._buffer = rest
        return b""

    def _take_socks(self) -> bytes:
        answer = b""
        if not self._greeted:
            methods = _counted(self._buffer[1:])
            if methods is None:
                return b""
            if _NO_AUTHENTICATION not in methods:
                raise RefusedError(Refusal.UNSUPPORTED, "no authentication is the only method")
            self._buffer = self._buffer[2 + len(methods) :]
            self._greeted = True
            answer = bytes([_SOCKS5, _NO_AUTHENTICATION])
        parsed = _parse_socks(self._buffer)
        if parsed is not None:
            self.wanted, length = parsed
            self._buffer = self._buffer[length:]
        return answer


def _counted(buffer: bytes) -> bytes | None:
    """Return the bytes that follow a byte with their number, or None when not all are there."""
    if not buffer or len(buffer) < 1 + buffer[0]:
        return None
    return buffer[1 : 1 + buffer[0]]


def _parse_socks(buffer: bytes) -> tuple[Wanted, int] | None:
    """Return what a SOCKS5 request wants and its length, or None when not all of it is there (RFC 1928, 4 and 5)."""
    if len(buffer) < 4:
        return None
    version, command, reserved, kind = buffer[:4]
    if version != _SOCKS5 or reserved != 0 or kind not in (_IPV4, _NAME, _IPV6):
        raise RefusedError(Refusal.MALFORMED, "not a SOCKS5 request")
    if command != _CONNECT:
        raise RefusedError(Refusal.UNSUPPORTED, "CONNECT is the only command")
    length = 4 if kind == _IPV4 else 16
    place = _counted(buffer[4:]) if kind == _NAME else buffer[4 : 4 + length]
    if place is None or (kind != _NAME and len(place) < length):
        return None
    end = 4 + (kind == _NAME) + len(place)
    if len(buffer) < end + 2:
        return None
    host = place.decode("latin-1") if kind == _NAME else str(ipaddress.ip_address(place))
    port = int.from_bytes(buffer[end : end + 2], "big")
    try:
        return Wanted(Target(normal_host(host), port)), end + 2
    except UsageError as error:
        raise RefusedError(Refusal.MALFORMED, str(error)) from error


def _socks_reply(code: int) -> bytes:
    """Return a reply; the address in it is of no use to anybody, and says nothing."""
    return bytes([_SOCKS5, code, 0, _IPV4, 0, 0, 0, 0, 0, 0])


def _parse_http(head: bytes) -> Wanted:
    line, *lines = head.split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(line)
    fields = [_FIELD.fullmatch(field) for field in lines]
    if match is None or None in fields:
        raise RefusedError(Refusal.MALFORMED, "not an HTTP request")
    method, wanted, version = match.groups()
    try:
        if method == b"CONNECT":
            return Wanted(parse_target(wanted.decode()))
        target, path = _split_url(wanted.decode())
    except UsageError as error:
        raise RefusedError(Refusal.MALFORMED, str(error)) from error
    kept = _end_to_end([(field[1], field[0]) for field in fields if field is not None])
    host = str(target).removesuffix(":80").encode()
    head = b" ".join([method, path.encode(), version])
    return Wanted(target, b"\r\n".join([head, b"Host: " + host, *kept, b"Connection: close", b"", b""]), tunnel=False)


def _split_url(url: str) -> tuple[Target, str]:
    """Return the target of an http URL, and what its server is asked for. Raises UsageError."""
    match = _HTTP_URL.fullmatch(url)
    if match is None:
        raise UsageError("this is a proxy: ask for http://HOST/..., or use CONNECT HOST:PORT")
    place, path = match[1], match[2] or "/"
    has_port = place.rpartition(":")[2].isdigit()
    return parse_target(place if has_port else place + ":80"), path if path.startswith("/") else "/" + path


def _end_to_end(fields: list[tuple[bytes, bytes]]) -> list[bytes]:
    """Return the lines of the fields that are meant for the server; `Host` is made anew (RFC 9112, 3.2.2)."""
    dropped = {*_OF_THE_HOP, b"host"}
    for name, line in fields:
        if name.lower() == b"connection":
            named = line.partition(b":")[2].lower().split(b",")
            dropped.update(option for word in named if (option := word.strip()) not in _OF_THE_BODY)
    return [line for name, line in fields if name.lower() not in dropped]
