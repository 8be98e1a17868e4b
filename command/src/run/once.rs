//! Explains why a job of `--once-per` does not run. The library decides this.

use jiff::Timestamp;
use zklock::internal::record_path;
use zklock::{PastRun, RunResult};

use crate::clock::timestamp;
use crate::exit::{Exit, Failure};
use crate::owner::printable_line;

/// Returns whether the period of the run has not begun yet. The clock of this host or of the host that wrote the record is
/// then wrong.
pub(crate) fn is_in_future(run: &PastRun, now: Timestamp) -> bool {
    timestamp(run.period) > now
}

/// Explains why a job does not run.
pub(crate) fn skipped(lock: &str, last: &PastRun, now: Timestamp, show: impl Fn(Timestamp) -> String) -> Failure {
    let (owner, began) = (printable_line(&last.owner), show(timestamp(last.started)));
    if is_in_future(last, now) {
        let (record, now) = (record_path(lock), show(now));
        let message = format!(
            "the last run of the job of {lock} is in the future of this host: {owner} began it at {began}, and the clock of this host \
             shows {now}; compare the clocks of both hosts, and if the time of the run is wrong, delete the node {record}"
        );
        return Failure::new(Exit::Busy, message);
    }
    let how = match &last.result {
        RunResult::Succeeded => "succeeded".to_owned(),
        RunResult::Failed(how) => format!("failed with {}; --retry-failed would repeat it", printable_line(how)),
        RunResult::Running => "was interrupted; --retry-failed would repeat it".to_owned(),
    };
    let message =
        format!("the job of {lock} has already run in this period: {owner} began it at {began}, and it {how}");
    Failure::new(Exit::Busy, message)
}
