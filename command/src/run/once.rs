//! The record of past runs, for `--once-per`. The record is the data of the node `<path>-runs`, beside the directory of
//! the lock. No lock recipe reads this node, because the contenders of a lock are the children of its directory.
//!
//! A run writes to the record when it begins and when it ends. Both writes depend on the version that the run has read
//! and on the node of its hold, so a program that has lost the lock cannot change the record.

use jiff::Timestamp;
use serde_json::{Value, json};
use zklock::{Client, NodeContent, Operation, Result as ZkResult};

use crate::exit::{Exit, Failure};

/// The number of runs in a record.
const KEPT: usize = 10;

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RunResult {
    /// The run has not ended, or the program that ran it died.
    Running,
    /// The command ended with exit code 0.
    Succeeded,
    /// The command failed. The text says how, for example `exit code 3`.
    Failed(String),
}

/// One run of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    /// The beginning of the period.
    pub(crate) period: Timestamp,
    pub(crate) started: Timestamp,
    pub(crate) ended: Option<Timestamp>,
    pub(crate) result: RunResult,
    /// The participant that ran the job.
    pub(crate) owner: String,
    /// The fencing token of the hold.
    pub(crate) token: i64,
    /// The first node of the hold. Records of earlier versions do not contain it.
    pub(crate) node: Option<String>,
}

/// What to do about a job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision<'a> {
    Run,
    /// The job has already run in this period or in a later one.
    Skip(&'a Run),
}

/// The record of one path.
#[derive(Debug)]
pub(crate) struct Record {
    path: String,
    /// The runs, from the newest to the oldest.
    runs: Vec<Run>,
    /// The version of the node, or `None` if there is no node.
    version: Option<i32>,
}

impl Record {
    /// Makes the record from the content of its node.
    pub(crate) fn parse(path: String, node: Option<&NodeContent>) -> Result<Self, Failure> {
        let Some(node) = node else { return Ok(Self { path, runs: Vec::new(), version: None }) };
        let runs = parse_runs(&node.data).ok_or_else(|| {
            Failure::usage(format!("the node {path} is no record of runs; delete it, or use another path for the lock"))
        })?;
        Ok(Self { path, runs, version: Some(node.version) })
    }

    /// The runs, from the newest to the oldest.
    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Decides whether the job runs in the period that begins at `period`. The caller must hold the lock: a run that
    /// has not ended was then interrupted.
    pub(crate) fn decide(&self, period: Timestamp, retry_failed: bool) -> Decision<'_> {
        match self.runs.first() {
            Some(last) if last.period < period => Decision::Run,
            Some(last) if retry_failed && last.period == period && last.result != RunResult::Succeeded => Decision::Run,
            Some(last) => Decision::Skip(last),
            None => Decision::Run,
        }
    }

    /// Returns the newest run if it has not ended.
    pub(crate) fn unfinished(&self) -> Option<&Run> {
        self.runs.first().filter(|last| last.result == RunResult::Running)
    }

    /// Starts writing the beginning of a run. The result is the version for [`on_begun`](Self::on_begun), or `None` if
    /// another program has changed the record.
    pub(crate) fn begin(&mut self, client: &Client, hold_node: &str, run: Run) -> ZkResult<Operation<Option<i32>>> {
        self.runs.insert(0, run);
        self.write(client, hold_node)
    }

    /// Records that the servers have written the beginning of a run, as this version of the node.
    pub(crate) fn on_begun(&mut self, version: i32) {
        self.version = Some(version);
    }

    /// Starts writing the end of the run that has begun. The result is `None` if another program has changed the
    /// record.
    pub(crate) fn finish(
        &mut self,
        client: &Client,
        hold_node: &str,
        ended: Timestamp,
        result: RunResult,
    ) -> ZkResult<Operation<Option<i32>>> {
        if let Some(run) = self.runs.first_mut() {
            (run.ended, run.result) = (Some(ended), result);
        }
        self.write(client, hold_node)
    }

    /// Returns whether this record has the same newest run as another one.
    pub(crate) fn has_same_run(&self, other: &Self) -> bool {
        self.runs.first() == other.runs.first()
    }

    /// Starts removing the run that has begun, because its command never started. The result is `None` if another
    /// program has changed the record.
    pub(crate) fn take_back(&mut self, client: &Client, hold_node: &str) -> ZkResult<Operation<Option<i32>>> {
        self.runs.drain(..self.runs.len().min(1));
        self.write(client, hold_node)
    }

    fn write(&self, client: &Client, hold_node: &str) -> ZkResult<Operation<Option<i32>>> {
        let runs: Vec<Value> = self.runs.iter().take(KEPT).map(Run::to_json).collect();
        let data = json!({"zklock_runs": runs}).to_string();
        client.start_write_node(hold_node, &self.path, data.as_bytes(), self.version)
    }
}

