"""Endpoints that a sandbox may reach: what an allow list means, and whether a target and its address are on it.

Pure: it looks no name up. Hosts are compared in one spelling: names in lower case, as A-labels, without a final dot;
addresses as `ipaddress` prints them. What is asked for comes from inside a sandbox, so it is refused unless it has a
form that can be told apart from every other.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import idna

from minisandbox.errors import UsageError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

ENDPOINTS_MAX = 256
"""Entries of one allow list."""

LOCALHOST = "localhost"
PRIVATE = "private"

_PLACE = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([^\s:/@\[\]%]{1,1024})):([1-9][0-9]{0,4})", re.ASCII)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_NAME_MAX = 253  # RFC 1035, without the final dot

_PRIVATE = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"))
)
"""What belongs to a site (RFC 1918, 6598, 4193)."""

_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        ("169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"),
    )
)
"""Where clouds give out credentials (AWS, Google, Azure, Alibaba, Oracle); some lie in ranges that look like others."""

_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
"""An IPv4 address in an IPv6 one, for hosts that have IPv6 alone (NAT64, RFC 6052)."""


class Target(NamedTuple):
    """A host in its one spelling, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One entry of an allow list."""

    target: Target
    subdomains: bool = False
    """`*.example.org`: every name below that one, however deep, and not that one itself."""
    private: bool = False
    """Whether the name may lead to an address of the site's own (`_PRIVATE`)."""

    def permits(self, address: Address) -> bool:
        """Return whether a connection to this address is one to this endpoint.

        An entry that is an address permits that one, whatever it is; `localhost` permits loopback. Any other name must
        lead to a public address, or with `private` to one of the site; never to loopback, link-local or metadata.
        """
        if is_address(self.target.host):
            return str(_plain(address)) == self.target.host
        if self.target.host == LOCALHOST:
            return _plain(address).is_loopback
        return _is_public(address) or (self.private and _is_private(address))

    def __str__(self) -> str:
        return f"{'*.' if self.subdomains else ''}{self.target}{'/' + PRIVATE if self.private else ''}"


class AllowList:
    """Endpoints, found by target in a time that does not grow with their number."""

    def __init__(self, endpoints: Iterable[Endpoint] = ()) -> None:
        self.endpoints = tuple(endpoints)
        if len(self.endpoints) > ENDPOINTS_MAX:
            raise UsageError(f"an allow list of {len(self.endpoints)} endpoints; at most {ENDPOINTS_MAX} are taken")
        ordered = sorted(self.endpoints, key=lambda endpoint: endpoint.private)  # of two for one target that one counts
        self._exact = {endpoint.target: endpoint for endpoint in ordered if not endpoint.subdomains}
        self._below = {endpoint.target: endpoint for endpoint in ordered if endpoint.subdomains}

    def find(self, target: Target) -> Endpoint | None:
        """Return the entry that allows the target: the one with just this name, else the nearest wildcard."""
        found = self._exact.get(target)
        if found is not None or is_address(target.host):
            return found
        for parent in _parents(target.host):
            found = self._below.get(Target(parent, target.port))
            if found is not None:
                return found
        return None

    def has_host(self, host: str) -> bool:
        """Return whether some endpoint is on this host."""
        return any(endpoint.target.host == host for endpoint in self.endpoints)


NOTHING = AllowList()


def parse_endpoints(texts: Iterable[str]) -> AllowList:
    """Return the allow list that these texts make. Raises UsageError for one that is none."""
    return AllowList(parse_endpoint(text) for text in texts)


def parse_endpoint(text: str) -> Endpoint:
    """Return the endpoint that HOST:PORT, *.HOST:PORT or either with /private means. Raises UsageError."""
    place, slash, option = text.partition("/")
    match = _PLACE.fullmatch(place)
    if match is None or (slash and option != PRIVATE):
        raise UsageError(
            f"not an endpoint: {text!r}; write HOST:PORT, *.HOST:PORT or HOST:PORT/private, an IPv6 address in brackets"
        )
    subdomains = place.startswith("*.")
    host = normal_host(_to_ascii(_place_host(match).removeprefix("*."), text))
    if subdomains and (is_address(host) or "." not in host):
        raise UsageError(f"the wildcard of {text!r} is too wide; write *.NAME.TOP:PORT")
    if slash and (is_address(host) or host == LOCALHOST):
        raise UsageError(f"{text!r}: an address and localhost need no /{PRIVATE}; leave it out")
    return Endpoint(Target(host, _port(match, text)), subdomains=subdomains, private=bool(slash))


def parse_target(text: str) -> Target:
    """Return the target that HOST:PORT means, as a client inside writes it. Raises UsageError."""
    match = _PLACE.fullmatch(text)
    if match is None:
        raise UsageError("not HOST:PORT")
    return Target(normal_host(_place_host(match)), _port(match, text))


def _place_host(match: re.Match[str]) -> str:
    """Return the host of HOST:PORT. Only an IPv6 address stands in brackets, and none stands without."""
    bracketed: str | None = match[1]
    if bracketed is None:
        return match[2]
    try:
        return str(ipaddress.IPv6Address(bracketed))
    except ValueError as error:
        raise UsageError(f"not an IPv6 address: [{bracketed}]") from error


def _port(match: re.Match[str], text: str) -> int:
    port = int(match[3])
    if port > 65535:
        raise UsageError(f"not an endpoint: {text!r}; a port is at most 65535")
    return port


def normal_host(host: str) -> str:
    """Return a host in its one spelling. Raises UsageError for what is neither an address nor a plain name.

    A name that ends in a number is refused: to the C library `127.1` and `0x7f000001` are addresses (inet_aton(3)).
    """
    try:
        return str(_plain(ipaddress.ip_address(host))) if "%" not in host else _refuse(host)
    except ValueError:
        pass
    name = host.lower().removesuffix(".")
    labels = name.split(".")
    if not host.isascii() or len(name) > _NAME_MAX or not all(map(_LABEL.fullmatch, labels)):
        return _refuse(host)
    if _NUMBER.fullmatch(labels[-1]):
        return _refuse(host)
    return name


def is_address(host: str) -> bool:
    """Return whether a host in its one spelling is an address. No name ends in a number, and none has a colon."""
    return ":" in host or host.rpartition(".")[2].isdigit()


def _refuse(host: str) -> str:
    raise UsageError(f"not a host: {host[:_NAME_MAX]!r}; give a name, or an IP address in full")


def _to_ascii(host: str, text: str) -> str:
    if host.isascii():
        return host
    try:
        return idna.encode(host, uts46=True).decode()
    except idna.IDNAError as error:
        raise UsageError(f"not an endpoint: {text!r}; {error}") from error


def _parents(name: str) -> Iterator[str]:
    while "." in name:
        name = name.partition(".")[2]
        yield name


def _plain(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 one only dresses up: the kernel connects to that one."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def _innermost(address: Address) -> Address:
    address = _plain(address)
    if isinstance(address, ipaddress.IPv6Address) and address in _TRANSLATED:
        return ipaddress.IPv4Address(address.packed[-4:])
    return address


def _is_private(address: Address) -> bool:
    address = _innermost(address)
    return address not in _METADATA and any(address in network for network in _PRIVATE)


def _is_public(address: Address) -> bool:
    address = _innermost(address)
    if address in _METADATA or not address.is_global or address.is_multicast or address.is_reserved:
        return False
    # tunnels to whatever IPv4 address they hold (RFC 3056, 4380), and what was local to a site (RFC 3879)
    return isinstance(address, ipaddress.IPv4Address) or not (
        address.sixtofour or address.teredo or address.is_site_local
    )
