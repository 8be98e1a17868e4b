//! The verbs `run` and `try`: acquires a lock, runs a command under it, and releases it.
//!
//! Three processes take part. The *wrapper*, this process, has the session. The *guardian* is its child and the parent
//! of the command. The command and everything that it starts are the *tree*. If the wrapper dies, the guardian ends the
//! tree. If the guardian dies, the wrapper ends the tree. If the wrapper is stopped or hangs, the guardian ends the
//! tree before the lease is over.

pub(crate) mod acquire;
mod cgroup;
mod child;
mod guardian;
mod guardian_process;
pub(crate) mod hold;
pub(crate) mod inbox;
mod link;
pub(crate) mod nesting;
mod notify;
mod once;
pub(crate) mod policy;
pub(crate) mod progress;
pub(crate) mod signals;
mod supervise;
mod tree;

use std::cell::Cell;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::json;
use zklock::{Client, Operation, Status};

use self::acquire::AcquireLimit;
use self::guardian::{Guardian, GuardianEvent};
use self::hold::{Hold, Target};
pub(crate) use self::hold::{Mode, paths};
use self::inbox::Inbox;
use self::link::Ending;
use self::nesting::Held;
use self::notify::ServiceManager;
use self::once::Decision;
pub(crate) use self::once::{Record, Run, RunResult, record_path};
use self::policy::Limits;
use self::supervise::{Cause, Outcome, Supervision};
use crate::cli::{JobArguments, OnLost, OnRevoke};
use crate::clock::{BootTime, wall_time};
use crate::console::Console;
use crate::exit::{Exit, Failure};
use crate::owner::{self, Owner};
use crate::process::{self, SavedTerminal};
use crate::schedule::{Schedule, show_time, zone_of_host};
use crate::settings::Settings;
use crate::variables;

/// What one call of `run` or `try` does.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) settings: Settings,
    pub(crate) mode: Mode,
    /// One path, or the paths of a multi-lock.
    pub(crate) paths: Vec<String>,
    /// The command and its arguments, or `None` to release the lock at once.
    pub(crate) command: Option<Vec<OsString>>,
    /// The time limit of the acquire.
    pub(crate) timeout: Option<Duration>,
    pub(crate) options: JobArguments,
}

/// Runs the job and returns why it ended.
pub(crate) fn run(job: &Job, console: &Console) -> Result<Exit, Failure> {
    let held =
        Held::check(std::env::var_os(variables::HELD).as_deref(), &job.settings.servers, &job.paths)?.value(None);
    if job.options.once_per.is_some() && !job.mode.is_exclusive() {
        return Err(Failure::usage(
            "--once-per needs a lock that only one participant can hold: a mutex, -x or --semaphore 1",
        ));
    }
    if job.command.is_some() {
        check_lengths(&job.paths, job.mode, &held)?;
    }
    let zone = match &job.options.time_zone {
        Some(zone) => zone.clone(),
        None if job.options.once_per.is_some() => zone_of_host()?,
        None => TimeZone::UTC,
    };
    let (signals, mask) = signals::block()?;
    let guardian =
        job.command.as_deref().map(|command| Guardian::start(command, mask, job.options.leave_running)).transpose()?;
    let owner = Owner::current(&job.command_name(), job.mode.max_leases());
    let socket = std::env::var_os(notify::SOCKET).filter(|_| job.options.notify);
    let service = ServiceManager::connect(socket.as_deref())?;
    let wrapper = Wrapper {
        job,
        console,
        inbox: Inbox::new(signals)?,
        guardian,
        service,
        owner,
        held,
        zone,
        is_interrupted: Cell::new(false),
    };
    let result = wrapper.run();
    if let Some(guardian) = wrapper.guardian {
        guardian.dismiss();
    }
    result
}

impl Job {
    fn path(&self) -> &str {
        self.paths.first().map_or("", String::as_str)
    }

