"""What clients of the proxy say: both dialects are understood however they come in pieces, and junk is refused."""

from __future__ import annotations

import ipaddress
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisandbox.endpoints import Target, normal_host
from minisandbox.errors import UsageError
from minisandbox.runtime.proxy_protocol import HEAD_MAX_BYTES, Handshake, Refusal, RefusedError, Wanted

GREETING = b"\x05\x01\x00"
GREETED = b"\x05\x00"
CONNECT = b"CONNECT api.example:443 HTTP/1.1\r\nHost: api.example:443\r\nUser-Agent: test\r\n\r\n"
GET = b"GET http://api.example/a?b HTTP/1.1\r\nHost: api.example\r\nAccept: */*\r\n\r\n"


def socks(host: str, port: int, command: int = 1) -> bytes:
    """Return a SOCKS5 request, with the kind of address that `host` is."""
    try:
        address = ipaddress.ip_address(host)
        place = struct.pack("B", 1 if address.version == 4 else 4) + address.packed
    except ValueError:
        place = struct.pack("BB", 3, len(host.encode())) + host.encode()
    return struct.pack("BBB", 5, command, 0) + place + struct.pack("!H", port)


def hear(*pieces: bytes) -> tuple[Handshake, bytes]:
    """Return the handshake after these bytes, and all that it answered."""
    handshake = Handshake()
    return handshake, b"".join(handshake.receive(piece) for piece in pieces if handshake.wanted is None)


def refusal_of(data: bytes) -> Refusal:
    """Return why these bytes are refused."""
    with pytest.raises(RefusedError) as caught:
        hear(data)
    return caught.value.refusal


@pytest.mark.parametrize(
    ("request_line", "target"),
    [
        (b"CONNECT api.example:443 HTTP/1.1", Target("api.example", 443)),
        (b"CONNECT API.Example.:443 HTTP/1.0", Target("api.example", 443)),
        (b"CONNECT 10.0.0.1:1 HTTP/1.1", Target("10.0.0.1", 1)),
        (b"CONNECT [::1]:65535 HTTP/1.1", Target("::1", 65535)),
        (b"CONNECT [::ffff:7f00:1]:80 HTTP/1.1", Target("127.0.0.1", 80)),
    ],
)
def test_connect_is_a_tunnel(request_line: bytes, target: Target) -> None:
    """What follows the request is the server's, and the server is told nothing of it."""
    handshake, answer = hear(request_line + b"\r\nHost: elsewhere\r\n\r\nrest")

    assert Wanted(target) == handshake.wanted
    assert (b"", b"rest") == (answer, handshake.rest)
    assert handshake.accept().startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("url", "target", "path", "host"),
    [
        (b"http://api.example/a/b?c=d", Target("api.example", 80), b"/a/b?c=d", b"api.example"),
        (b"HTTP://API.example:8080", Target("api.example", 8080), b"/", b"api.example:8080"),
        (b"http://api.example:80/", Target("api.example", 80), b"/", b"api.example"),
        (b"http://api.example?q=http://other/", Target("api.example", 80), b"/?q=http://other/", b"api.example"),
        (b"http://[::1]/", Target("::1", 80), b"/", b"[::1]"),
        (b"http://[::1]:8000/x", Target("::1", 8000), b"/x", b"[::1]:8000"),
    ],
)
def test_a_request_in_absolute_form_is_made_one_to_its_server(
    url: bytes, target: Target, path: bytes, host: bytes
) -> None:
    """Origin form, the host of the URL whatever the field said, and the connection ends with the answer."""
    handshake, _ = hear(b"POST " + url + b" HTTP/1.1\r\nHost: other.example\r\nContent-Length: 4\r\n\r\nbody")

    head = b"POST " + path + b" HTTP/1.1\r\nHost: " + host + b"\r\nContent-Length: 4\r\nConnection: close\r\n\r\n"
    assert Wanted(target, head, tunnel=False) == handshake.wanted
    assert (b"body", b"") == (handshake.rest, handshake.accept())


def test_fields_of_the_hop_stay_behind() -> None:
    """Those that are always, and those that `Connection` names, but never what says where the body ends."""
    fields = [
        *(b"Proxy-Authorization: secret", b"Proxy-Connection: keep-alive", b"keep-alive: 5", b"TE: trailers"),
        *(b"Connection: X-Own , content-length,transfer-encoding", b"x-own: 1", b"X-Kept: 2", b"X-Empty:"),
        *(b"Content-Length: 0", b"Transfer-Encoding: chunked", b"Upgrade: websocket"),
    ]
    handshake, _ = hear(b"GET http://a.example/ HTTP/1.1\r\n" + b"\r\n".join(fields) + b"\r\n\r\n")
    assert handshake.wanted is not None
    lines = handshake.wanted.head.split(b"\r\n")

    kept = [b"X-Kept: 2", b"X-Empty:", b"Content-Length: 0", b"Transfer-Encoding: chunked"]
    assert [b"GET / HTTP/1.1", b"Host: a.example", *kept, b"Connection: close", b"", b""] == lines


