"""The tables of a run's records, and what each column holds. Plain ones, so that `sqlite3` and pandas read them.

A text or bytes cell is TEXT where it is UTF-8 without NUL, else BLOB. One that is larger than `INLINE_BYTES` is only
begun in its column (JSON is NULL there), and a row of `large` names the blob that holds all of it. This module does no
I/O.
"""

from __future__ import annotations

VERSION = 2
"""Of the tables. A store of another version is refused, never changed."""

APPLICATION_ID = 0x6D736272
"""What says in the header of the file that it is ours ("msbr")."""

INLINE_BYTES = 8 << 10
PREVIEW_BYTES = 1 << 10

TABLES = """
CREATE TABLE run (
    policies TEXT NOT NULL, samples INTEGER NOT NULL, seed INTEGER NOT NULL, options TEXT NOT NULL
);
CREATE TABLE sessions (
    session INTEGER PRIMARY KEY, begun REAL NOT NULL, version TEXT NOT NULL
);
CREATE TABLE machine (
    session INTEGER NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (session, name)
) WITHOUT ROWID;
CREATE TABLE tasks (
    task TEXT PRIMARY KEY, digest TEXT NOT NULL, instruction TEXT NOT NULL, kind TEXT NOT NULL,
    integrity TEXT NOT NULL, rootfs TEXT NOT NULL, metadata TEXT NOT NULL
);
CREATE TABLE keys (
    episode INTEGER PRIMARY KEY, task TEXT NOT NULL, policy TEXT NOT NULL, sample INTEGER NOT NULL,
    UNIQUE (task, policy, sample)
);
CREATE TABLE episodes (
    episode INTEGER PRIMARY KEY REFERENCES keys, task TEXT NOT NULL, policy TEXT NOT NULL, sample INTEGER NOT NULL,
    reward REAL, verdict TEXT, end TEXT NOT NULL, why TEXT NOT NULL, turns INTEGER NOT NULL, tokens INTEGER NOT NULL,
    seed INTEGER NOT NULL, task_digest TEXT NOT NULL, "group" TEXT NOT NULL, started REAL NOT NULL,
    seconds REAL NOT NULL, queued_s REAL NOT NULL, opened_s REAL NOT NULL, judged_s REAL NOT NULL,
    warm INTEGER NOT NULL, limits_hit TEXT NOT NULL, artifacts TEXT, branched_from TEXT, branched_after INTEGER,
    judge_episode TEXT, session INTEGER NOT NULL, redacted INTEGER NOT NULL, digest TEXT NOT NULL
);
CREATE TABLE attempts (
    episode INTEGER NOT NULL, attempt INTEGER NOT NULL, error TEXT NOT NULL, message TEXT NOT NULL,
    retryable INTEGER NOT NULL, seconds REAL NOT NULL, PRIMARY KEY (episode, attempt)
) WITHOUT ROWID;
CREATE TABLE turns (
    episode INTEGER NOT NULL, turn INTEGER NOT NULL, action TEXT NOT NULL,
    command TEXT, code TEXT, stdin BLOB, path TEXT, content BLOB, executable INTEGER, old TEXT, new TEXT, note TEXT,
    wall_time_s REAL, started_s REAL NOT NULL, think_s REAL NOT NULL, act_s REAL NOT NULL, tokens INTEGER NOT NULL,
    data TEXT, PRIMARY KEY (episode, turn)
);
CREATE TABLE results (
    episode INTEGER NOT NULL, turn INTEGER NOT NULL, stdout BLOB, stderr BLOB, truncated INTEGER NOT NULL,
    exit_reason TEXT, exit_code INTEGER, signal INTEGER, error TEXT,
    wall_time_s REAL, cpu_time_s REAL, memory_peak_bytes INTEGER, memory_held_bytes INTEGER, processes_peak INTEGER,
    stdout_bytes INTEGER, stderr_bytes INTEGER, disk_bytes INTEGER, disk_inodes INTEGER, PRIMARY KEY (episode, turn)
);
CREATE TABLE verdicts (
    episode INTEGER PRIMARY KEY, verdict TEXT NOT NULL, score REAL, passed INTEGER NOT NULL, failed INTEGER NOT NULL,
    total INTEGER NOT NULL, reward REAL, mask INTEGER NOT NULL, quarantine INTEGER NOT NULL, suspicious TEXT NOT NULL,
    integrity TEXT NOT NULL, claimed TEXT NOT NULL, penalty TEXT NOT NULL, decision_sha256 TEXT NOT NULL, whole TEXT
);
CREATE TABLE evidence (
    episode INTEGER NOT NULL, code TEXT NOT NULL, severity TEXT NOT NULL, causal INTEGER NOT NULL, cell TEXT NOT NULL,
    paths TEXT NOT NULL
);
CREATE INDEX evidence_of_episode ON evidence (episode);
CREATE TABLE large (
    episode INTEGER NOT NULL, turn INTEGER, name TEXT NOT NULL, sha256 TEXT NOT NULL, bytes INTEGER NOT NULL
);
CREATE INDEX large_of_episode ON large (episode);
CREATE TABLE events (
    event INTEGER PRIMARY KEY, at REAL NOT NULL, session INTEGER NOT NULL, name TEXT NOT NULL, episode INTEGER,
    data TEXT NOT NULL
);
"""

BYTES = frozenset({"stdin", "content", "stdout", "stderr"})
"""Columns that hold bytes, whatever the cell is."""

JSON = frozenset({"data", "whole"})
"""Columns that hold JSON and can be large."""

OF_AN_EPISODE = ("turns", "results", "large")
"""Tables that hold rows of an episode before it is finished."""

WITH_LARGE = frozenset({"turns", "results", "verdicts"})
"""Tables whose cells can be in blobs."""
