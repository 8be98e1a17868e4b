//! Decides what a thread does while it waits for the answer to a call. The thread may have to wait for several calls,
//! one after the other. This module may not read the clock, take a lock or know what a call does.

use std::time::Duration;

use crate::time::Time;

/// What the waiting thread does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitStep<C> {
    /// The deadline has expired. The thread ends this call in the engine.
    Expire(C),
    /// The thread tries to read the socket of the client until this call is answered, for at most this time.
    Read(C, Duration),
    /// The thread sleeps until another thread wakes it, for at most this time.
    Sleep(Duration),
    /// The thread stops waiting.
    Stop,
}

/// One wait of a thread. The calls have ids of the type `C`.
#[derive(Debug)]
pub struct Wait<C> {
    deadline: Option<Time>,
    /// The time at which the thread stops waiting. At this time, the call itself may still go on.
    end: Option<Time>,
    /// The call that the thread has ended because of the deadline.
    expired: Option<C>,
    /// The call for which the thread must not read the socket.
    sleeps_for: Option<C>,
    /// The time of the last step, or a later time if the thread has waited since then.
    now: Time,
}

impl<C: Copy + PartialEq> Wait<C> {
    /// Starts a wait at the time `now`, for at most `slice`. The calls have the deadline `deadline`.
    pub fn new(now: Time, slice: Duration, deadline: Option<Time>) -> Self {
        let end = (slice < Duration::MAX).then(|| now + slice);
        Self { deadline, end, expired: None, sleeps_for: None, now }
    }

    /// Returns the next step of a thread that waits for the answer to `call`. If `call` is `None`, the thread waits
    /// until another thread has started the next call.
    pub fn next_step(&mut self, now: Time, call: Option<C>) -> WaitStep<C> {
        self.now = self.now.max(now);
        let left_until = |time: Option<Time>| time.map_or(Duration::MAX, |time| time - self.now);
        let (left, left_of_slice) = (left_until(self.deadline), left_until(self.end));
        if let Some(call) = call
            && left.is_zero()
            && self.expired != Some(call)
        {
            self.expired = Some(call);
            return WaitStep::Expire(call);
        }
        if left_of_slice.is_zero() {
            return WaitStep::Stop;
        }
        // After the deadline, the thread that receives the answer wakes this thread without delay.
        let limit = if left.is_zero() { left_of_slice } else { left.min(left_of_slice) };
        match call {
            Some(call) if self.sleeps_for != Some(call) => WaitStep::Read(call, limit),
            _ => WaitStep::Sleep(limit),
        }
    }

    /// Records that the thread has waited for the whole time limit of the last step. The clock may show an earlier time
    /// than the end of this step, because the system may measure the limit with another clock.
    pub fn has_waited(&mut self, limit: Duration) {
        self.now = self.now + limit;
    }

    /// Records that the thread must not read the socket for this call. The thread that reads it wakes this thread.
    pub const fn sleep_for(&mut self, call: C) {
        self.sleeps_for = Some(call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Time {
        Time::from_nanos(0) + SECOND * u32::try_from(seconds).unwrap()
    }

    #[test]
    fn a_thread_reads_until_the_earlier_of_deadline_and_end() {
        let mut wait = Wait::new(at(10), SECOND * 5, Some(at(12)));
        assert_eq!(wait.next_step(at(10), Some('a')), WaitStep::Read('a', SECOND * 2));
        let mut wait = Wait::new(at(10), SECOND, Some(at(12)));
        assert_eq!(wait.next_step(at(10), Some('a')), WaitStep::Read('a', SECOND));
        let mut wait = Wait::new(at(10), Duration::MAX, None);
        assert_eq!(wait.next_step(at(10), Some('a')), WaitStep::Read('a', Duration::MAX));
    }

    #[test]
    fn a_thread_that_must_not_read_for_one_call_reads_for_the_next() {
        let mut wait = Wait::new(at(0), Duration::MAX, Some(at(3)));
        wait.sleep_for('a');
        assert_eq!(wait.next_step(at(0), Some('a')), WaitStep::Sleep(SECOND * 3));
        assert_eq!(wait.next_step(at(1), None), WaitStep::Sleep(SECOND * 2));
        assert_eq!(wait.next_step(at(1), Some('b')), WaitStep::Read('b', SECOND * 2));
    }

    #[test]
    fn each_call_expires_once_even_if_the_wait_ends_at_the_same_time() {
        let mut wait = Wait::new(at(0), SECOND, Some(at(1)));
        assert_eq!(wait.next_step(at(1), Some('a')), WaitStep::Expire('a'));
        assert_eq!(wait.next_step(at(1), Some('b')), WaitStep::Expire('b'));
        assert_eq!(wait.next_step(at(1), Some('b')), WaitStep::Stop);
        let mut wait = Wait::new(at(0), SECOND * 5, Some(at(1)));
        assert_eq!(wait.next_step(at(1), None), WaitStep::Sleep(SECOND * 4));
        assert_eq!(wait.next_step(at(2), Some('a')), WaitStep::Expire('a'));
        assert_eq!(wait.next_step(at(2), Some('a')), WaitStep::Read('a', SECOND * 3));
        assert_eq!(wait.next_step(at(5), Some('a')), WaitStep::Stop);
    }

    #[test]
    fn a_limit_that_has_passed_counts_even_if_the_clock_is_behind() {
        let mut wait = Wait::new(at(0), SECOND * 2, Some(at(1)));
        wait.has_waited(SECOND);
        assert_eq!(wait.next_step(at(0), Some('a')), WaitStep::Expire('a'));
        wait.has_waited(SECOND);
        assert_eq!(wait.next_step(at(0), Some('a')), WaitStep::Stop);
    }

    #[test]
    fn a_poll_stops_at_once() {
        let mut wait = Wait::new(at(7), Duration::ZERO, None);
        assert_eq!(wait.next_step(at(7), Some('a')), WaitStep::Stop);
    }
}
