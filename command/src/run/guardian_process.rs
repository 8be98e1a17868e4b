//! What the guardian does: it starts the command, passes signals to it, reports its end, and ends the process tree when
//! the policy says so.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::write;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::cgroup;
use super::cgroup::ControlGroup;
use super::child::{self, Group, Origin};
use super::link::{Ending, Link, Order, Report};
use super::policy::{Policy, Step};
use super::signals::{Mask, Signals};
use super::tree::{self, Tree};
use crate::clock::BootTime;

/// What the guardian knows about its wrapper.
pub(crate) struct Wrapper {
    /// The process group of the command.
    pub(crate) group: Group,
    pub(crate) mask: Mask,
    /// Where the control group of the command would be.
    pub(crate) cgroup: Option<PathBuf>,
    /// True if the processes that the command leaves behind keep running.
    pub(crate) leaves_running: bool,
}

/// The command and its tree.
struct Job {
    pid: i32,
    /// How the command ended.
    ending: Option<Ending>,
    policy: Policy,
    /// The guardian writes to this pipe when the lock is lost. The command reads from the other end.
    status: Option<OwnedFd>,
    left_behind: u32,
    leaves_running: bool,
    cgroup: Option<PathBuf>,
}

struct Guardian {
    /// `None` after the wrapper has died.
    link: Option<Link>,
    tree: Tree,
    job: Option<Job>,
}

/// Runs the guardian until no process of the tree is left. Ends this process.
pub(crate) fn run(link: Link, wrapper: Wrapper, command: &[OsString]) -> ! {
    // If the guardian fails, its end tells the wrapper to end the tree.
    let code = i32::from(guard(link, wrapper, command).is_err());
    process::exit(code)
}