    /// The name that the user has chosen, or the name of the program, without its directory and arguments.
    fn command_name(&self) -> String {
        if let Some(owner) = &self.options.owner {
            return owner.clone();
        }
        let program = self.command.as_ref().and_then(|command| command.first());
        let name = program.and_then(|program| Path::new(program).file_name());
        name.map_or_else(
            || "zklock".to_owned(),
            |name| name.to_string_lossy().chars().take(owner::MAX_LENGTH).collect(),
        )
    }
}

/// The longest value of a variable. The kernel refuses a program if one of its variables is longer than 128 KiB, with
/// its name.
const LONGEST_VALUE: usize = 128 * 1024 - 32;
/// At least the length of the name of a lock node, with the two separators.
const NODE_NAME: usize = 96;

/// How long `zklock` waits after a signal until a server confirms the beginning of a run.
const BEGIN_LIMIT: Duration = Duration::from_secs(2);
/// The state of a run whose beginning no server has confirmed.
const UNKNOWN: &str = "the run did not start, but it may be in the record and count as interrupted";

/// The number of session timeouts for which `zklock` tries to write the end of a run.
const RECORD_TIMEOUTS: u32 = 3;
/// The time between two of these attempts.
const RECORD_PAUSE: Duration = Duration::from_millis(100);

/// The process that has the session.
struct Wrapper<'a> {
    job: &'a Job,
    console: &'a Console,
    inbox: Inbox,
    guardian: Option<Guardian>,
    service: ServiceManager,
    owner: Owner,
    /// The value of `ZKLOCK_HELD` for the command.
    held: String,
    /// True if a signal has arrived after the end of the command. It ends the wait for the servers, and no other wait
    /// follows.
    is_interrupted: Cell<bool>,
    /// The time zone of the periods of `--once-per`.
    zone: TimeZone,
}

