//! The holder process: acquires the lock, reports it, keeps it, and releases it.

use std::fs::{File, OpenOptions};
use std::time::Duration;

use rustix::termios::isatty;
use zklock::{Client, LockState, Operation, Status};

use super::bound::Bound;
use super::report::{Caller, to_json, unprinted};
use super::shell;
use crate::cli::HoldArguments;
use crate::clock::{BootTime, wall_time};
use crate::console::{Console, Verbosity};
use crate::exit::{Exit, Failure};
use crate::owner::Owner;
use crate::run::acquire::{AcquireLimit, acquire, connect, leave};
use crate::run::hold::{Hold, Mode, Target};
use crate::run::inbox::Inbox;
use crate::run::nesting::Held;
use crate::run::policy::{Limits, look_interval};
use crate::run::signals::Signals;
use crate::run::{Variables, after_release};
use crate::settings::Settings;

/// What the holder process needs to know.
pub(crate) struct HolderProcess<'a> {
    pub(crate) arguments: &'a HoldArguments,
    pub(crate) mode: Mode,
    pub(crate) paths: &'a [String],
    pub(crate) settings: &'a Settings,
    pub(crate) held: &'a Held,
    pub(crate) bound: &'a Bound,
    pub(crate) caller: Caller,
}

impl HolderProcess<'_> {
    /// Acquires the lock and keeps it. Returns when the lock is released or lost.
    pub(crate) fn run(self, signals: Signals) -> Result<Exit, Failure> {
        let inbox = Inbox::new(signals)?;
        // If no descriptor were left after the acquire, the process would keep the streams of the caller open.
        let null = OpenOptions::new().read(true).write(true).open("/dev/null");
        let null = null.map_err(|error| Failure::system("opening /dev/null", error))?;
        let waiting = &self.arguments.waiting;
        let timeout = if waiting.nonblock { Some(Duration::ZERO) } else { waiting.timeout };
        let started = BootTime::now();
        let wait = |limit| self.wait(&inbox, limit);
        let client = connect(self.settings, timeout, &console(self.arguments), &inbox, wait)?;
        let timeout = timeout.map(|timeout| timeout.saturating_sub(BootTime::now() - started));
        let result = self.run_with(&client, timeout, &inbox, &null);
        if result.is_err() {
            leave(client);
        }
        result
    }

    fn run_with(self, client: &Client, timeout: Option<Duration>, inbox: &Inbox, null: &File) -> Result<Exit, Failure> {
        let command = self.bound.process_name().unwrap_or_else(|| "zklock".to_owned());
        let owner = Owner::current(&command, self.mode.max_leases());
        let target = Target::new(client, self.mode, self.paths)?;
        let queued = wall_time();
        target.set_data(&owner.data(queued, None))?;
        let limit = AcquireLimit { timeout, names_holder: !self.arguments.quiet };
        let wait = |limit| self.wait(inbox, limit);
        let (hold, waited) = acquire(client, &target, self.paths, limit, &console(self.arguments), inbox, wait)?;
        let acquired = BootTime::now();
        let data = owner.data(queued, Some(wall_time()));
        for node in hold.nodes()? {
            // The process does not wait for the servers. If the write fails, the other participants see less.
            drop(client.start_write_node(&node, &node, &data, Some(0))?);
        }
        let held = self.held.value(Some(owner.pid));
        let variables = Variables::new(client, &hold, self.paths, self.mode, &owner, waited, &held)?;
        let text = if self.arguments.sh {
            shell::assignments(&variables, owner.pid, self.bound.caller())
        } else {
            to_json(&variables, owner.pid, self.bound)
        };
        let Self { bound, mut caller, arguments, paths, .. } = self;
        // `zklock release` finds a holder process by this name.
        let _ = rustix::thread::set_name(super::release::PROCESS_NAME);
        leave_caller(null);
        let file = super::release::create_hold_file(paths);
        caller.send(&text)?;
        let result = keep(client, &hold, bound, caller, inbox, acquired, arguments);
        super::release::store_exit_code(file, &result);
        result
    }

    /// Waits until something happens before the lock is acquired. If no process needs the lock any more, the wait
    /// fails.
    fn wait(&self, inbox: &Inbox, limit: Option<Duration>) -> Result<(), Failure> {
        inbox.wait_with(self.bound.source().into_iter().chain(self.caller.source()).collect(), limit)?;
        if let Some(signal) = inbox.ending_signal()? {
            return Err(Failure::new(Exit::Signal(signal), ""));
        }
        let ended = if self.bound.is_over() {
            "the process that needs the lock"
        } else if self.caller.has_ended() {
            "the call of zklock hold"
        } else {
            return Ok(());
        };
        Err(Failure::new(Exit::Busy, format!("{ended} ended before the lock was acquired")))
    }
}

