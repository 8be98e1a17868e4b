//! Signals. They are meant for the program, so no library thread receives signals. The program of the standalone server
//! waits for them. This file installs no signal handler.

use std::mem::MaybeUninit;
use std::ptr;

/// Runs `spawn` with all signals blocked. If `spawn` starts a thread, the new thread inherits this mask.
pub fn with_signals_blocked<T>(spawn: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initializes `all`, and pthread_sigmask writes `before`. With these arguments neither call
    // fails.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = spawn();
    // SAFETY: `before` was initialized above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    result
}

/// Waits for SIGINT or SIGTERM, and then ends this process as the signal would. A signal that the process ignores has
/// no effect. Calls `ready` as soon as no such signal can be missed.
///
/// Returns only in the first process of a pid namespace, for example of a container, because the kernel discards signals
/// to this process if it neither waits for them nor handles them. The result is then the exit code.
pub fn end_on_signal(ready: impl FnOnce()) -> u8 {
    let mut ending = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initializes the set.
    let mut ending = unsafe {
        libc::sigemptyset(ending.as_mut_ptr());
        ending.assume_init()
    };
    for signal in [libc::SIGINT, libc::SIGTERM].into_iter().filter(|&signal| !is_ignored(signal)) {
        // SAFETY: The set is initialized, and the signal exists.
        unsafe { libc::sigaddset(&raw mut ending, signal) };
    }
    // SAFETY: The set is initialized.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const ending, ptr::null_mut()) };
    ready();
    let mut received = 0;
    // SAFETY: The set is initialized. The calls write the number of the signal, and change the mask of this thread.
    unsafe {
        while libc::sigwait(&raw const ending, &raw mut received) != 0 {}
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const ending, ptr::null_mut());
        libc::raise(received);
    }
    u8::try_from(received).unwrap_or_default().saturating_add(128)
}

fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: The call changes nothing. If it succeeds, it has initialized the action.
    unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}
