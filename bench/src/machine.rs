//! The machine: its clock, its two cores, and who uses them.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Nanoseconds of CLOCK_MONOTONIC, which all processes share.
pub(crate) type Nanos = i64;

pub(crate) const SECOND: Nanos = 1_000_000_000;

pub(crate) fn now() -> Nanos {
    read(libc::CLOCK_MONOTONIC).expect("the monotonic clock")
}

pub(crate) fn sleep_until(time: Nanos) {
    let time = libc::timespec { tv_sec: time / SECOND, tv_nsec: time % SECOND };
    // SAFETY: the time is readable, and nothing is written for an absolute one.
    while unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &time, std::ptr::null_mut()) } != 0
    {
    }
}

/// The two cores: servers on the first, clients on the second.
#[derive(Clone, Copy)]
pub(crate) struct Cores {
    pub(crate) server: usize,
    pub(crate) clients: usize,
}

impl Cores {
    /// The first two that this process may use; where there is only one, it is both.
    pub(crate) fn find() -> Self {
        // SAFETY: all bits zero is an empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is writable, and of the size that is said.
        let result = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
        assert_eq!(result, 0, "sched_getaffinity: {}", io::Error::last_os_error());
        // SAFETY: the numbers are within the set.
        let mut usable = (0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) });
        let server = usable.next().unwrap_or(0);
        Self { server, clients: usable.next().unwrap_or(server) }
    }
}

/// Has the calling thread, and all threads and processes that it starts from now on, run on one core alone.
pub(crate) fn pin(core: usize) {
    // SAFETY: all bits zero is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number is one that `Cores::find` has found in such a set.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: the set is readable, and of the size that is said.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) };
    assert_eq!(result, 0, "sched_setaffinity: {}", io::Error::last_os_error());
}

/// How long the threads of a process have run, also those that have ended.
pub(crate) fn cpu_of(pid: i32) -> Nanos {
    let mut clock = 0;
    // SAFETY: the clock is writable.
    let result = unsafe { libc::clock_getcpuclockid(pid, &mut clock) };
    if result == 0 { read(clock).unwrap_or(0) } else { 0 }
}

/// How long all cores were busy, whoever kept them so; a hypervisor that gave them to others counts as well.
pub(crate) fn busy() -> Nanos {
    let text = fs::read_to_string("/proc/stat").expect("read /proc/stat");
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<Nanos> = line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal
    let busy: Nanos = [0, 1, 2, 5, 6, 7].iter().filter_map(|&column: &usize| ticks.get(column)).sum();
    // SAFETY: it has no preconditions.
    busy * (SECOND / unsafe { libc::sysconf(libc::_SC_CLK_TCK) })
}

/// How often the threads of a process have given up their core or had it taken, those that have ended left out.
pub(crate) fn switches_of(pid: i32) -> i64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let status = threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
    status.map(|text| field(&text, "voluntary_ctxt_switches") + field(&text, "nonvoluntary_ctxt_switches")).sum()
}

fn field(status: &str, name: &str) -> i64 {
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn read(clock: libc::clockid_t) -> Option<Nanos> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is writable.
    (unsafe { libc::clock_gettime(clock, &mut time) } == 0).then(|| time.tv_sec * SECOND + time.tv_nsec)
}

/// Waits for several descriptors at once.
pub(crate) struct Poll(OwnedFd);

impl Poll {
    /// Of these, which are known by their index.
    pub(crate) fn new(descriptors: impl Iterator<Item = RawFd>) -> Self {
        // SAFETY: it has no preconditions, and the descriptor is nobody else's.
        let poll = Self(unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) });
        for (index, descriptor) in descriptors.enumerate() {
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: index as u64 };
            // SAFETY: the event is readable.
            let result = unsafe { libc::epoll_ctl(poll.0.as_raw_fd(), libc::EPOLL_CTL_ADD, descriptor, &mut event) };
            assert_eq!(result, 0, "epoll_ctl: {}", io::Error::last_os_error());
        }
        poll
    }

    /// Blocks until some are readable, and says which.
    pub(crate) fn wait(&self, mut readable: impl FnMut(usize)) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let (descriptor, no_limit) = (self.0.as_raw_fd(), -1);
        // SAFETY: the events are writable, and as many as is said.
        let count = unsafe { libc::epoll_wait(descriptor, events.as_mut_ptr(), events.len() as i32, no_limit) };
        let count = usize::try_from(count).unwrap_or(0);
        events.iter().take(count).for_each(|event| readable(event.u64 as usize));
    }
}
