//! Signals as data. A process that uses this file blocks the signals and reads them from a descriptor, so no code runs
//! in a signal handler. The command that runs under the lock gets back the original signal mask.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr;

use rustix::io::{Errno, read};

use crate::exit::Failure;

/// The signals that the wrapper reads: SIGCHLD, and all that it passes to the command.
const HANDLED: [i32; 10] = [
    libc::SIGCHLD,
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGTSTP,
    libc::SIGCONT,
];

/// A signal that the process has received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) signal: i32,
    /// True if the kernel sent the signal to the whole process group, for example because of a key on the terminal. A
    /// process of the group that runs the command has then received the signal too.
    pub(crate) is_from_terminal: bool,
}

impl Received {
    /// Returns whether a user or a supervisor ends a process with this signal.
    pub(crate) const fn is_ending(self) -> bool {
        matches!(self.signal, libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT)
    }
}

/// A signal mask.
#[derive(Clone, Copy)]
pub(crate) struct Mask(libc::sigset_t);

/// A descriptor from which blocked signals are read.
#[derive(Debug)]
pub(crate) struct Signals(OwnedFd);

impl Mask {
    /// The mask that contains only these signals.
    pub(crate) fn of(signals: impl IntoIterator<Item = i32>) -> Self {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigemptyset initializes the set.
        let mut set = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            set.assume_init()
        };
        for signal in signals {
            // SAFETY: The set is initialized. A number that is not a signal is refused.
            unsafe { libc::sigaddset(&raw mut set, signal) };
        }
        Self(set)
    }

    /// The mask that contains all signals.
    pub(crate) fn all() -> Self {
        Self::of(1..=libc::SIGRTMAX())
    }

    /// Sets this mask for the calling thread, and returns the mask that was set before. The function is safe to call
    /// between fork and exec.
    pub(crate) fn set(&self) -> io::Result<Self> {
        let mut before = Self::of([]);
        // SAFETY: Both sets are initialized, and live during the call.
        match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, &raw mut before.0) } {
            0 => Ok(before),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Blocks the signals that this process reads from a descriptor. Returns the descriptor, and the mask that was set
/// before. A signal that the caller of this program ignores stays ignored, for example SIGHUP below nohup.
pub(crate) fn block() -> Result<(Signals, Mask), Failure> {
    let failed = |error: io::Error| Failure::system("blocking signals", error);
    restore_child_signal();
    let mask = Mask::of(HANDLED.into_iter().filter(|&signal| !is_ignored(signal)));
    let before = mask.set().map_err(failed)?;
    Ok((Signals::open(&mask).map_err(failed)?, before))
}

/// Restores the default action of SIGCHLD. A parent that ignores SIGCHLD hands this setting down to its children, and
/// the kernel would then discard the ends of the children of this process.
pub(crate) fn restore_child_signal() {
    // SAFETY: The default action is no function of this process.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: The call changes nothing. If it succeeds, it has initialized the action.
    unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

impl Signals {
    /// Opens a descriptor for these signals, which the calling thread must have blocked.
    pub(crate) fn open(mask: &Mask) -> io::Result<Self> {
        // SAFETY: The set is initialized, and the call only reads it.
        let fd = unsafe { libc::signalfd(-1, &raw const mask.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: The call has just returned this descriptor, and nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Returns a signal that has arrived, or `None` if there is none.
    pub(crate) fn take(&self) -> io::Result<Option<Received>> {
        const SIZE: usize = size_of::<libc::signalfd_siginfo>();
        let mut bytes = [0; SIZE];
        match read(&self.0, &mut bytes) {
            Ok(SIZE) => {}
            Ok(_) | Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // SAFETY: The kernel has written a whole structure, which consists of integers. The read does not need any
        // alignment.
        let info = unsafe { ptr::read_unaligned(bytes.as_ptr().cast::<libc::signalfd_siginfo>()) };
        let signal = i32::try_from(info.ssi_signo).unwrap_or_default();
        Ok(Some(Received { signal, is_from_terminal: info.ssi_code == libc::SI_KERNEL }))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns the name of a signal, for example `SIGTERM`, or its number.
pub(crate) fn name(signal: i32) -> String {
    let known = [
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGQUIT, "SIGQUIT"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGPIPE, "SIGPIPE"),
        (libc::SIGALRM, "SIGALRM"),
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGUSR1, "SIGUSR1"),
        (libc::SIGUSR2, "SIGUSR2"),
    ];
    let found = known.iter().find(|(number, _)| *number == signal);
    found.map_or_else(|| format!("signal {signal}"), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_signal_is_read_from_the_descriptor() {
        // A signal to the thread of the test does not reach the other threads of the program.
        let mask = Mask::of([libc::SIGUSR1]);
        let before = mask.set().unwrap();
        let signals = Signals::open(&mask).unwrap();
        assert_eq!(signals.take().unwrap(), None);
        // SAFETY: The calling thread exists, and blocks the signal.
        assert_eq!(unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1) }, 0);
        assert_eq!(signals.take().unwrap(), Some(Received { signal: libc::SIGUSR1, is_from_terminal: false }));
        before.set().unwrap();
    }
}
