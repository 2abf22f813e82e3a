# mypy: ignore-errors
"""What a warm Python runs: imports what it was told, waits to be forked into sandboxes, does what each fork is told.

Executed by the Python of a rootfs, 3.8 or newer, never imported here. Its descriptors: 3 the socket for records and
orders, 4 the helper (helper.c), 5 this file, 6 the preload.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import importlib
import importlib.machinery
import importlib.util
import json
import os
import signal
import struct
import sys
import time
import traceback
import types

SOCKET, HELPER, STUB, PRELOAD = 3, 4, 5, 6
READY, FAILED = 3, 4
RECORD = struct.Struct("<HHIiiqq")


def say(kind: int, error: int = 0) -> None:
    """Send one record (protocol.h)."""
    os.write(SOCKET, RECORD.pack(kind, 0, 0, error, -1, 0, 0))


def load_helper() -> object:
    """Return the module that is the helper."""
    name = "minisandbox_warm"
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_LAZY)
    try:
        spec = importlib.util.spec_from_file_location(
            name, loader=importlib.machinery.ExtensionFileLoader(name, "/proc/self/fd/%d" % HELPER)
        )
        return importlib.util.module_from_spec(spec)
    finally:
        sys.setdlopenflags(flags)


def read_preload() -> object:
    """Return what is to be imported and executed."""
    with open("/proc/self/fd/%d" % PRELOAD, "rb") as file:
        return json.loads(file.read())


def preload(wanted: object) -> None:
    """Do it. What it raises is the operator's to see."""
    for name in wanted["modules"]:
        importlib.import_module(name)
    if wanted["code"] is not None:
        module = types.ModuleType("__preload__")
        module.__file__ = wanted["filename"]
        sys.modules["__preload__"] = module
        exec(compile(wanted["code"], wanted["filename"], "exec", dont_inherit=True), module.__dict__)


def check_alone() -> None:
    """Raise unless a copy of this process is all there is to it: neither threads nor descriptors nor shared memory."""
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise RuntimeError(
            "the preload left %d threads running, of which a fork has none; end them, or start them in the fork "
            "(for numerical libraries: OPENBLAS_NUM_THREADS=1, OMP_NUM_THREADS=1)" % (threads - 1)
        )
    listing = os.open("/proc/self/fd", os.O_RDONLY)
    names = [int(name) for name in os.listdir(listing)]
    os.close(listing)
    for fd in names:
        if fd > SOCKET and fd != listing:
            try:
                target = os.readlink("/proc/self/fd/%d" % fd)
            except OSError:
                continue
            raise RuntimeError(
                "the preload left descriptor %d open (%s), which forks do not get; close it at its end" % (fd, target)
            )
    with open("/proc/self/maps") as maps:
        for line in maps:
            permissions = line.split()[1]
            if "w" in permissions and permissions.endswith("s"):
                raise RuntimeError(
                    "the preload left memory that forks would share and could write to (%s); unmap it at its end"
                    % line.strip()
                )


def get_ready() -> object:
    """Load, check, seal; return the helper. Ends the process when that fails, with the traceback on stderr."""
    try:
        wanted = read_preload()
        helper = load_helper()
        helper.lower(None)
        for fd in (HELPER, STUB, PRELOAD):
            os.close(fd)
        sys.path[0] = ""
        preload(wanted)
        rehearse()
        sys.stdout.flush()
        check_alone()
        gc.collect()
        helper.seal(None)
        gc.freeze()
    except BaseException:  # whatever a preload raises is the error of the template
        error = sys.exc_info()[1]
        while error.__traceback__ is not None and error.__traceback__.tb_frame.f_code.co_filename == __file__:
            error.__traceback__ = error.__traceback__.tb_next
        traceback.print_exception(type(error), error, error.__traceback__)
        sys.stderr.flush()
        say(FAILED, 1)
        os._exit(1)
    return helper


def forget_listings() -> None:
    """Directories look different here: as importlib.invalidate_caches, which would import much (3.10)."""
    for path, finder in list(sys.path_importer_cache.items()):
        if finder is None:
            del sys.path_importer_cache[path]
        elif hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()


