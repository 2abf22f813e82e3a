"""What bash runs to serve a session, and the words that are exchanged with it. Pure.

The shell has one control socket, as its descriptor 0 at the start. On it come commands, each as its length in bytes, a
newline and the text; back go reports of three fields, each ended by NUL: `$?`, `$-` and the trap of SIGINT. Nothing of
ours is ever printed, so stdout and stderr hold what the commands wrote and nothing else.

    why it looks like that             what goes wrong otherwise
    `exec 249<...`, `{ ...; } <&249`   bash keeps what a redirection hides above that number and close-on-exec: programs
                                       do not inherit the socket, and `exec 3>file` finds 3 free
    `! eval`                           `set -e` and the trap of ERR would look at eval's own status as well
    one array, `_minisandbox`          arrays are never exported: `set -a` does not put commands into the environment
    `set +ex` behind a command,        what the driver does would end the shell, or be traced among the output
    `set -ex` again before the next
    two loops                          a stray `break` of a command would end the driver
    all on one line                    $LINENO and error messages of a command would not begin at line 1
"""

from __future__ import annotations

import os
from typing import NamedTuple

from minisandbox.errors import ProtocolError, UsageError

ABORT_SIGNAL = 64
"""SIGRTMAX (signal(7)): bash aborts what runs at it, also when a command has a trap for SIGINT."""

INTERRUPTED = 130
"""$? of a command that was aborted, as after Ctrl-C."""

COMMAND_MAX_BYTES = 64 << 20

_REPORT_MAX_BYTES = 1 << 20
_SOCKET_FD = 250

# At a signal while a command runs: leave every loop up to the driver's by `continue`. From within a function that is
# not possible. There the trap of DEBUG takes over, which bash runs before each command that would come next: while
# extdebug is on, its status 2 returns from a function, and any other than 0 skips the command. The head of a loop must
# pass (a hundred times, should there be nothing else): a loop whose head is skipped does not count `continue` down.
_ABORT = """
if [[ ${_minisandbox[2]} ]]; then
    if [[ -z ${_minisandbox[4]} ]]; then _minisandbox[1]="$-" _minisandbox[4]=0; fi;
    builtin set +ex;
    if ((${#FUNCNAME[@]})); then
        _minisandbox[4]=100;
        builtin shopt -s extdebug; builtin trap "$_minisandbox_abort" DEBUG; builtin return 2;
    elif [[ ${_minisandbox[4]} -gt 0 && $BASH_COMMAND == @(for |select |\\(\\()* ]]; then
        _minisandbox[4]=$((_minisandbox[4] - 1));
    else
        builtin trap - DEBUG; _minisandbox[0]=130 _minisandbox[2]=""; ! builtin continue 1000;
    fi;
fi;
"""

_TRAP = "'{ builtin eval \"$_minisandbox_abort\"; } 2>/dev/null'"

# _minisandbox: status, options, whether a command runs, its length and then its text, whether it is aborted.
_DRIVER = """
builtin shopt -s expand_aliases;
_minisandbox=(0 "$-" "" "" "");
_minisandbox_abort='@ABORT@';
builtin trap @TRAP@ INT RTMAX;
exec @SPARE@</dev/null;
{ exec @SPARE@<&-;
  builtin printf "%s\\0" $$ >&@SOCKET@;
  while :; do while :; do
    { if [[ ${_minisandbox[4]} ]]; then builtin shopt -u extdebug; _minisandbox[4]=""; fi;
      builtin printf "%s\\0" "${_minisandbox[@]:0:2}";
      builtin trap -p INT; builtin printf "\\0";
    } 2>/dev/null >&@SOCKET@ || builtin exit 125;
    until IFS= builtin read -r "_minisandbox[3]" <&@SOCKET@; do (($? > 128)) || builtin exit; done;
    LC_ALL=C IFS= builtin read -r -N "${_minisandbox[3]}" "_minisandbox[3]" <&@SOCKET@ || builtin exit 125;
    _minisandbox[2]=1;
    ! builtin eval "${_minisandbox[3]}";
    { _minisandbox=(${PIPESTATUS[0]} "$-" "" "" ""); builtin set +ex; } 2>/dev/null;
  done; done;
} <&@SPARE@
"""


class Report(NamedTuple):
    """What the shell says when it waits for a command: the values of `$?` and `$-`, and whether SIGINT has a trap."""

    status: int
    options: str
    traps_interrupt: bool


def shell_argv(open_files: int | None) -> list[str]:
    """Return the words that start the shell, for a limit of so many open files."""
    socket_fd = _SOCKET_FD if open_files is None else min(_SOCKET_FD, open_files - 1)
    text = _DRIVER.replace("@ABORT@", _ABORT).replace("@TRAP@", _TRAP)
    text = text.replace("@SOCKET@", str(socket_fd)).replace("@SPARE@", str(socket_fd - 1))
    return ["bash", "--norc", "--noprofile", "-c", " ".join(text.split()), "bash"]


def encode_command(command: str, before: Report) -> bytes:
    """Return what makes the shell run a command, with `$?` and its options as the command before left them.

    Raises UsageError for text that cannot be a command.
    """
    try:
        data = os.fsencode(_prologue(before) + command)
    except UnicodeEncodeError as error:
        raise UsageError(f"text for a sandbox cannot be encoded: {error}") from error
    if b"\0" in data:
        raise UsageError("the command holds a NUL character, which a shell cannot take")
    if len(data) > COMMAND_MAX_BYTES:
        raise UsageError(f"the command has {len(data)} bytes, more than {COMMAND_MAX_BYTES}; write it into a file")
    return b"%d\n" % len(data) + data


def _prologue(before: Report) -> str:
    """What is put before a command, on its first line. A function of ours would be seen, so it removes itself."""
    trap = "" if before.traps_interrupt else f"builtin trap {_TRAP} INT;"
    options = "".join(letter for letter in before.options if letter in "ex")
    if not options and before.status == 0:
        return trap
    switch = f"builtin set -{options};" if options else ""
    body = f"builtin unset -f _minisandbox;{switch}builtin return {before.status};"
    return f"{trap}{{ _minisandbox() {{ {body} }}; _minisandbox && :; }} 2>/dev/null;"


class ReportReader:
    """Takes bytes from the shell as they come. What it says is as trustworthy as the commands it runs."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.shell_pid = 0
        """What `$$` is, as soon as it said so."""

    def feed(self, data: bytes) -> list[Report]:
        """Return the reports that are complete now. Raises ProtocolError for what is none."""
        self._data += data
        reports = []
        if self.shell_pid == 0 and b"\0" in self._data:
            self.shell_pid = _number(self._take(1)[0], 1 << 22)
        while self.shell_pid and self._data.count(b"\0") >= len(Report._fields):
            status, options, trap = self._take(len(Report._fields))
            if not options.isalpha() or not options.isascii():
                raise ProtocolError("the shell of a session said something that is no set of options")
            reports.append(Report(_number(status, 255), options.decode(), bool(trap)))
        if len(self._data) > _REPORT_MAX_BYTES:
            raise ProtocolError(f"the shell of a session said more than {_REPORT_MAX_BYTES} bytes at once")
        return reports

    def _take(self, count: int) -> list[bytes]:
        *fields, rest = bytes(self._data).split(b"\0", count)
        self._data[:] = rest
        return fields


def _number(text: bytes, largest: int) -> int:
    if not text.isdigit() or len(text) > 7 or int(text) > largest:
        raise ProtocolError("the shell of a session said something that is no number")
    return int(text)
