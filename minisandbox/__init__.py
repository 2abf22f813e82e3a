"""minisandbox: isolated, limited and accounted commands on one Linux host, fast enough for reinforcement learning.

async with open_supervisor() as supervisor, supervisor.open_sandbox() as sandbox:
    result = await sandbox.run(["python3", "-c", "print(6 * 7)"])
"""

from minisandbox.binds import Bind
from minisandbox.degradation import Degradation
from minisandbox.errors import (
    AdmissionError,
    BrokenError,
    BusyError,
    CgroupError,
    ClosedError,
    CommandNotExecutableError,
    CommandNotFoundError,
    DeadlineError,
    FileTransferError,
    HostError,
    PolicyError,
    ProtocolError,
    RootfsError,
    SandboxError,
    SessionEndedError,
    StartError,
    StateError,
    TemplateError,
    UsageError,
)
from minisandbox.images.prefix import with_prefix
from minisandbox.images.rootfs import Rootfs, build_rootfs
from minisandbox.images.state import StateDir
from minisandbox.policy import Policy, load_policy
from minisandbox.runtime.admission import Admission
from minisandbox.runtime.network_usage import EndpointUsage, NetworkUsage
from minisandbox.runtime.opening import open_supervisor
from minisandbox.runtime.process import Process, Terminal
from minisandbox.runtime.sandbox import Sandbox
from minisandbox.runtime.session import Session, SessionResult
from minisandbox.runtime.snapshot import Snapshot
from minisandbox.runtime.supervisor import Supervisor
from minisandbox.runtime.template import Template
from minisandbox.runtime.tree_pump import TreeBounds, TreeReport
from minisandbox.spec import ExitReason, Limits, Result, Timing, Usage

__all__ = [
    "Admission",
    "AdmissionError",
    "Bind",
    "BrokenError",
    "BusyError",
    "CgroupError",
    "ClosedError",
    "CommandNotExecutableError",
    "CommandNotFoundError",
    "DeadlineError",
    "Degradation",
    "EndpointUsage",
    "ExitReason",
    "FileTransferError",
    "HostError",
    "Limits",
    "NetworkUsage",
    "Policy",
    "PolicyError",
    "Process",
    "ProtocolError",
    "Result",
    "Rootfs",
    "RootfsError",
    "Sandbox",
    "SandboxError",
    "Session",
    "SessionEndedError",
    "SessionResult",
    "Snapshot",
    "StartError",
    "StateDir",
    "StateError",
    "Supervisor",
    "Template",
    "TemplateError",
    "Terminal",
    "Timing",
    "TreeBounds",
    "TreeReport",
    "Usage",
    "UsageError",
    "build_rootfs",
    "load_policy",
    "open_supervisor",
    "with_prefix",
]