fn guard(link: Link, wrapper: Wrapper, command: &[OsString]) -> io::Result<()> {
    let _ = rustix::thread::set_name(c"zklock-guardian");
    Mask::all().set()?;
    let signals = Signals::open(&Mask::of([libc::SIGCHLD]))?;
    set_child_subreaper(Some(getpid()))?;
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
    let mut guardian = Guardian { link: Some(link), tree: Tree::new(), job: None };
    let mut wrapper = Some(wrapper);
    loop {
        while let Some(order) = guardian.next_order()? {
            match order {
                Order::Start { limits, safe_until, environment } => {
                    if let Some(wrapper) = wrapper.take() {
                        guardian.start(wrapper, command, Policy::new(limits, safe_until), environment)?;
                    }
                }
                order => guardian.execute(order),
            }
        }
        while signals.take()?.is_some() {}
        guardian.reap();
        let Some(wake_at) = guardian.act() else { return Ok(()) };
        set_timer(&timer, wake_at)?;
        let mut ready = vec![PollFd::new(&signals, PollFlags::IN), PollFd::new(&timer, PollFlags::IN)];
        ready.extend(guardian.link.as_ref().map(|link| PollFd::new(link, PollFlags::IN)));
        match poll(&mut ready, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sets the timer to a time, or stops it. The clock also runs while the machine is suspended, so the timer expires when
/// the machine wakes.
fn set_timer(timer: &OwnedFd, at: Option<BootTime>) -> io::Result<()> {
    let at = at.map_or(std::time::Duration::ZERO, BootTime::since_boot);
    let never = Timespec { tv_sec: 0, tv_nsec: 0 };
    let value = Timespec { tv_sec: at.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: at.subsec_nanos().into() };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval: never, it_value: value })?;
    Ok(())
}

impl Guardian {
    /// Returns an order of the wrapper. If the wrapper has died, the method begins to end the tree.
    fn next_order(&mut self) -> io::Result<Option<Order>> {
        let Some(link) = &self.link else { return Ok(None) };
        match link.receive_order() {
            Ok(order) => Ok(Some(order)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(error),
            Err(_) => {
                self.link = None;
                if let Some(job) = &mut self.job {
                    job.report_loss();
                    job.policy.end_orphan(BootTime::now());
                }
                Ok(None)
            }
        }
    }

    fn start(
        &mut self,
        wrapper: Wrapper,
        command: &[OsString],
        policy: Policy,
        environment: Vec<(String, OsString)>,
    ) -> io::Result<()> {
        // The first of the new descriptors, because some shells, for example dash, can read only those below 10.
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let group = wrapper.cgroup.as_deref().and_then(|directory| ControlGroup::create(directory).ok());
        let cgroup = wrapper.cgroup.filter(|_| group.is_some());
        self.tree.set_cgroup(cgroup.clone());
        let origin = Origin {
            group: wrapper.group,
            mask: wrapper.mask,
            cgroup: group,
            status: reader,
            start_until: policy.start_until(),
        };
        match child::start(command, environment, origin) {
            Ok(pid) => {
                child::leave_standard_streams();
                let (status, leaves_running) = (Some(writer), wrapper.leaves_running);
                self.job = Some(Job { pid, ending: None, policy, status, left_behind: 0, leaves_running, cgroup });
                self.report(Report::Started(pid));
            }
            Err(error) => {
                cgroup.as_deref().into_iter().for_each(cgroup::remove);
                self.report(Report::NotStarted(error.raw_os_error().unwrap_or_default()));
            }
        }
        Ok(())
    }

    fn execute(&mut self, order: Order) {
        let (now, Some(job)) = (BootTime::now(), &mut self.job) else { return };
        match order {
            Order::Renew(until) => job.policy.renew(until),
            Order::End => job.policy.end(now),
            Order::Kill => job.policy.kill(now),
            Order::Signal(signal) => job.forward(signal),
            Order::Stop => self.tree.signal(Signal::STOP),
            Order::Continue => self.tree.signal(Signal::CONT),
            Order::ReportLoss => job.report_loss(),
            // The caller handles the only start.
            Order::Start { .. } => {}
        }
    }

    /// Reads the ends of the command, and of other processes of the tree that became children of the guardian.
    fn reap(&mut self) {
        let job = &mut self.job;
        let mut command_ended = None;
        tree::reap(|pid, ending| {
            if let Some(job) = job.as_mut().filter(|job| job.pid == pid && job.ending.is_none()) {
                job.ending = Some(ending);
                command_ended = Some(ending);
            }
        });
        let Some(ending) = command_ended else { return };
        self.report(Report::Exited(ending));
        let left_behind = self.tree.len();
        if let (Some(job), 1..) = (&mut self.job, left_behind) {
            if !job.policy.is_ending() {
                job.left_behind = u32::try_from(left_behind).unwrap_or(u32::MAX);
            }
            // If the command was ended, the rest of its tree ends too.
            if !job.leaves_running || job.policy.is_ending() {
                job.policy.end(BootTime::now());
            }
        }
    }

    /// Does what the policy says now. Returns when the policy must be asked again, or `None` if the guardian has
    /// nothing left to do.
    fn act(&mut self) -> Option<Option<BootTime>> {
        loop {
            let Some(job) = &mut self.job else { return self.link.as_ref().map(|_| None) };
            let is_left = job.leaves_running && !job.policy.is_ending();
            if job.ending.is_some() && (is_left || self.tree.is_empty()) {
                self.finish(0);
                return None;
            }
            let was_ending = job.policy.is_ending();
            let step = job.policy.next(BootTime::now());
            if !was_ending && job.policy.is_ending() {
                job.report_loss();
                self.report(Report::LeaseOver);
            }
            match step {
                Step::Wait(until) => return Some(until),
                Step::Term => {
                    self.tree.signal(Signal::TERM);
                    // A stopped process handles TERM only after it continues.
                    self.tree.signal(Signal::CONT);
                }
                Step::Kill => {
                    let survivors = self.kill_all();
                    self.finish(survivors);
                    return None;
                }
            }
        }
    }

    fn kill_all(&self) -> usize {
        let mut command_ended = None;
        let command = self.job.as_ref().filter(|job| job.ending.is_none()).map(|job| job.pid);
        let survivors = self.tree.kill(|pid, ending| {
            if Some(pid) == command {
                command_ended = Some(ending);
            }
        });
        if let Some(ending) = command_ended {
            self.report(Report::Exited(ending));
        }
        survivors
    }

    fn finish(&mut self, survivors: usize) {
        let Some(job) = self.job.take() else { return };
        job.cgroup.as_deref().into_iter().for_each(cgroup::remove);
        let survivors = u32::try_from(survivors).unwrap_or(u32::MAX);
        self.report(Report::Gone { left_behind: job.left_behind, survivors });
    }

    /// Sends a report. If the wrapper has died, the next read of the connection shows it.
    fn report(&self, report: Report) {
        if let Some(link) = &self.link {
            let _ = link.report(report);
        }
    }
}

impl Job {
    fn forward(&self, signal: i32) {
        // The guardian has not read the end of the command, so no other process can have its number.
        if let (None, Some(pid), Some(signal)) = (self.ending, Pid::from_raw(self.pid), Signal::from_named_raw(signal))
        {
            let _ = kill_process(pid, signal);
        }
    }

    /// Makes the status descriptor of the command readable.
    fn report_loss(&mut self) {
        if let Some(status) = self.status.take() {
            // The command may have closed its end. SIGPIPE is blocked.
            let _ = write(&status, b"lost\n");
        }
    }
}
