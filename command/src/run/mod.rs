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
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::json;
use zklock::internal::{counting_run, period_zone};
use zklock::{Client, Operation, PastRun, Period, Run, RunResult, RunStart, Status};

use self::acquire::AcquireLimit;
use self::guardian::{Guardian, GuardianEvent};
use self::hold::{Hold, Target};
pub(crate) use self::hold::{Mode, paths};
use self::inbox::Inbox;
use self::link::Ending;
use self::nesting::Held;
use self::notify::ServiceManager;
pub(crate) use self::once::is_in_future;
use self::policy::Limits;
use self::supervise::{Cause, Outcome, Supervision};
use crate::cli::{JobArguments, OnLost, OnRevoke};
use crate::clock::{BootTime, show_time, wall_time};
use crate::console::Console;
use crate::exit::{Exit, Failure};
use crate::owner::{self, Owner};
use crate::process::{self, SavedTerminal};
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
    let period = match (job.options.once_per.clone(), &job.options.time_zone) {
        (Some(period), Some(zone)) => Some(period.in_zone(zone)?),
        (period, _) => period,
    };
    // An unknown zone in the variable TZ fails before the wait for the lock.
    let zone = period.as_ref().map_or(Ok(TimeZone::UTC), period_zone)?;
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
        period,
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
    /// The period of `--once-per`.
    period: Option<Period>,
    /// The time zone of the period.
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
        if let Some(period) = &self.period {
            self.check_runs(client, period, deadline)?;
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
        let run = self.period.as_ref().map(|period| self.begin_run(&hold, period)).transpose()?;
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
        let is_recorded = match &run {
            Some(run) => self.finish_run(run, outcome.as_ref())?,
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
            if self.is_interrupted.get() || self.pause()? {
                self.is_interrupted.set(true);
                return Ok(None);
            }
        }
        Ok(Some(call.wait()))
    }

    /// Waits after the command has ended, until something happens. Returns whether a signal has arrived that would end
    /// a process.
    fn pause(&self) -> Result<bool, Failure> {
        self.inbox.wait(None, None)?;
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
    fn check_runs(&self, client: &Client, period: &Period, deadline: Option<BootTime>) -> Result<(), Failure> {
        let runs = self.answer(client.start_past_runs(self.job.path())?, deadline)?;
        match counting_run(&runs, period.start(SystemTime::now())?, self.job.options.retry_failed) {
            Some(last) if last.result != RunResult::Running => Err(self.skipped(last)),
            _ => Ok(()),
        }
    }

    /// Decides whether the job runs in this period, and writes the beginning of the run.
    fn begin_run(&self, hold: &Hold, period: &Period) -> Result<Run, Failure> {
        let beginning = hold.start_begin_run(period, self.job.options.retry_failed)?;
        let interrupted = self.wait_for(&beginning, None).and_then(|()| self.wait(Some(Duration::ZERO)));
        let Err(failure) = interrupted else {
            return match beginning.wait()? {
                RunStart::Run(run) => Ok(run),
                RunStart::Skip(last) => Err(self.skipped(&last)),
            };
        };
        // After a signal, the wait is short. The next step depends on whether the servers have performed the write.
        beginning.cancel()?;
        match beginning.wait_for(BEGIN_LIMIT) {
            Some(Ok(RunStart::Run(run))) => self.take_back(&run)?,
            Some(Err(error)) if error.status() == Status::Connection => self.console.warn(UNKNOWN),
            None => self.console.warn(UNKNOWN),
            Some(_) => {}
        }
        Err(failure)
    }

    /// Removes a run that never started from the record, so that the job can still run in this period.
    fn take_back(&self, run: &Run) -> Result<(), Failure> {
        if let Some(why) = self.end_run(run.start_take_back())? {
            self.console.warn(&format!("the command did not start, but its run may count as interrupted: {why}"));
        }
        Ok(())
    }

    fn skipped(&self, last: &PastRun) -> Failure {
        once::skipped(self.job.path(), last, wall_time(), |time| show_time(time, &self.zone))
    }

    /// Writes the end of the run, and returns whether the record is right. If the lock was lost before the command
    /// ended, the run stays in the record as interrupted.
    fn finish_run(&self, run: &Run, outcome: Result<&Outcome, &Failure>) -> Result<bool, Failure> {
        let failure = match outcome {
            Ok(outcome) if outcome.is_lost => return Ok(true),
            Ok(Outcome { ending: Some(Ending::Code(0)), cause: None, .. }) => None,
            Ok(Outcome { ending: Some(Ending::Code(code)), .. }) => Some(format!("exit code {code}")),
            Ok(Outcome { ending: Some(Ending::Signal(signal)), .. }) => Some(signals::name(*signal)),
            Ok(_) => Some("no exit code".to_owned()),
            // The supervision fails in these ways only before the command has started.
            Err(Failure { exit: Exit::NotFound | Exit::NotExecutable | Exit::Lost, .. }) => {
                self.take_back(run)?;
                return Ok(true);
            }
            Err(failure) => Some(failure.message.clone()),
        };
        let why = self.end_run(run.start_finish(failure.as_deref()))?;
        if let Some(why) = &why {
            self.console.warn(&format!("the end of this run is not in the record: {why}"));
        }
        Ok(why.is_none())
    }

    /// Waits until the end of a run is in the record. Returns why it may not be there.
    fn end_run(&self, ending: zklock::Result<Operation<()>>) -> Result<Option<String>, Failure> {
        let ended = match ending {
            Ok(call) => self.answer_or_signal(call)?,
            Err(error) => Some(Err(error)),
        };
        Ok(match ended {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(error.message().to_owned()),
            None => Some("a signal ended the wait for the servers".to_owned()),
        })
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
