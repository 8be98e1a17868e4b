//! The record of past runs. The record is the data of the node `<path>-runs`, beside the directory of the lock. No lock
//! recipe reads this node, because the contenders of a lock are the children of its directory. This file sends no
//! requests and uses no clock.

use std::time::SystemTime;

use jiff::Timestamp;
use serde_json::{Value, json};
use zklock_core::error::{Error, Result};
use zklock_core::recipe::NodeContent;

use super::period::timestamp;

/// The number of runs in a record.
const KEPT: usize = 10;
/// The greatest number of characters of a failure in a record.
const LONGEST_FAILURE: usize = 1000;

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunResult {
    /// The run has not ended, or the program that ran it died.
    Running,
    /// The job succeeded.
    Succeeded,
    /// The job failed. The text says how, for example `exit code 3`.
    Failed(String),
}

/// One run of a job, as the record contains it ([`Client::past_runs`](crate::Client::past_runs)).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PastRun {
    /// The beginning of the period.
    pub period: SystemTime,
    /// The beginning of the run, according to the clock of the host that ran it.
    pub started: SystemTime,
    /// The end of the run, or `None` if no end is recorded.
    pub ended: Option<SystemTime>,
    /// How the run ended.
    pub result: RunResult,
    /// The process that ran the job, in the form `user@host:pid`.
    pub owner: String,
    /// The fencing token of the hold.
    pub token: i64,
    /// The first node of the hold. The node exists only while the run holds its lock.
    pub node_path: Option<String>,
}

/// The record of one path.
#[derive(Debug, Clone)]
pub(super) struct Record {
    path: String,
    /// The runs, from the newest to the oldest.
    runs: Vec<PastRun>,
    /// The version of the node, or `None` if there is no node.
    version: Option<i32>,
}

impl Record {
    /// Makes the record from the content of its node. Fails with INVALID if the node contains other data.
    pub(super) fn parse(path: &str, node: Option<NodeContent>) -> Result<Self> {
        let path = path.to_owned();
        let Some(node) = node else { return Ok(Self { path, runs: Vec::new(), version: None }) };
        let runs = parse_runs(&node.data).ok_or_else(|| {
            Error::invalid(format!("the node {path} is no record of runs; delete it, or use another path for the lock"))
        })?;
        Ok(Self { path, runs, version: Some(node.version) })
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn version(&self) -> Option<i32> {
        self.version
    }

    /// The runs, from the newest to the oldest.
    pub(super) fn runs(&self) -> &[PastRun] {
        &self.runs
    }

    pub(super) fn into_runs(self) -> Vec<PastRun> {
        self.runs
    }

    /// Returns the newest run if it has not ended.
    pub(super) fn unfinished(&self) -> Option<&PastRun> {
        self.runs.first().filter(|last| last.result == RunResult::Running)
    }

    /// Adds a run that begins.
    pub(super) fn begin(&mut self, run: PastRun) {
        self.runs.insert(0, run);
    }

    /// Keeps the version with which the servers have written the record.
    pub(super) fn set_version(&mut self, version: i32) {
        self.version = Some(version);
    }

    /// Sets the end of the newest run.
    pub(super) fn finish(&mut self, ended: SystemTime, result: RunResult) {
        if let Some(run) = self.runs.first_mut() {
            (run.ended, run.result) = (Some(ended), result);
        }
    }

    /// Removes the newest run, because it never started.
    pub(super) fn take_back(&mut self) {
        self.runs.drain(..self.runs.len().min(1));
    }

    /// Returns whether this record has the same newest run as another one.
    pub(super) fn has_same_run(&self, other: &Self) -> bool {
        self.runs.first() == other.runs.first()
    }

    /// The data of the node.
    pub(super) fn data(&self) -> Vec<u8> {
        let runs: Vec<Value> = self.runs.iter().take(KEPT).map(past_run_json).collect();
        json!({"zklock_runs": runs}).to_string().into_bytes()
    }
}

/// Returns the last run if the job does not run in the period that begins at `period`, because it has already run in this
/// period or in a later one. If the caller holds the lock, a run that has not ended was interrupted.
pub fn counting_run(runs: &[PastRun], period: SystemTime, retry_failed: bool) -> Option<&PastRun> {
    let last = runs.first()?;
    let may_repeat = retry_failed && last.period == period && last.result != RunResult::Succeeded;
    (last.period >= period && !may_repeat).then_some(last)
}

/// Returns the path of the record for a lock.
pub fn record_path(lock: &str) -> String {
    format!("{lock}-runs")
}

/// Returns the failure of a run, with at most 1,000 characters.
pub(super) fn failure(how: &str) -> RunResult {
    RunResult::Failed(how.chars().take(LONGEST_FAILURE).collect())
}

/// Returns a run in the form of the record.
pub fn past_run_json(run: &PastRun) -> Value {
    let (result, detail) = match &run.result {
        RunResult::Running => ("running", None),
        RunResult::Succeeded => ("succeeded", None),
        RunResult::Failed(how) => ("failed", Some(how)),
    };
    // All times come from a clock or a record, whose values fit.
    let time = |time| timestamp(time).unwrap_or(Timestamp::MAX);
    json!({
        "period": format!("{:.0}", time(run.period)),
        "started": format!("{:.3}", time(run.started)),
        "ended": run.ended.map(|ended| format!("{:.3}", time(ended))),
        "result": result,
        "detail": detail,
        "owner": run.owner,
        "token": run.token,
        "node": run.node_path,
    })
}

fn parse_run(value: &Value) -> Option<PastRun> {
    let text = |name: &str| value.get(name)?.as_str();
    let time = |name: &str| text(name)?.parse::<Timestamp>().ok().map(SystemTime::from);
    Some(PastRun {
        period: time("period")?,
        started: time("started")?,
        ended: time("ended"),
        result: match text("result")? {
            "running" => RunResult::Running,
            "succeeded" => RunResult::Succeeded,
            "failed" => RunResult::Failed(text("detail").unwrap_or_default().to_owned()),
            _ => return None,
        },
        owner: text("owner")?.to_owned(),
        token: value.get("token")?.as_i64()?,
        // Records of earlier versions do not contain the node.
        node_path: text("node").map(str::to_owned),
    })
}

fn parse_runs(data: &[u8]) -> Option<Vec<PastRun>> {
    let record: Value = serde_json::from_slice(data).ok()?;
    record.get("zklock_runs")?.as_array()?.iter().map(parse_run).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(second)
    }

