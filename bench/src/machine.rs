//! The machine: its clock, its two cores, and their load.

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
    // SAFETY: `time` is valid for reads. For an absolute time, the call writes nothing.
    while unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &time, std::ptr::null_mut()) } != 0
    {
    }
}

/// The two cores: servers run on the first, clients on the second.
#[derive(Clone, Copy)]
pub(crate) struct Cores {
    pub(crate) server: usize,
    pub(crate) clients: usize,
}

impl Cores {
    /// The first two cores that this process may use. If there is only one, it serves as both.
    pub(crate) fn find() -> Self {
        // SAFETY: A cpu_set_t of zeros is an empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: The set is valid for writes and has the given size.
        let result = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
        assert_eq!(result, 0, "sched_getaffinity: {}", io::Error::last_os_error());
        // SAFETY: The numbers are within the set.
        let mut usable = (0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) });
        let server = usable.next().unwrap_or(0);
        Self { server, clients: usable.next().unwrap_or(server) }
    }
}

/// Pins the calling thread to one core, together with all threads and processes that it starts later.
pub(crate) fn pin(core: usize) {
    // SAFETY: A cpu_set_t of zeros is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `Cores::find` has found the number in such a set.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: The set is valid for reads and has the given size.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) };
    assert_eq!(result, 0, "sched_setaffinity: {}", io::Error::last_os_error());
}

/// The processor time of this process.
pub(crate) fn own_cpu() -> Nanos {
    read(libc::CLOCK_PROCESS_CPUTIME_ID).expect("the clock of the process")
}

/// The processor time of all threads of a process, including threads that have ended.
pub(crate) fn cpu_of(pid: i32) -> Nanos {
    let mut clock = 0;
    // SAFETY: The clock is valid for writes.
    let result = unsafe { libc::clock_getcpuclockid(pid, &mut clock) };
    if result == 0 { read(clock).unwrap_or(0) } else { 0 }
}

/// The time for which all cores were busy, for any process. It includes the time that a hypervisor gave to other
/// machines.
pub(crate) fn busy() -> Nanos {
    let text = fs::read_to_string("/proc/stat").expect("read /proc/stat");
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<Nanos> = line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal
    let busy: Nanos = [0, 1, 2, 5, 6, 7].iter().filter_map(|&column: &usize| ticks.get(column)).sum();
    // SAFETY: The call has no preconditions.
    busy * (SECOND / unsafe { libc::sysconf(libc::_SC_CLK_TCK) })
}

/// The number of voluntary and involuntary context switches of a process. It does not include threads that have ended.
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
    // SAFETY: The time is valid for writes.
    (unsafe { libc::clock_gettime(clock, &mut time) } == 0).then(|| time.tv_sec * SECOND + time.tv_nsec)
}

/// Waits for several descriptors at once.
pub(crate) struct Poll(OwnedFd);

impl Poll {
    /// Creates a poll for these descriptors, each identified by its index.
    pub(crate) fn new(descriptors: impl Iterator<Item = RawFd>) -> Self {
        // SAFETY: The call has no preconditions, and nothing else owns the descriptor.
        let poll = Self(unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) });
        for (index, descriptor) in descriptors.enumerate() {
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: index as u64 };
            // SAFETY: The event is valid for reads.
            let result = unsafe { libc::epoll_ctl(poll.0.as_raw_fd(), libc::EPOLL_CTL_ADD, descriptor, &mut event) };
            assert_eq!(result, 0, "epoll_ctl: {}", io::Error::last_os_error());
        }
        poll
    }

    /// Blocks until some descriptors are readable, and calls `readable` with each of their indices.
    pub(crate) fn wait(&self, mut readable: impl FnMut(usize)) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let (descriptor, no_limit) = (self.0.as_raw_fd(), -1);
        // SAFETY: The events are valid for writes, and their number is given.
        let count = unsafe { libc::epoll_wait(descriptor, events.as_mut_ptr(), events.len() as i32, no_limit) };
        let count = usize::try_from(count).unwrap_or(0);
        events.iter().take(count).for_each(|event| readable(event.u64 as usize));
    }
}