/// Returns the path of the record for a lock.
pub(crate) fn record_path(lock: &str) -> String {
    format!("{lock}-runs")
}

impl Run {
    /// Returns whether the period of the run has not begun yet. The clock of this host or of the host that wrote the
    /// record is then wrong.
    pub(crate) fn is_in_future(&self, now: Timestamp) -> bool {
        self.period > now
    }

    pub(crate) fn to_json(&self) -> Value {
        let (result, detail) = match &self.result {
            RunResult::Running => ("running", None),
            RunResult::Succeeded => ("succeeded", None),
            RunResult::Failed(how) => ("failed", Some(how)),
        };
        json!({
            "period": format!("{:.0}", self.period),
            "started": format!("{:.3}", self.started),
            "ended": self.ended.map(|ended| format!("{ended:.3}")),
            "result": result,
            "detail": detail,
            "owner": self.owner,
            "token": self.token,
            "node": self.node,
        })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let text = |name: &str| value.get(name)?.as_str();
        let time = |name: &str| text(name)?.parse::<Timestamp>().ok();
        Some(Self {
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
            node: text("node").map(str::to_owned),
        })
    }
}

fn parse_runs(data: &[u8]) -> Option<Vec<Run>> {
    let record: Value = serde_json::from_slice(data).ok()?;
    record.get("zklock_runs")?.as_array()?.iter().map(Run::from_json).collect()
}

/// Explains why a job does not run.
pub(crate) fn skipped(lock: &str, last: &Run, now: Timestamp, show: impl Fn(Timestamp) -> String) -> Failure {
    if last.is_in_future(now) {
        let (owner, record, began, now) = (&last.owner, record_path(lock), show(last.started), show(now));
        let message = format!(
            "the last run of the job of {lock} is in the future of this host: {owner} began it at {began}, and the clock of this host \
             shows {now}; compare the clocks of both hosts, and if the time of the run is wrong, delete the node {record}"
        );
        return Failure::new(Exit::Busy, message);
    }
    let how = match &last.result {
        RunResult::Succeeded => "succeeded".to_owned(),
        RunResult::Failed(how) => format!("failed with {how}; --retry-failed would repeat it"),
        RunResult::Running => "was interrupted; --retry-failed would repeat it".to_owned(),
    };
    let message = format!(
        "the job of {lock} has already run in this period: {} began it at {}, and it {how}",
        last.owner,
        show(last.started)
    );
    Failure::new(Exit::Busy, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(period: i64, result: RunResult) -> Run {
        let time = |second| Timestamp::from_second(second).unwrap();
        let ended = (result != RunResult::Running).then(|| time(period + 9));
        let (owner, node) = ("u@h:1".to_owned(), Some("/x/lock-0".to_owned()));
        Run { period: time(period), started: time(period + 5), ended, result, owner, token: 42, node }
    }

    fn record(runs: Vec<Run>) -> Record {
        Record { path: "/x-runs".to_owned(), runs, version: Some(0) }
    }

    #[test]
    fn a_job_runs_once_in_a_period_and_again_only_if_it_failed_and_the_user_asks() {
        let period = Timestamp::from_second(3600).unwrap();
        let failed = || RunResult::Failed("exit code 3".to_owned());
        assert_eq!(record(vec![]).decide(period, false), Decision::Run);
        for (last, retry, runs) in [
            (run(0, RunResult::Succeeded), false, true),
            (run(3600, RunResult::Succeeded), true, false),
            (run(3600, failed()), false, false),
            (run(3600, failed()), true, true),
            (run(3600, RunResult::Running), false, false),
            (run(3600, RunResult::Running), true, true),
            (run(7200, failed()), true, false),
        ] {
            let record = record(vec![last]);
            assert_eq!(record.decide(period, retry) == Decision::Run, runs, "{record:?}");
        }
    }

    #[test]
    fn a_run_in_the_future_is_explained() {
        let now = Timestamp::from_second(3600).unwrap();
        let message = |period| skipped("/x", &run(period, RunResult::Succeeded), now, |time| time.to_string()).message;
        assert!(message(3600).contains("has already run in this period"));
        let future = message(7200);
        assert!(future.contains("u@h:1 began it at 1970-01-01T02:00:05Z") && future.ends_with("/x-runs"), "{future}");
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for result in [RunResult::Running, RunResult::Succeeded, RunResult::Failed("SIGTERM".to_owned())] {
            let run = run(86_400, result);
            assert_eq!(Run::from_json(&run.to_json()), Some(run));
        }
        for foreign in [&b""[..], b"[]", b"10.0.0.1", br#"{"zklock_runs": [{}]}"#] {
            assert_eq!(parse_runs(foreign), None);
        }
    }
}