@pytest.mark.parametrize(
    "head",
    [
        *(b"GET / HTTP/1.1", b"GET api.example HTTP/1.1", b"CONNECT api.example HTTP/1.1", b"CONNECT :80 HTTP/1.1"),
        *(b"CONNECT api.example:0 HTTP/1.1", b"CONNECT api.example:65536 HTTP/1.1", b"CONNECT a@b:80 HTTP/1.1"),
        *(b"CONNECT 127.1:80 HTTP/1.1", b"CONNECT 0x7f000001:80 HTTP/1.1", b"CONNECT ::1:80 HTTP/1.1"),
        *(b"GET https://a.example/ HTTP/1.1", b"GET ftp://a.example/ HTTP/1.1", b"GET http:/a.example/ HTTP/1.1"),
        *(b"GET http://u:p@a.example/ HTTP/1.1", b"GET http://a.example/#f HTTP/1.1", b"GET http:///x HTTP/1.1"),
        *(b"GET http://a.example:/ HTTP/1.1", b"GET http://a.example\\@b.example/ HTTP/1.1"),
        *(b"GET http://a.example/ HTTP/2.0", b"GET http://a.example/ HTTP/1.1 ", b"GET  http://a.example/ HTTP/1.1"),
        *(b"GET\thttp://a.example/ HTTP/1.1", b"GET http://a.example/ x HTTP/1.1", b"(x) http://a.example/ HTTP/1.1"),
        *(b"GET http://a.example/\xff HTTP/1.1", b"GET http://b\xc3\xbccher.example/ HTTP/1.1"),
        *(b"GET http://a.example/ HTTP/1.1\r\nno colon", b"GET http://a.example/ HTTP/1.1\r\n folded: x"),
        *(b"GET http://a.example/ HTTP/1.1\r\nA : b", b"GET http://a.example/ HTTP/1.1\r\nA: b\nHost: c"),
        *(b"GET http://a.example/ HTTP/1.1\r\nA: b\rc", b"GET http://a.example/ HTTP/1.1\r\nA: \0"),
        *(
            b"",
            b"\x16\x03\x01\x02\x00\x01",
            b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00",
            b"SSH-2.0-test",
            b"PRI * HTTP/2.0",
        ),
    ],
)
def test_what_is_no_request_is_refused(head: bytes) -> None:
    """Also what one server takes for one thing and another server for another."""
    assert Refusal.MALFORMED == refusal_of(head + b"\r\n\r\n")


@pytest.mark.parametrize("data", [b"x" * HEAD_MAX_BYTES, b"GET http://a.example/ HTTP/1.1\r\n" + b"A: b\r\n" * 2000])
def test_a_head_is_bounded(data: bytes) -> None:
    """What is not complete within 8 KiB is refused, whether it came at once or in pieces."""
    handshake = Handshake()

    assert Refusal.TOO_LARGE == refusal_of(data)
    with pytest.raises(RefusedError, match=str(HEAD_MAX_BYTES)):
        for at in range(len(data)):
            handshake.receive(data[at : at + 1])
    assert len(handshake.rest) == HEAD_MAX_BYTES


@pytest.mark.parametrize(
    ("host", "target"),
    [
        ("api.example", Target("api.example", 443)),
        ("API.example.", Target("api.example", 443)),
        ("10.0.0.1", Target("10.0.0.1", 443)),
        ("::1", Target("::1", 443)),
        ("::ffff:127.0.0.1", Target("127.0.0.1", 443)),
    ],
)
def test_socks_connects_to_names_and_addresses(host: str, target: Target) -> None:
    """Each kind of address; the greeting is answered, and what follows the request is the server's."""
    handshake, answer = hear(b"\x05\x02\x02\x00", socks(host, 443) + b"rest")

    assert Wanted(target) == handshake.wanted
    assert (GREETED, b"rest") == (answer, handshake.rest)
    assert b"\x05\x00\x00\x01" + bytes(6) == handshake.accept()


def test_an_address_may_come_as_a_name_in_socks() -> None:
    """It is then the address, so that there is no second way to write it."""
    handshake, _ = hear(GREETING, b"\x05\x01\x00\x03\x09127.0.0.1\x00\x50")

    assert Wanted(Target("127.0.0.1", 80)) == handshake.wanted