def seed(number: object) -> None:
    """Give generators of modules their own state: from the system, or all from `number`, loaded yet or not.

    `random` has seeded itself at the fork (os.register_at_fork).
    """
    numpy_random = sys.modules.get("numpy.random")
    if number is None:
        if numpy_random is not None:
            numpy_random.seed(None)
        return
    random = importlib.import_module("random")
    random.seed(number)
    if "numpy" in sys.modules:
        importlib.import_module("numpy.random").seed(number % (1 << 32))
        system = sys.modules.get("numpy.random.bit_generator")
        if hasattr(system, "randbits"):  # what default_rng() begins with, where it is given nothing
            system.randbits = random.Random(number).getrandbits


def use_as_stdin(path: str) -> None:
    """Read from a file in place of the pipe that every fork ahead has."""
    fd = os.open(path, os.O_RDONLY)
    os.dup2(fd, 0)
    os.close(fd)


def take_order(payload: bytes) -> object:
    """Return the seed, the kind and the text of an order, and take its variables and arguments.

    A fork pays for each page that it touches first: the order is words, and what is right already is left alone.
    """
    words = payload.decode("utf-8", "surrogateescape").split("\0")
    seed_text, kind, text, stdin, count = words[:5]
    if stdin:
        use_as_stdin(stdin)
    sys.argv = words[5 : 5 + int(count)]
    wanted = dict(word.split("=", 1) for word in words[5 + int(count) :])
    if os.environ.get("TZ") != wanted.get("TZ"):
        os.environ["TZ"] = wanted.get("TZ", "")
        time.tzset()
    for name in list(os.environ):
        if name not in wanted:
            del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    return int(seed_text) if seed_text else None, kind, text


def find_program(kind: str, text: str) -> object:
    """Return what is to be run: a function without arguments."""
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins
    sys.modules["__main__"] = main
    if kind == "call":
        name, _, path = text.partition(":")
        found = importlib.import_module(name)
        for part in path.split("."):
            found = getattr(found, part)
        return lambda: sys.exit(found())
    if kind == "file":
        sys.path[0] = os.path.dirname(os.path.realpath(text))
        main.__file__ = text
        with open(text, "rb") as file:
            code = compile(file.read(), text, "exec", dont_inherit=True)
    else:
        code = compile(text, "<string>", "exec", dont_inherit=True)
    return lambda: exec(code, main.__dict__)


def run(kind: str, text: str) -> int:
    """Run it and return the exit status, as the interpreter itself would."""
    try:
        find_program(kind, text)()
        return 0
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        sys.stdout.flush()
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:  # the program's own, whatever it is: the interpreter would print it too
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1


def finish(status: int) -> None:
    """End as the interpreter does, without taking apart what was loaded before the fork."""
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        sys.modules["__main__"].__dict__.clear()  # what is left in cycles goes as at any exit: unheard
    finally:
        try:
            sys.stdout.flush()
        except BaseException as error:  # a stream can be anything that the program put there
            if not isinstance(error, ValueError):  # closed by the program
                status = 120
        try:
            sys.stderr.flush()
        except BaseException:  # as at any exit: there is nowhere left to say it
            pass
        if status == 128 + signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(status)


def rehearse() -> None:
    """Do once what each program needs: what it makes on the way is there then, and in a fork its pages are its own."""
    main, argv = sys.modules["__main__"], sys.argv
    words = ["", "code", "print(end='')", "", "1", "-c", *("%s=%s" % item for item in os.environ.items())]
    _, kind, text = take_order("\0".join(words).encode("utf-8", "surrogateescape"))
    forget_listings()
    seed(None)
    run(kind, text)
    sys.modules["__main__"].__dict__.clear()
    sys.modules["__main__"], sys.argv = main, argv


def await_order(fd: int) -> bytes:
    """Wait, in a fork that was made ahead, for what it is to do, and return it. Ends it when nobody wants it."""
    order = b""
    os.set_blocking(fd, False)
    while True:
        try:
            part = os.read(fd, 1 << 16)
        except BlockingIOError:  # there is time
            rehearse()
            os.set_blocking(fd, True)
            continue
        if not part:
            break
        order += part
    os.close(fd)
    if not order:
        os._exit(0)
    return order


def main() -> None:
    """Wait; then, in a fork, become the program."""
    helper = get_ready()
    say(READY)
    order = helper.serve(SOCKET)
    if not isinstance(order, bytes):
        order = await_order(order)
    number, kind, text = take_order(order)
    forget_listings()
    seed(number)
    finish(run(kind, text))


main()
