//! Scheduling of library threads. A new thread inherits the scheduling of the thread that starts it, which may be a
//! background thread of the program.

use std::mem::{MaybeUninit, size_of};

/// Gives the calling thread, which the library has just started, the processors and the nice value of the main thread,
/// and the policy `SCHED_OTHER` instead of `SCHED_IDLE` or `SCHED_BATCH`. A real-time policy remains. Where the system
/// forbids a change, for example to a lower nice value without `CAP_SYS_NICE`, the inherited value remains.
pub fn adopt_scheduling_of_the_process() {
    // SAFETY: these calls change only the scheduling of the calling thread. The set of processors is initialized before
    // it is used, and the kernel writes no more bytes than its size.
    unsafe {
        let main = libc::getpid();
        let policy = libc::sched_getscheduler(0) & !libc::SCHED_RESET_ON_FORK;
        if policy == libc::SCHED_IDLE || policy == libc::SCHED_BATCH {
            let mut priority = MaybeUninit::<libc::sched_param>::zeroed().assume_init();
            priority.sched_priority = 0;
            let _ = libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const priority);
        }
        // The value of PRIO_PROCESS is 0. The type of the parameter depends on the C library.
        let nice_of_main = libc::getpriority(0, main.cast_unsigned());
        if libc::getpriority(0, 0) > nice_of_main {
            let _ = libc::setpriority(0, 0, nice_of_main);
        }
        let mut processors = MaybeUninit::<libc::cpu_set_t>::zeroed().assume_init();
        if libc::sched_getaffinity(main, size_of::<libc::cpu_set_t>(), &raw mut processors) == 0 {
            let _ = libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const processors);
        }
    }
}
