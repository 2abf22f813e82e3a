"""Allow lists: what an entry means, which spellings of a host are one, and which addresses a name may lead to."""

from __future__ import annotations

import ipaddress
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisandbox.endpoints import (
    ENDPOINTS_MAX,
    Endpoint,
    Target,
    is_address,
    normal_host,
    parse_endpoint,
    parse_endpoints,
    parse_target,
)
from minisandbox.errors import UsageError

LABELS = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=8).map(lambda text: "x" + text)
NAMES = st.lists(LABELS, min_size=1, max_size=4).map(".".join)
PORTS = st.integers(1, 65535)
ADDRESSES = st.ip_addresses()

PUBLIC = ("8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8")
SITE = ("10.1.2.3", "172.31.255.255", "192.168.0.1", "100.64.0.1", "fd12::1", "::ffff:10.0.0.1", "64:ff9b::a00:1")
NEVER = (
    *("127.0.0.1", "127.255.255.255", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "::7f00:1", "0.0.0.0", "::"),
    *("169.254.169.254", "169.254.1.1", "fe80::1", "168.63.129.16", "100.100.100.200", "fd00:ec2::254", "fd20:ce::254"),
    *("224.0.0.1", "ff02::1", "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1", "2001:db8::1", "fec0::1"),
    *("2002:7f00:1::", "2002:808:808::", "2001::1", "192.0.0.192", "::ffff:169.254.169.254", "64:ff9b:1::1"),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("api.example.org:443", Endpoint(Target("api.example.org", 443))),
        ("API.Example.ORG.:443", Endpoint(Target("api.example.org", 443))),
        ("bücher.example:80", Endpoint(Target("xn--bcher-kva.example", 80))),
        ("\uff21\uff30\uff29.example:80", Endpoint(Target("api.example", 80))),
        ("*.example.org:443", Endpoint(Target("example.org", 443), subdomains=True)),
        ("vllm:8000/private", Endpoint(Target("vllm", 8000), private=True)),
        ("*.svc.cluster.local:80/private", Endpoint(Target("svc.cluster.local", 80), subdomains=True, private=True)),
        ("127.0.0.1:65535", Endpoint(Target("127.0.0.1", 65535))),
        ("[::1]:1", Endpoint(Target("::1", 1))),
        ("[0:0::0:1]:1", Endpoint(Target("::1", 1))),
        ("[::ffff:10.0.0.1]:80", Endpoint(Target("10.0.0.1", 80))),
        ("localhost:8000", Endpoint(Target("localhost", 8000))),
    ],
)
def test_an_entry_means(text: str, expected: Endpoint) -> None:
    """Case, a final dot, Unicode and the ways to write an IPv6 address make no difference."""
    assert expected == parse_endpoint(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "example.org", ":443", "example.org:", "example.org:0", "example.org:65536", "example.org:0443"),
        *(
            "example.org:http",
            "example.org:443x",
            "example.org:443 ",
            " example.org:443",
            "example.org:\uff14\uff14\uff13",
        ),
        *("http://example.org:80", "user@example.org:80", "example.org:80/", "example.org:80/public", "a/b:80"),
        *("*:443", "*.org:443", "*.localhost:80", "a*.example.org:443", "*.*.example.org:443", "*.10.0.0.1:80"),
        *("*.:443", "..:443", "a..b:443", ".example.org:443", "example.org..:443", "-a.example:443", "a-.example:443"),
        *("127.1:80", "0x7f000001:80", "2130706433:80", "0177.0.0.1:80", "1.2.3.4.:80", "1.2.3:80", "example.1:80"),
        *("::1:80", "[::1]", "[::1]80", "[fe80::1%eth0]:80", "[1.2.3.4]:80", "[example.org]:80", "[::g]:80"),
        *("localhost:80/private", "10.0.0.1:80/private", "[fd00::1]:80/private"),
        *("a\0b:80", "a\nb:80", "a b:80", "a" * 64 + ":80", ".".join(["a" * 60] * 5) + ":80", "ex\u200dample.org:80"),
    ],
)
def test_what_is_no_entry_is_refused(text: str) -> None:
    """Also what looks like a name and is an address to the C library, and wildcards that take in too much."""
    with pytest.raises(UsageError):
        parse_endpoint(text)


def test_an_allow_list_is_bounded() -> None:
    """So that nothing that grows with it grows without end."""
    texts = [f"a{number}.example:80" for number in range(ENDPOINTS_MAX + 1)]

    assert ENDPOINTS_MAX == len(parse_endpoints(texts[1:]).endpoints)
    with pytest.raises(UsageError, match="at most"):
        parse_endpoints(texts)