impl Wrapper<'_> {
    fn run(&self) -> Result<Exit, Failure> {
        // With -n, only the lock is not waited for.
        let timeout = self.job.timeout;
        let deadline = timeout.filter(|timeout| !timeout.is_zero()).map(|timeout| BootTime::now() + timeout);
        let wait = |limit| self.wait(limit);
        let client = acquire::connect(&self.job.settings, timeout, self.console, &self.inbox, wait)?;
        let result = self.run_with(&client, deadline);
        // The end of the session also ends all that is left of a failed acquire. After a signal, nothing waits for it.
        if result.is_err() || self.is_interrupted.get() {
            acquire::leave(client);
        } else if let Err(error) = client.close() {
            self.console.step(&format!("closing the session failed: {}", error.message()));
        }
        result
    }

    fn run_with(&self, client: &Client, deadline: Option<BootTime>) -> Result<Exit, Failure> {
        // A grace period that is too long fails before the wait for the lock.
        self.limits(client)?;
        if let Some(schedule) = self.job.options.once_per {
            self.check_runs(client, schedule, deadline)?;
        }
        let target = Target::new(client, self.job.mode, &self.job.paths)?;
        let queued = wall_time();
        target.set_data(&self.owner.data(queued, None))?;
        let is_revoked = Arc::new(AtomicBool::new(false));
        if self.job.options.on_revoke == OnRevoke::Term {
            let (flag, waker) = (Arc::clone(&is_revoked), self.inbox.waker());
            target.set_revocable(move || {
                flag.store(true, Ordering::Relaxed);
                waker.wake();
            })?;
        }
        let (hold, waited) = self.acquire(client, &target, &is_revoked, deadline)?;
        let (acquired, session) = (BootTime::now(), client.session_id()?);
        let Some(guardian) = &self.guardian else {
            // The end of the session releases the lock, and saves a round trip.
            return Ok(after_release(client.close(), Exit::Command(0), self.console));
        };
        // The client may have a new session with another timeout since the first check.
        let limits = self.limits(client)?;
        self.show_hold(client, &hold, queued)?;
        let timeout = client.session_timeout()?;
        let interval = policy::look_interval(timeout);
        if let Some(needed) = limits.lease_before_start(timeout, client.lease_length()?) {
            self.wait_for_lease(&hold, needed, acquired + timeout / 2, interval)?;
        }
        let environment = self.environment(client, &hold, waited)?;
        // After the beginning of the run is in the record, only the end of the run or its removal may follow.
        let record = match self.job.options.once_per {
            Some(schedule) => Some(self.begin_run(client, &hold, schedule)?),
            None => None,
        };
        let supervision = Supervision {
            console: self.console,
            inbox: &self.inbox,
            guardian,
            service: &self.service,
            path: self.job.path(),
            hold: &hold,
            limits,
            interval,
            on_lost: self.job.options.on_lost,
            on_suspend: self.job.options.on_suspend,
            max_hold: self.job.options.max_hold,
            leaves_running: self.job.options.leave_running,
            is_revoked: &is_revoked,
        };
        let terminal = SavedTerminal::save();
        let outcome = supervision.run(environment).map_err(|failure| {
            // The lock must not become free before the command has ended.
            guardian.kill_tree();
            self.named(failure)
        });
        if outcome.as_ref().map_or(true, |outcome| outcome.cause.is_some()) {
            terminal.restore();
        }
        if outcome.as_ref().is_ok_and(|outcome| outcome.is_interrupted) {
            self.is_interrupted.set(true);
        }
        let is_recorded = match record {
            Some(record) => self.finish_run(client, &hold, record, outcome.as_ref())?,
            None => true,
        };
        let exit = exit_of(outcome?);
        if matches!(exit, Exit::Lost | Exit::Suspect) {
            // The end of the session deletes what is left of the hold.
            return Ok(exit);
        }
        self.release(client, &hold, session, if is_recorded { exit } else { unconfirmed(exit) })
    }

    /// Releases the lock after the command has ended. A signal ends the wait for the servers.
    fn release(&self, client: &Client, hold: &Hold, session: i64, exit: Exit) -> Result<Exit, Failure> {
        let released = match hold.start_release() {
            Ok(call) => self.answer_or_signal(call)?,
            Err(error) => Some(Err(error)),
        };
        match released {
            // The lease was valid when the command ended, so the session ended later.
            Some(Err(error)) if error.status() == Status::Lost && client.session_id()? != session => {
                self.console.warn("the session ended after the command, before a server confirmed the release");
                Ok(unconfirmed(exit))
            }
            Some(released) => {
                if released.is_ok() {
                    self.console.event("released", json!({"path": self.job.path()}));
                }
                Ok(after_release(released, exit, self.console))
            }
            None => {
                self.console
                    .warn("a signal ended the wait for the release; the lock is free at the end of the session");
                Ok(unconfirmed(exit))
            }
        }
    }

    /// Adds the name of the command to the failure of its start.
    fn named(&self, failure: Failure) -> Failure {
        if !matches!(failure.exit, Exit::NotFound | Exit::NotExecutable) {
            return failure;
        }
        let program = self.job.command.as_ref().and_then(|command| command.first());
        let program = program.map(|program| program.to_string_lossy()).unwrap_or_default();
        // An unset variable of a shell often causes an empty name, which the message must show.
        let program = if program.is_empty() { "\"\"" } else { &*program };
        Failure::new(failure.exit, format!("cannot run {program}: {}", failure.message))
    }

    fn limits(&self, client: &Client) -> Result<Limits, Failure> {
        let timeout = client.session_timeout()?;
        let limits = Limits::choose(timeout, client.lease_length()?, self.job.options.grace).map_err(|longest| {
            let (longest, timeout) = (longest.as_millis(), timeout.as_millis());
            Failure::usage(format!(
                "--grace is too long: a session timeout of {timeout} ms allows at most {longest} ms; \
                 a longer session.timeout allows more"
            ))
        })?;
        let on_lost = self.job.options.on_lost;
        let loss_grace = if on_lost == OnLost::Kill { Duration::ZERO } else { limits.loss_grace };
        Ok(Limits { loss_grace, enforce: on_lost != OnLost::Ignore, ..limits })
    }

    /// Acquires the lock, and returns the hold and the time waited.
    fn acquire(
        &self,
        client: &Client,
        target: &Target,
        is_revoked: &AtomicBool,
        deadline: Option<BootTime>,
    ) -> Result<(Hold, Duration), Failure> {
        self.service.status(&format!("waiting for {}", self.job.path()));
        let timeout = deadline.map(|deadline| deadline - BootTime::now()).or(self.job.timeout);
        let limit = AcquireLimit { timeout, names_holder: !self.console.is_quiet() };
        let wait = |limit| {
            self.wait(limit)?;
            if is_revoked.load(Ordering::Relaxed) {
                return Err(Failure::new(Exit::Revoked, "another participant asked this one to leave the queue"));
            }
            Ok(())
        };
        let (hold, waited) = acquire::acquire(client, target, &self.job.paths, limit, self.console, &self.inbox, wait)?;
        self.console.step(&format!("acquired {} after {} ms", self.job.path(), waited.as_millis()));
        self.console.event(
            "acquired",
            json!({
                "path": self.job.path(),
                "fence": hold.tokens()?.first(),
                "node": hold.node()?,
                "waited_ms": milliseconds(waited),
            }),
        );
        Ok((hold, waited))
    }

    /// Writes the time of the acquire to the nodes of the hold, for those who wait. The wrapper does not wait for the
    /// servers.
    fn show_hold(&self, client: &Client, hold: &Hold, queued: Timestamp) -> Result<(), Failure> {
        let data = self.owner.data(queued, Some(wall_time()));
        for node in hold.nodes()? {
            // If someone has already asked for the lock, the data of the node says so, and stays.
            drop(client.start_write_node(&node, &node, &data, Some(0))?);
        }
        Ok(())
    }

    /// Waits until the hold is safe for this time, or until `end`.
    fn wait_for_lease(&self, hold: &Hold, needed: Duration, end: BootTime, interval: Duration) -> Result<(), Failure> {
        let is_short = || supervise::is_safe(hold.state()) && hold.remaining() < needed && BootTime::now() < end;
        if is_short() {
            self.console.step("the command starts when the lease leaves enough time for --grace");
        }
        while is_short() {
            self.wait(Some(interval))?;
        }
        Ok(())
    }

    /// Waits until something happens before the command runs. A signal that would end a process ends the wait with a
    /// failure.
    fn wait(&self, limit: Option<Duration>) -> Result<(), Failure> {
        self.inbox.wait(self.guardian.as_ref(), limit)?;
        while let Some(received) = self.inbox.signal()? {
            match received.signal {
                signal if received.is_ending() => return Err(Failure::new(Exit::Signal(signal), "")),
                libc::SIGTSTP if received.is_from_terminal && !process::has_job_control() => {}
                libc::SIGTSTP => {
                    self.console.clear();
                    process::stop_self()?;
                }
                libc::SIGCHLD => self.guardian.iter().for_each(Guardian::keep_running),
                _ => {}
            }
        }
        let event = self.guardian.as_ref().map(Guardian::event).transpose();
        match event.map_err(|error| Failure::system("reading from the guardian", error))?.flatten() {
            Some(GuardianEvent::Died) => Err(Failure::new(Exit::Internal, "the guardian process was killed")),
            _ => Ok(()),
        }
    }

    /// Waits for the answer to a request before the command runs.
    fn answer<T>(&self, call: Operation<T>, deadline: Option<BootTime>) -> Result<T, Failure> {
        self.wait_for(&call, deadline)?;
        Ok(call.wait()?)
    }

    /// Waits until a request is over. The deadline, or a signal that would end a process, ends the wait with a failure.
    fn wait_for<T>(&self, call: &Operation<T>, deadline: Option<BootTime>) -> Result<(), Failure> {
        let waker = self.inbox.waker();
        call.on_done(move || waker.wake())?;
        while !call.is_over() {
            let left = deadline.map(|deadline| deadline - BootTime::now());
            if left == Some(Duration::ZERO) {
                return Err(Failure::new(Exit::Unavailable, "no server has answered within the time of -w"));
            }
            self.wait(left)?;
        }
        Ok(())
    }

    /// Waits for the answer to a request after the command has ended. Returns `None` if a signal that would end a
    /// process arrives first.
    fn answer_or_signal<T>(&self, call: Operation<T>) -> Result<Option<zklock::Result<T>>, Failure> {
        let waker = self.inbox.waker();
        call.on_done(move || waker.wake())?;
        while !call.is_over() {
            if self.is_interrupted.get() || self.pause(None)? {
                self.is_interrupted.set(true);
                return Ok(None);
            }
        }
        Ok(Some(call.wait()))
    }

    /// Waits after the command has ended, until something happens. Returns whether a signal has arrived that would end
    /// a process.
    fn pause(&self, limit: Option<Duration>) -> Result<bool, Failure> {
        self.inbox.wait(None, limit)?;
        let mut is_ending = false;
        while let Some(received) = self.inbox.signal()? {
            is_ending |= received.is_ending();
        }
        Ok(is_ending)
    }

    fn environment(&self, client: &Client, hold: &Hold, waited: Duration) -> Result<Vec<(String, OsString)>, Failure> {
        let variables = Variables::new(client, hold, &self.job.paths, self.job.mode, &self.owner, waited, &self.held)?;
        Ok(variables.iter().map(|(name, value)| (name.to_owned(), value.into())).collect())
    }

    /// Fails if the job has already ended in this period. The check needs no lock and writes nothing. A run that has
    /// not ended says nothing yet.
    fn check_runs(&self, client: &Client, schedule: Schedule, deadline: Option<BootTime>) -> Result<(), Failure> {
        let (record, period) = (self.read_record(client, deadline)?, self.period(wall_time(), schedule)?);
        match record.decide(period, self.job.options.retry_failed) {
            Decision::Skip(last) if last.result != RunResult::Running => Err(self.skipped(last)),
            _ => Ok(()),
        }
    }

    /// Decides whether the job runs in this period, and writes the beginning of the run.
    fn begin_run(&self, client: &Client, hold: &Hold, schedule: Schedule) -> Result<Record, Failure> {
        let now = wall_time();
        let period = self.period(now, schedule)?;
        loop {
            let mut record = self.read_record(client, None)?;
            if let Decision::Skip(last) = record.decide(period, self.job.options.retry_failed) {
                return Err(self.skipped(last));
            }
            self.check_unfinished(client, &record)?;
            let node = hold.node()?;
            let run = Run {
                period,
                started: now,
                ended: None,
                result: RunResult::Running,
                owner: self.owner.name(),
                token: hold.tokens()?.first().copied().unwrap_or_default(),
                node: Some(node.clone()),
            };
            let writing = record.begin(client, &node, run)?;
            let interrupted = self.wait_for(&writing, None).and_then(|()| self.wait(Some(Duration::ZERO)));
            // After a signal, the wait is short. The next step depends on whether the servers have performed the write.
            let limit = if interrupted.is_ok() { Duration::MAX } else { BEGIN_LIMIT };
            let no_answer = || Err(Status::Connection.into());
            let written = writing.wait_for(limit).unwrap_or_else(no_answer);
            if let Ok(Some(version)) = written {
                record.on_begun(version);
            }
            match (written, interrupted) {
                (Ok(Some(_)), Ok(())) => return Ok(record),
                (Ok(Some(_)), Err(failure)) => {
                    self.take_back(client, &node, record)?;
                    return Err(failure);
                }
                (Err(error), Err(failure)) if error.status() == Status::Connection => {
                    self.console.warn(UNKNOWN);
                    return Err(failure);
                }
                (_, Err(failure)) => return Err(failure),
                (Err(error), Ok(())) if error.status() == Status::Connection => {
                    return Err(Failure::new(Exit::Unavailable, format!("{}; {UNKNOWN}", error.message())));
                }
                (Err(error), Ok(())) => return Err(error.into()),
                // If someone has changed the record although this process holds the lock, the decision is made again.
                (Ok(None), Ok(())) => {}
            }
        }
    }

    /// Fails if the last run has not ended and still holds its lock. Its lock is then of another kind, because this
    /// process also holds a lock of the path.
    fn check_unfinished(&self, client: &Client, record: &Record) -> Result<(), Failure> {
        let Some((last, node)) = record.unfinished().and_then(|last| Some((last, last.node.as_deref()?))) else {
            return Ok(());
        };
        if self.answer(client.start_read_node(node)?, None)?.is_none() {
            return Ok(());
        }
        let message = format!(
            "{} still runs the job of {} under another kind of lock ({node}); use the same kind of lock in all calls",
            last.owner,
            self.job.path()
        );
        Err(Failure::new(Exit::Foreign, message))
    }

    /// Removes a run that never started from the record, so that the job can still run in this period.
    fn take_back(&self, client: &Client, hold_node: &str, mut record: Record) -> Result<(), Failure> {
        let why = match record.take_back(client, hold_node).map(|call| self.answer_or_signal(call)) {
            Ok(answered) => match answered? {
                Some(Ok(Some(_))) => return Ok(()),
                Some(Ok(None)) => "another program has changed the record".to_owned(),
                Some(Err(error)) => error.message().to_owned(),
                None => "a signal ended the wait for the servers".to_owned(),
            },
            Err(error) => error.message().to_owned(),
        };
        self.console.warn(&format!("the command did not start, but its run may count as interrupted: {why}"));
        Ok(())
    }

    fn read_record(&self, client: &Client, deadline: Option<BootTime>) -> Result<Record, Failure> {
        let path = record_path(self.job.path());
        let node = self.answer(client.start_read_node(&path)?, deadline)?;
        Record::parse(path, node.as_ref())
    }

    fn period(&self, now: Timestamp, schedule: Schedule) -> Result<Timestamp, Failure> {
        if now == Timestamp::MAX {
            return Err(Failure::new(Exit::Internal, "the clock of this host shows a time after the year 9999"));
        }
        schedule.period_start(now, &self.zone).map_err(|error| Failure::system("finding the period", error))
    }

    fn skipped(&self, last: &Run) -> Failure {
        once::skipped(self.job.path(), last, wall_time(), |time| show_time(time, &self.zone))
    }

    /// Writes the end of the run, and returns whether the record is right. If the lock was lost before the command
    /// ended, the run stays in the record as interrupted.
    fn finish_run(
        &self,
        client: &Client,
        hold: &Hold,
        mut record: Record,
        outcome: Result<&Outcome, &Failure>,
    ) -> Result<bool, Failure> {
        if outcome.is_ok_and(|outcome| outcome.is_lost) {
            return Ok(true);
        }
        let node = match hold.node() {
            Ok(node) => node,
            Err(error) => {
                self.console.warn(&format!("the end of this run is not in the record: {}", error.message()));
                return Ok(false);
            }
        };
        let result = match outcome {
            Ok(Outcome { ending: Some(Ending::Code(0)), cause: None, .. }) => RunResult::Succeeded,
            Ok(Outcome { ending: Some(Ending::Code(code)), .. }) => RunResult::Failed(format!("exit code {code}")),
            Ok(Outcome { ending: Some(Ending::Signal(signal)), .. }) => RunResult::Failed(signals::name(*signal)),
            Ok(_) => RunResult::Failed("no exit code".to_owned()),
            // The supervision fails in these ways only before the command has started.
            Err(Failure { exit: Exit::NotFound | Exit::NotExecutable | Exit::Lost, .. }) => {
                self.take_back(client, &node, record)?;
                return Ok(true);
            }
            Err(failure) => RunResult::Failed(failure.message.clone()),
        };
        let (ended, give_up) = (wall_time(), BootTime::now() + client.session_timeout()? * RECORD_TIMEOUTS);
        let why = loop {
            let written = match record.finish(client, &node, ended, result.clone()) {
                Ok(call) => self.answer_or_signal(call)?,
                Err(error) => Some(Err(error)),
            };
            match written {
                Some(Ok(Some(_))) => return Ok(true),
                // An earlier write whose answer was lost may have succeeded.
                Some(Ok(None)) => match self.is_written(client, &record)? {
                    Some(true) => return Ok(true),
                    Some(false) => break "another program has changed the record".to_owned(),
                    None if BootTime::now() > give_up => break "no server has answered in time".to_owned(),
                    None => {}
                },
                None => break "a signal ended the wait for the servers".to_owned(),
                Some(Err(error)) if error.status() != Status::Connection || BootTime::now() > give_up => {
                    break error.message().to_owned();
                }
                Some(Err(_)) if self.pause(Some(RECORD_PAUSE))? => {
                    self.is_interrupted.set(true);
                    break "a signal ended the wait for the servers".to_owned();
                }
                Some(Err(_)) => {}
            }
        };
        self.console.warn(&format!("the end of this run is not in the record: {why}"));
        Ok(false)
    }

    /// Returns whether the servers have the record with this run, or `None` if they do not answer.
    fn is_written(&self, client: &Client, record: &Record) -> Result<Option<bool>, Failure> {
        let path = record_path(self.job.path());
        let node = self.answer_or_signal(client.start_read_node(&path)?)?;
        let Some(Ok(node)) = node else { return Ok(None) };
        Ok(Some(Record::parse(path, node.as_ref()).is_ok_and(|written| written.has_same_run(record))))
    }
}

