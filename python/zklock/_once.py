"""The record of runs: what a client reports about the past runs of a job.

At run time, this file must not import the native module, because the native module imports this file.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Optional

from zklock._states import RunResult


@dataclass(frozen=True, repr=False)
class PastRun:
    """One run of a job; see ``Client.past_runs()``. Past runs are immutable, comparable and hashable. The times are
    aware datetimes in UTC.
    """

    period: datetime
    """The beginning of the period."""
    started: datetime
    """The beginning of the run, according to the clock of the host that ran it."""
    ended: Optional[datetime]
    """The end of the run, or None if no end is recorded."""
    result: RunResult
    """How the run ended, as a RunResult."""
    failure: Optional[str]
    """How the job failed, or None unless the result is FAILED."""
    owner: str
    """The process that ran the job, in the form user@host:pid."""
    token: int
    """The fencing token of the hold."""
    node_path: Optional[str]
    """The path of the first node of the hold, without the client's chroot, or None if the path is not known. The node
    exists only while the run holds its lock.
    """

    def __repr__(self) -> str:
        return f"<zklock.PastRun of {self.period:%Y-%m-%d %H:%M:%S} UTC {self.result.value} by {self.owner}>"


# Give the class its public name.
PastRun.__module__ = "zklock"
