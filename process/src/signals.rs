//! Signal masks. Signals are meant for the program, so no library thread receives signals. This file installs no
//! signal handler.

use std::mem::MaybeUninit;

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
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}
