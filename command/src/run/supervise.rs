//! The wrapper while the command runs: it renews the lease at the guardian, passes on signals, reacts to the loss of
//! the lock, and ends the tree itself if the guardian cannot.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Signal, kill_current_process_group};
use serde_json::json;
use zklock::LockState;

use super::child;
use super::guardian::{Guardian, GuardianEvent};
use super::hold::Hold;
use super::inbox::Inbox;
use super::link::{Ending, Order, Report};
use super::notify::ServiceManager;
use super::policy::Limits;
use super::signals::{self, Received};
use crate::cli::{OnLost, OnSuspend};
use crate::clock::BootTime;
use crate::console::Console;
use crate::exit::{Exit, Failure};
use crate::process::{has_job_control, stop_self};

/// Why `zklock` ended the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The lock was lost, or could not be confirmed in time.
    Lost,
    /// Another participant asked for the lock.
    Revoked,
    /// The time of `--for` was over.
    TimeLimit,
}

/// How the run of the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// How the command itself ended, or `None` if KILL did not end it.
    pub(crate) ending: Option<Ending>,
    pub(crate) cause: Option<Cause>,
    /// True if the lock was lost before the command ended.
    pub(crate) is_lost: bool,
    /// True if a signal arrived after the command had ended.
    pub(crate) is_interrupted: bool,
}

/// What the supervision of one command needs.
pub(crate) struct Supervision<'a> {
    pub(crate) console: &'a Console,
    pub(crate) inbox: &'a Inbox,
    pub(crate) guardian: &'a Guardian,
    pub(crate) service: &'a ServiceManager,
    /// The path of the lock, for the service manager.
    pub(crate) path: &'a str,
    pub(crate) hold: &'a Hold,
    pub(crate) limits: Limits,
    /// The time between two renewals.
    pub(crate) interval: Duration,
    pub(crate) on_lost: OnLost,
    pub(crate) on_suspend: OnSuspend,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) leaves_running: bool,
    /// Set when another participant asks for the lock.
    pub(crate) is_revoked: &'a AtomicBool,
}

/// What has happened so far.
struct Progress {
    started: BootTime,
    /// The end of the lease that the guardian knows.
    safe_until: BootTime,
    state: LockState,
    cause: Option<Cause>,
    is_lost: bool,
    ending: Option<Ending>,
    /// True if a signal arrived after the command had ended.
    is_interrupted: bool,
    /// The reports of processes that the command left behind and that did not end.
    gone: Option<(u32, u32)>,
}

/// Returns how long the hold is certainly safe. The clock is read first, so the result is never too late.
pub(crate) fn safe_until(hold: &Hold) -> BootTime {
    let now = BootTime::now();
    now + hold.remaining()
}