/// Fails if a variable would be so long that the kernel does not start the command.
pub(crate) fn check_lengths(paths: &[String], mode: Mode, held: &str) -> Result<(), Failure> {
    let nodes_of_each =
        if let Mode::Semaphore { quantity, .. } = mode { usize::try_from(quantity).unwrap_or(1) } else { 1 };
    let node_lengths = paths.iter().map(|path| path.len().saturating_add(NODE_NAME).saturating_mul(nodes_of_each));
    let lengths = [("ZKLOCK_NODE", node_lengths.fold(0, usize::saturating_add)), (variables::HELD, held.len())];
    for (name, length) in lengths {
        if length > LONGEST_VALUE {
            return Err(Failure::usage(format!(
                "the paths are too long: the variable {name} of the command would have {length} bytes; \
                 at most {LONGEST_VALUE} are possible"
            )));
        }
    }
    Ok(())
}

/// The variables that describe a hold to the programs that run under it.
#[derive(Debug)]
pub(crate) struct Variables([String; 8]);

impl Variables {
    pub(crate) fn new(
        client: &Client,
        hold: &Hold,
        paths: &[String],
        mode: Mode,
        owner: &Owner,
        waited: Duration,
        held: &str,
    ) -> Result<Self, Failure> {
        let tokens: Vec<String> = hold.tokens()?.iter().map(i64::to_string).collect();
        Ok(Self([
            paths.join("\n"),
            hold.nodes()?.join("\n"),
            mode.name().to_owned(),
            tokens.join("\n"),
            format!("0x{:x}", client.session_id()?),
            owner.name(),
            milliseconds(waited).to_string(),
            held.to_owned(),
        ]))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        variables::OF_HOLD.into_iter().zip(self.0.iter().map(String::as_str))
    }
}