/// Makes the output of both processes.
pub(super) fn console(arguments: &HoldArguments) -> Console {
    Console::new(if arguments.quiet { Verbosity::Quiet } else { Verbosity::Normal }, false)
}

/// Leaves the terminal, the job and the streams of the caller. A shell that reads the output of the caller waits until
/// all processes have closed it.
fn leave_caller(null: &File) {
    let _ = rustix::process::setsid();
    let _ = rustix::stdio::dup2_stdin(null);
    let _ = rustix::stdio::dup2_stdout(null);
    // A person at a terminal wants to know that the lock is lost.
    if !isatty(std::io::stderr()) {
        let _ = rustix::stdio::dup2_stderr(null);
    }
}

/// Keeps the lock until the bound is over, a signal arrives, the report cannot be printed, or the lock is lost.
fn keep(
    client: &Client,
    hold: &Hold,
    bound: &Bound,
    mut caller: Caller,
    inbox: &Inbox,
    acquired: BootTime,
    arguments: &HoldArguments,
) -> Result<Exit, Failure> {
    let timeout = client.session_timeout()?;
    let limits = Limits::choose(timeout, client.lease_length()?, None);
    // The bound process gets TERM while the lock is still certainly held, so that it can end before another participant
    // begins.
    let margin = limits.map_or(Duration::ZERO, |limits| limits.grace + limits.reserve);
    let until = bound.max_hold.map(|max_hold| acquired + max_hold);
    loop {
        if hold.state() == LockState::Lost || hold.remaining() <= margin {
            // Without a report, no process uses the lock.
            if caller.is_confirmed() {
                lose(hold, bound, inbox, look_interval(timeout))?;
            }
            drop(caller);
            // The end of the session deletes the node if it still exists.
            let _ = client.close();
            let term = bound.terminated().map(|pid| format!("; process {pid} gets TERM")).unwrap_or_default();
            let message =
                format!("{}: the lock is lost or can no longer be confirmed{term}", arguments.path.to_string_lossy());
            return Err(Failure::new(Exit::Lost, message));
        }
        let left = until.map(|until| until - BootTime::now());
        let is_over = caller.look().is_err() || bound.is_over() || left == Some(Duration::ZERO);
        if is_over || inbox.ending_signal()?.is_some() {
            let is_printed = caller.is_confirmed();
            // From now on, the caller cannot confirm the report.
            drop(caller);
            let released = hold.start_release().and_then(Operation::wait);
            if released.as_ref().is_err_and(|error| error.status() == Status::Lost) {
                return Err(Failure::new(Exit::Lost, "the lock was lost before it was released"));
            }
            let exit = after_release(released, Exit::Command(0), &console(arguments));
            let _ = client.close();
            if exit != Exit::Command(0) {
                // `zklock release` takes the end of this process for the release. After this time, the session is over.
                std::thread::sleep(timeout);
            }
            return if is_printed { Ok(exit) } else { Err(unprinted()) };
        }
        let interval = look_interval(timeout).min(hold.remaining().saturating_sub(margin));
        let sources = bound.source().into_iter().chain(caller.source()).collect();
        inbox.wait_with(sources, Some(left.map_or(interval, |left| left.min(interval))))?;
    }
}

/// Signals the loss, and keeps what is left of the lock until the bound process has ended or the lease is over.
fn lose(hold: &Hold, bound: &Bound, inbox: &Inbox, interval: Duration) -> Result<(), Failure> {
    bound.signal_loss();
    while !bound.is_over() && bound.pid().is_some() && hold.state() != LockState::Lost {
        let left = hold.remaining();
        if left.is_zero() {
            break;
        }
        inbox.wait_with(bound.source().into_iter().collect(), Some(left.min(interval)))?;
    }
    Ok(())
}