@pytest.mark.parametrize(
    ("target", "entry"),
    [
        ("a.example.org:443", "a.example.org:443"),
        ("A.EXAMPLE.ORG.:443", "a.example.org:443"),
        ("b.example.org:443", "*.example.org:443"),
        ("c.b.example.org:443", "*.b.example.org:443"),
        ("d.c.b.example.org:443", "*.b.example.org:443"),
        ("example.org:443", None),
        ("a.example.org:80", None),
        ("evil-example.org:443", None),
        ("example.org.evil.test:443", None),
        ("10.0.0.1:80", "10.0.0.1:80"),
        ("[::ffff:a00:1]:80", "10.0.0.1:80"),
        ("10.0.0.2:80", None),
        ("[::1]:80", None),
    ],
)
def test_targets_and_their_entries(target: str, entry: str | None) -> None:
    """The host as a whole and the port; a wildcard takes names below it alone, and the nearest one counts."""
    allow = parse_endpoints(
        ["a.example.org:443", "*.example.org:443", "*.b.example.org:443", "10.0.0.1:80", "*.0.0.example:80"]
    )
    found = allow.find(parse_target(target))

    assert entry == (None if found is None else str(found))


@pytest.mark.parametrize("address", PUBLIC)
def test_a_name_may_lead_to_a_public_address(address: str) -> None:
    """However that is written."""
    assert parse_endpoint("a.example:80").permits(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", SITE)
def test_a_name_leads_to_the_site_only_where_its_entry_says_so(address: str) -> None:
    """The site's own addresses, dressed up as others too. Defence off: with /private they are permitted."""
    assert not parse_endpoint("a.example:80").permits(ipaddress.ip_address(address))
    assert parse_endpoint("a.example:80/private").permits(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", NEVER)
def test_a_name_never_leads_to_the_host_or_to_metadata(address: str) -> None:
    """Not even with /private. Defence off: an entry that is the address itself permits it."""
    plain = ipaddress.ip_address(address)
    literal = f"[{plain}]:80" if plain.version == 6 else f"{plain}:80"

    assert not parse_endpoint("a.example:80").permits(plain)
    assert not parse_endpoint("a.example:80/private").permits(plain)
    assert not parse_endpoint("*.a.example:80/private").permits(plain)
    assert parse_endpoint(literal).permits(plain)


@pytest.mark.parametrize(
    ("address", "permitted"), [("127.0.0.1", True), ("::1", True), ("10.0.0.1", False), ("8.8.8.8", False)]
)
def test_localhost_is_loopback_and_nothing_else(address: str, permitted: bool) -> None:
    """Whatever a resolver says of it."""
    assert permitted == parse_endpoint("localhost:80").permits(ipaddress.ip_address(address))


@given(ADDRESSES, ADDRESSES)
def test_an_address_permits_itself_alone(
    entry: ipaddress.IPv4Address | ipaddress.IPv6Address, other: ipaddress.IPv4Address | ipaddress.IPv6Address
) -> None:
    """An entry that is an address stands for that one."""
    endpoint = parse_endpoint(f"[{entry}]:80" if entry.version == 6 else f"{entry}:80")

    assert endpoint.permits(entry)
    assert endpoint.permits(other) == (normal_host(str(entry)) == normal_host(str(other)))


@given(NAMES, PORTS)
def test_an_entry_allows_its_own_target(name: str, port: int) -> None:
    """In every spelling of it, and on no other port."""
    allow = parse_endpoints([f"{name}:{port}"])

    assert allow.find(parse_target(f"{name.upper()}.:{port}")) is not None
    assert allow.find(Target(name, port % 65535 + 1)) is None


@given(NAMES, NAMES)
def test_a_wildcard_allows_names_below_it(name: str, parent: str) -> None:
    """And neither itself nor what only ends with the same letters."""
    allow = parse_endpoints([f"*.{parent}.example:80"])

    assert allow.find(Target(f"{name}.{parent}.example", 80)) is not None
    assert allow.find(Target(f"{parent}.example", 80)) is None
    assert allow.find(Target(f"{name}{parent}.example", 80)) is None


@given(st.text(max_size=80) | st.text("0123456789abcdefx.:[]%*-/@", max_size=30))
def test_junk_is_an_entry_or_an_error(text: str) -> None:
    """Nothing else comes of it; and what is taken comes out again as it is."""
    try:
        endpoint = parse_endpoint(text)
    except UsageError:
        return

    assert endpoint == parse_endpoint(str(endpoint))
    assert endpoint.target.host.isascii()
    assert endpoint.target.host == normal_host(endpoint.target.host)


@given(st.text(max_size=80) | st.text("0123456789abcdefABCDEFx.:%-", max_size=40))
def test_a_host_has_one_spelling(text: str) -> None:
    """The spelling of a spelling is itself; it is an address for `is_address` when it is one for everybody."""
    try:
        host = normal_host(text)
    except UsageError:
        return
    try:
        ipaddress.ip_address(host)
        expected = True
    except ValueError:
        expected = False

    assert host == normal_host(host)
    assert expected == is_address(host)