/// Chooses the exit code from the end of the command.
fn exit_of(outcome: Outcome) -> Exit {
    match outcome {
        Outcome { cause: Some(Cause::Lost), .. } => Exit::Lost,
        Outcome { is_lost: true, .. } => Exit::Suspect,
        Outcome { cause: Some(Cause::Revoked), .. } => Exit::Revoked,
        Outcome { ending: Some(Ending::Code(code)), .. } => Exit::Command(code),
        Outcome { ending: Some(Ending::Signal(signal)), .. } => Exit::Signal(signal),
        Outcome { ending: None, .. } => Exit::Internal,
    }
}

/// Chooses the exit code after the release. A failed release does not hide the failure of the command.
pub(crate) fn after_release(released: zklock::Result<()>, exit: Exit, console: &Console) -> Exit {
    let Err(error) = released else { return exit };
    match error.status() {
        Status::Lost if matches!(exit, Exit::Lost | Exit::Suspect) => exit,
        Status::Lost => {
            console.warn("the lock was lost before the command ended, so its work is not certain");
            Exit::Suspect
        }
        _ => {
            console.warn(&format!("the release is not confirmed, but the session ends soon: {}", error.message()));
            unconfirmed(exit)
        }
    }
}

/// Chooses the exit code if a server did not confirm the end. This does not hide the failure of the command.
fn unconfirmed(exit: Exit) -> Exit {
    if exit == Exit::Command(0) { Exit::Unconfirmed } else { exit }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