impl Supervision<'_> {
    /// Starts the command and returns when no process of its tree is left.
    pub(crate) fn run(&self, environment: Vec<(String, std::ffi::OsString)>) -> Result<Outcome, Failure> {
        if !is_safe(self.hold.state()) {
            return Err(Failure::new(Exit::Lost, "the lock was lost before the command started"));
        }
        let safe_until = safe_until(self.hold);
        self.order(&Order::Start { limits: self.limits, safe_until, environment })?;
        let mut progress = Progress {
            started: BootTime::now(),
            safe_until,
            state: LockState::Held,
            cause: None,
            is_lost: false,
            ending: None,
            is_interrupted: false,
            gone: None,
        };
        loop {
            self.read_reports(&mut progress)?;
            if let Some((left_behind, survivors)) = progress.gone {
                self.service.stopping();
                self.describe_tree(left_behind, survivors);
                let Progress { ending, cause, is_lost, is_interrupted, .. } = progress;
                return Ok(Outcome { ending, cause, is_lost, is_interrupted });
            }
            self.check_hold(&mut progress)?;
            self.check_limits(&mut progress)?;
            if progress.ending.is_some() || progress.cause.is_some() {
                self.service.stopping();
            }
            self.inbox.wait(Some(self.guardian), Some(self.interval))?;
            self.forward_signals(&mut progress)?;
        }
    }

    /// Passes the signals that have arrived to the command. After the end of the command, they end the waits that
    /// follow.
    fn forward_signals(&self, progress: &mut Progress) -> Result<(), Failure> {
        while let Some(received) = self.inbox.signal()? {
            progress.is_interrupted |= progress.ending.is_some() && received.is_ending();
            self.forward(received, progress)?;
        }
        Ok(())
    }

    fn order(&self, order: &Order) -> Result<(), Failure> {
        self.guardian.order(order).map_err(|error| Failure::system("sending an order to the guardian", error))
    }

    fn read_reports(&self, progress: &mut Progress) -> Result<(), Failure> {
        loop {
            let event = self.guardian.event();
            let event = event.map_err(|error| Failure::system("reading from the guardian", error))?;
            match event {
                None => return Ok(()),
                Some(GuardianEvent::Report(report)) => self.on_report(report, progress)?,
                Some(GuardianEvent::Died) if progress.gone.is_some() => return Ok(()),
                Some(GuardianEvent::Died) => {
                    let message =
                        "the guardian process was killed, so the command was ended: nothing protected it any more";
                    return Err(Failure::new(Exit::Internal, message));
                }
            }
        }
    }

    fn on_report(&self, report: Report, progress: &mut Progress) -> Result<(), Failure> {
        match report {
            Report::Started(pid) => {
                child::leave_standard_streams();
                self.console.step(&format!("the command runs with process id {pid}"));
                self.console.event("started", json!({"pid": pid}));
                if let Err(error) = self.service.ready(&format!("holds {}", self.path)) {
                    self.console.warn(&format!("the service manager did not accept the message READY=1: {error}"));
                }
            }
            Report::NotStarted(error) => return Err(not_started(error)),
            Report::LeaseOver => {
                progress.is_lost = true;
                progress.cause = Some(Cause::Lost);
                self.console.warn("the lock could not be confirmed in time, so the command is ended");
            }
            Report::Exited(ending) => {
                // A key on the terminal may have ended the command too. Its signal arrived before this report.
                self.forward_signals(progress)?;
                progress.is_lost |= !is_safe(self.hold.state());
                progress.ending = Some(ending);
                self.console.event(
                    "exited",
                    match ending {
                        Ending::Code(code) => json!({"code": code}),
                        Ending::Signal(signal) => json!({"signal": signals::name(signal)}),
                    },
                );
            }
            Report::Gone { left_behind, survivors } => progress.gone = Some((left_behind, survivors)),
        }
        Ok(())
    }

    /// Renews the lease at the guardian, or reacts to a loss.
    fn check_hold(&self, progress: &mut Progress) -> Result<(), Failure> {
        let (state, before) = (self.hold.state(), progress.state);
        progress.state = state;
        if is_safe(state) && !progress.is_lost {
            progress.safe_until = safe_until(self.hold);
            self.order(&Order::Renew(progress.safe_until))?;
        }
        if state == before {
            return Ok(());
        }
        match state {
            LockState::Held => self.on_confirmed(progress)?,
            LockState::Suspended => self.on_suspended(progress)?,
            _ => self.on_lost(progress)?,
        }
        self.console.event("state", json!({"state": format!("{state:?}").to_lowercase()}));
        Ok(())
    }

    fn on_confirmed(&self, progress: &mut Progress) -> Result<(), Failure> {
        // The lock was uncertain and not lost, and the command has not been ended because of it.
        progress.is_lost &= progress.cause.is_some();
        self.continue_tree()?;
        self.console.step("the lock is confirmed again");
        Ok(())
    }

    /// Continues the tree if the loss of the connection has stopped it.
    fn continue_tree(&self) -> Result<(), Failure> {
        if self.on_suspend == OnSuspend::Stop { self.order(&Order::Continue) } else { Ok(()) }
    }

    fn on_suspended(&self, progress: &mut Progress) -> Result<(), Failure> {
        let left = crate::duration::show(self.hold.remaining());
        match self.on_suspend {
            OnSuspend::Continue => {}
            OnSuspend::Stop => self.order(&Order::Stop)?,
            OnSuspend::Term => {
                self.order(&Order::End)?;
                if progress.cause.is_none() && progress.ending.is_none() {
                    progress.cause = Some(Cause::Lost);
                    self.console.warn("the connection is lost, so the command is ended (--on-suspend term)");
                }
            }
        }
        self.console.step(&format!("the connection is lost; the lock is safe for {left}"));
        Ok(())
    }

    fn on_lost(&self, progress: &mut Progress) -> Result<(), Failure> {
        if progress.is_lost || progress.ending.is_some() {
            return Ok(());
        }
        progress.is_lost = true;
        self.order(&Order::ReportLoss)?;
        let (order, what) = match self.on_lost {
            OnLost::Ignore => {
                self.continue_tree()?;
                self.console.warn("the lock is lost; the command continues (--on-lost ignore)");
                return Ok(());
            }
            OnLost::Term => (Order::End, "ended"),
            OnLost::Kill => (Order::Kill, "killed"),
        };
        progress.cause = Some(Cause::Lost);
        self.order(&order)?;
        self.console.warn(&format!("the lock is lost, so the command is {what}"));
        Ok(())
    }

    /// Ends the command if its time is over or another participant asks for the lock. Ends the tree if the guardian has
    /// not done so before the end of the lease.
    fn check_limits(&self, progress: &mut Progress) -> Result<(), Failure> {
        let now = BootTime::now();
        if self.limits.enforce && now > progress.safe_until {
            let survivors = self.guardian.kill_tree();
            progress.is_lost = true;
            progress.cause = Some(Cause::Lost);
            progress.gone = Some((0, u32::try_from(survivors).unwrap_or(u32::MAX)));
            self.console.warn("the lease is over and the guardian did not end the command, so zklock has killed it");
            return Ok(());
        }
        let cause = if self.is_revoked.load(Ordering::Relaxed) {
            Cause::Revoked
        } else if self.max_hold.is_some_and(|limit| now - progress.started >= limit) {
            Cause::TimeLimit
        } else {
            return Ok(());
        };
        if progress.cause.is_none() && progress.ending.is_none() {
            progress.cause = Some(cause);
            self.order(&Order::End)?;
            self.console.warn(match cause {
                Cause::Revoked => "another participant asks for the lock, so the command is ended",
                _ => "the time of --for is over, so the command is ended",
            });
        }
        Ok(())
    }

    /// Passes a signal to the command, unless the terminal has already sent it to the whole process group.
    fn forward(&self, received: Received, progress: &Progress) -> Result<(), Failure> {
        let Received { signal, is_from_terminal } = received;
        let is_stopped =
            self.on_suspend == OnSuspend::Stop && progress.state == LockState::Suspended && progress.cause.is_none();
        if signal == libc::SIGCONT && is_stopped {
            // The tree stays stopped until the lock is confirmed. On a terminal, the shell has sent the signal to the tree
            // too.
            return self.order(&Order::Stop);
        }
        if signal == libc::SIGCHLD {
            self.guardian.keep_running();
            return Ok(());
        }
        let whole_group = matches!(signal, libc::SIGINT | libc::SIGQUIT | libc::SIGTSTP | libc::SIGWINCH);
        if !(is_from_terminal && whole_group) {
            self.order(&Order::Signal(signal))?;
        }
        match signal {
            // The terminal has stopped the whole process group, and no shell would ever continue it. The kernel would
            // not have stopped the group without the guardian, which is the parent of the command in another group.
            libc::SIGTSTP if is_from_terminal && !has_job_control() => kill_current_process_group(Signal::CONT)
                .map_err(|error| Failure::system("continuing the process group", error)),
            libc::SIGTSTP => stop_self(),
            _ => Ok(()),
        }
    }

    fn describe_tree(&self, left_behind: u32, survivors: u32) {
        match processes(left_behind) {
            _ if left_behind == 0 => {}
            count if self.leaves_running => {
                self.console.notice(&format!(
                    "{count} that the command left behind may run on without the lock (--leave-running)"
                ));
            }
            count => self
                .console
                .warn(&format!("ended {count} that the command left behind; --leave-running leaves them alone")),
        }
        if survivors > 0 {
            self.console.warn(&format!("{} did not end after KILL", processes(survivors)));
        }
    }
}

pub(super) const fn is_safe(state: LockState) -> bool {
    matches!(state, LockState::Held | LockState::Suspended)
}

fn processes(count: u32) -> String {
    if count == 1 { "1 process".to_owned() } else { format!("{count} processes") }
}

/// Makes the failure for an error of exec. The caller adds the name of the command.
fn not_started(error: i32) -> Failure {
    if error == child::TOO_LATE {
        return Failure::new(Exit::Lost, "the lease was over before the command could start, so it was not started");
    }
    let exit = if error == libc::ENOENT { Exit::NotFound } else { Exit::NotExecutable };
    Failure::new(exit, std::io::Error::from_raw_os_error(error).to_string())
}