    fn run(period: u64, result: RunResult) -> PastRun {
        let ended = (result != RunResult::Running).then(|| at(period + 9));
        let (owner, node_path) = ("u@h:1".to_owned(), Some("/x/lock-0".to_owned()));
        PastRun { period: at(period), started: at(period + 5), ended, result, owner, token: 42, node_path }
    }

    fn record(runs: Vec<PastRun>) -> Record {
        Record { path: "/x-runs".to_owned(), runs, version: Some(0) }
    }

    #[test]
    fn a_job_runs_once_in_a_period_and_again_only_if_it_failed_and_the_user_asks() {
        let failed = || RunResult::Failed("exit code 3".to_owned());
        assert_eq!(counting_run(&[], at(3600), false), None);
        for (last, retry, runs) in [
            (run(0, RunResult::Succeeded), false, true),
            (run(3600, RunResult::Succeeded), true, false),
            (run(3600, failed()), false, false),
            (run(3600, failed()), true, true),
            (run(3600, RunResult::Running), false, false),
            (run(3600, RunResult::Running), true, true),
            (run(7200, failed()), true, false),
        ] {
            assert_eq!(counting_run(std::slice::from_ref(&last), at(3600), retry).is_none(), runs, "{last:?}");
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for result in [RunResult::Running, RunResult::Succeeded, RunResult::Failed("SIG\nTERM\0\"".to_owned())] {
            let runs = vec![run(86_400, result), run(0, RunResult::Succeeded)];
            assert_eq!(parse_runs(&record(runs.clone()).data()), Some(runs));
        }
        for foreign in [&b""[..], b"[]", b"10.0.0.1", br#"{"zklock_runs": [{}]}"#, b"\xff"] {
            assert_eq!(parse_runs(foreign), None);
        }
        let other = br#"{"zklock_runs":[{"detail":null,"ended":null,"owner":"u@h:1","period":"1970-01-01T01:00:00Z","result":"running","started":"1970-01-01T01:00:05.000Z","token":42}]}"#;
        let expected = PastRun { node_path: None, ..run(3600, RunResult::Running) };
        assert_eq!(parse_runs(other), Some(vec![expected]), "a record of an earlier version of the command");
    }

    #[test]
    fn a_record_has_a_limited_size() {
        let runs = (0..50).map(|period| run(period, failure(&"ä".repeat(100_000)))).collect();
        let data = record(runs).data();
        assert_eq!(parse_runs(&data).map(|runs| runs.len()), Some(KEPT));
        assert!(data.len() < 30_000, "{}", data.len());
    }
}