@pytest.mark.parametrize(
    ("request_bytes", "refusal", "answer"),
    [
        (b"\x05\x01\x02", Refusal.UNSUPPORTED, b"\x05\xff"),
        (b"\x05\x00", Refusal.UNSUPPORTED, b"\x05\xff"),
        (GREETING + socks("a.example", 80, command=2), Refusal.UNSUPPORTED, b"\x05\x07"),
        (GREETING + socks("a.example", 80, command=3), Refusal.UNSUPPORTED, b"\x05\x07"),
        (GREETING + b"\x05\x01\x00\x02\x01\x01\x01", Refusal.MALFORMED, b"\x05\x01"),
        (GREETING + b"\x04\x01\x00\x01\x01\x01\x01\x01\x00\x50", Refusal.MALFORMED, b"\x05\x01"),
        (GREETING + b"\x05\x01\x01\x01\x01\x01\x01\x01\x00\x50", Refusal.MALFORMED, b"\x05\x01"),
        (GREETING + b"\x05\x01\x00\x03\x00\x00\x50", Refusal.MALFORMED, b"\x05\x01"),
        (GREETING + socks("127.1", 80), Refusal.MALFORMED, b"\x05\x01"),
        (GREETING + socks("a\0.example", 80), Refusal.MALFORMED, b"\x05\x01"),
        (GREETING + socks("b\u00fccher.example", 80), Refusal.MALFORMED, b"\x05\x01"),
    ],
)
def test_what_socks_cannot_have_is_refused(request_bytes: bytes, refusal: Refusal, answer: bytes) -> None:
    """With a reply of its own dialect, or none of the methods before that was agreed on."""
    handshake = Handshake()
    with pytest.raises(RefusedError) as caught:
        handshake.receive(request_bytes)

    assert refusal == caught.value.refusal
    assert handshake.refuse(caught.value).startswith(answer)


@pytest.mark.parametrize("refusal", Refusal)
def test_a_refusal_is_an_answer_of_http(refusal: Refusal) -> None:
    """A status, a length that is right, and the reason as text."""
    handshake, _ = hear(CONNECT)
    head, _, body = handshake.refuse(RefusedError(refusal, "no \u20ac")).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 %d " % refusal.value[0])
    assert b"Content-Length: %d" % len(body) in head.split(b"\r\n")
    assert b"minisandbox: no \\u20ac\n" == body


@pytest.mark.parametrize("whole", [CONNECT, GET, GREETING + socks("a.example", 80), GREETING + socks("::1", 80)])
@given(cuts=st.lists(st.integers(0, 200), max_size=8))
def test_pieces_make_no_difference(whole: bytes, cuts: list[int]) -> None:
    """However the bytes come, the same is wanted and answered; before the last one nothing is wanted."""
    edges = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [whole[start:end] for start, end in pairwise(edges)]
    handshake, answer = hear(*pieces)
    expected, expected_answer = hear(whole)

    assert (expected.wanted, expected_answer, b"") == (handshake.wanted, answer, handshake.rest)
    assert hear(*pieces[:-1], pieces[-1][:-1])[0].wanted is None


MUTATED = st.tuples(
    st.sampled_from([CONNECT, GET, GREETING + socks("a.example", 80), GREETING + socks("10.0.0.1", 80)]),
    st.lists(st.tuples(st.integers(0, 90), st.binary(max_size=3)), max_size=6),
).map(lambda drawn: mutate(*drawn))


def mutate(data: bytes, changes: list[tuple[int, bytes]]) -> bytes:
    """Return bytes with some of them replaced."""
    for at, new in changes:
        data = data[:at] + new + data[at + 1 :]
    return data


@given(st.binary(max_size=600) | MUTATED | st.binary(max_size=600).map(lambda data: GREETING + b"\x05\x01\x00" + data))
def test_junk_is_wanted_refused_or_waited_for(data: bytes) -> None:
    """Nothing else comes of it, and never a target that is not in its one spelling, or a head that is two."""
    handshake = Handshake()
    try:
        for at in range(0, len(data), 7):
            if handshake.wanted is None:
                handshake.receive(data[at : at + 7])
    except RefusedError as error:
        assert handshake.refuse(error)
        return
    wanted = handshake.wanted
    if wanted is None:
        assert len(handshake.rest) < HEAD_MAX_BYTES
        return

    assert wanted.target.host == normal_host(wanted.target.host)
    assert 0 <= wanted.target.port <= 65535
    assert wanted.tunnel == (wanted.head == b"")
    if not wanted.tunnel:
        lines = wanted.head.split(b"\r\n")
        assert wanted.head.endswith(b"\r\n\r\n") and wanted.head.count(b"\r\n\r\n") == 1
        assert not any(b"\r" in line or b"\n" in line or b"\0" in line for line in lines)
        assert 1 == sum(line.lower().startswith(b"host:") for line in lines)


@given(st.text(max_size=40))
def test_a_name_in_socks_is_a_host_or_refused(name: str) -> None:
    """What the length says is the name, whatever is in it."""
    data = GREETING + b"\x05\x01\x00\x03" + bytes([len(name.encode())]) + name.encode() + b"\x01\xbb"
    try:
        expected = Target(normal_host(name.encode().decode("latin-1")), 443)
    except UsageError:
        assert Refusal.MALFORMED == refusal_of(data)
        return

    assert Wanted(expected) == hear(data)[0].wanted
