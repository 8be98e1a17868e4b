//! Decides when the guardian ends a process tree: with TERM, and then with KILL. This file uses no process and no
//! clock. The caller passes the time.
//!
//! The guardian ends the tree for one of two reasons. First, the wrapper asks for the end, or is gone. Second, the
//! wrapper has not renewed the lease: then KILL comes before the lease can be over, and TERM comes one grace period
//! before KILL.

use std::time::Duration;

use crate::clock::BootTime;

/// The durations of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The time between TERM and KILL.
    pub(crate) grace: Duration,
    /// The same time if the lock is lost. With zero, the tree gets KILL without TERM.
    pub(crate) loss_grace: Duration,
    /// The time between KILL and the end of the lease.
    pub(crate) reserve: Duration,
    /// False if a lost lock does not end the tree.
    pub(crate) enforce: bool,
}

impl Limits {
    /// Chooses the durations for a session whose lease has the length `lease`. `grace` is the choice of the user.
    ///
    /// A healthy client renews its lease six times in a session timeout. With the default margin, the remaining time is
    /// then never less than 5/12 of the session timeout. TERM must not come in this state, and late answers need time
    /// too. The grace period may therefore be at most half of the length minus a sixth of the session timeout. If
    /// `grace` is longer, the function returns the longest possible grace period as an error.
    pub(crate) fn choose(
        session_timeout: Duration,
        lease: Duration,
        grace: Option<Duration>,
    ) -> Result<Self, Duration> {
        let longest = lease.saturating_sub(session_timeout / 6) / 2;
        let reserve = (session_timeout / 50).min(longest / 4);
        match grace {
            Some(grace) if grace > longest => Err(longest),
            grace => {
                let grace = grace.unwrap_or(longest / 2);
                Ok(Self { grace, loss_grace: grace, reserve, enforce: true })
            }
        }
    }

    /// Returns the remaining time of the lease for which the wrapper must wait before it starts the command, or `None` if
    /// it need not wait.
    ///
    /// If the client held no lock before, its lease can be as short as a quarter of the session timeout until two
    /// heartbeats have followed (`lease_of_a_holder_is_short_until_two_heartbeats_have_followed` in the core). A long
    /// grace period does not fit into this lease, so TERM would come although the servers answer. The command may start
    /// when enough time would be left at the next heartbeat, and when the remaining time is close to its maximum, which
    /// follows from the length `lease`. A busy server may then answer the next heartbeat as late as any later one.
    pub(crate) fn lease_before_start(&self, session_timeout: Duration, lease: Duration) -> Option<Duration> {
        let look = look_interval(session_timeout);
        let needed = self.grace + self.reserve + look;
        // At the reply to a heartbeat, the rest of the lease is a twelfth of the session timeout shorter than the lease.
        let longest = lease.saturating_sub(session_timeout / 12 + look);
        (self.enforce && needed > session_timeout / 4).then(|| longest.max(needed + session_timeout / 6))
    }

    /// The time between TERM and KILL after the wrapper has died. The tree must be gone within one second.
    fn orphan_grace(&self) -> Duration {
        self.grace.min(Duration::from_millis(500))
    }
}

/// Returns the time between two looks at the state of a hold. The lease lasts for at least a third of the session
/// timeout, and thus for eight looks.
pub(crate) fn look_interval(session_timeout: Duration) -> Duration {
    session_timeout / 24
}

/// What the guardian must do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing until this time, or until the next message if there is no time.
    Wait(Option<BootTime>),
    /// Send TERM to the whole tree, once.
    Term,
    /// Send KILL to the whole tree until no process is left.
    Kill,
}

/// The state of the decision for one process tree.
#[derive(Debug)]
pub(crate) struct Policy {
    limits: Limits,
    /// The end of the lease that the wrapper reported last.
    safe_until: BootTime,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// The tree must get TERM, and KILL at the given time.
    Ending(BootTime),
    /// The tree has got TERM, and gets KILL at the given time.
    Terminated(BootTime),
}

impl Policy {
    pub(crate) const fn new(limits: Limits, safe_until: BootTime) -> Self {
        Self { limits, safe_until, phase: Phase::Running }
    }

    /// Records a new end of the lease. If the tree is already being ended, the renewal changes nothing.
    pub(crate) fn renew(&mut self, safe_until: BootTime) {
        self.safe_until = safe_until;
    }

    /// The time from which the command must not start any more.
    pub(crate) fn start_until(&self) -> BootTime {
        self.safe_until.minus(self.limits.reserve)
    }

    /// Begins to end the tree with the usual grace period.
    pub(crate) fn end(&mut self, now: BootTime) {
        self.end_within(now, self.limits.grace);
    }

    /// Begins to end the tree because the wrapper is gone.
    pub(crate) fn end_orphan(&mut self, now: BootTime) {
        self.end_within(now, self.limits.orphan_grace());
    }

    /// Begins to end the tree with KILL.
    pub(crate) fn kill(&mut self, now: BootTime) {
        self.phase = Phase::Terminated(now);
    }

    fn end_within(&mut self, now: BootTime, grace: Duration) {
        let kill_at = self.not_after_lease(now + grace);
        self.phase = match self.phase {
            Phase::Running => Phase::Ending(kill_at),
            Phase::Ending(planned) => Phase::Ending(planned.min(kill_at)),
            Phase::Terminated(planned) => Phase::Terminated(planned.min(kill_at)),
        };
    }

    /// Returns the next step. After `Term`, the caller must have sent TERM before it calls the method again.
    pub(crate) fn next(&mut self, now: BootTime) -> Step {
        let kill_at = self.not_after_lease(BootTime::from_nanos(u64::MAX));
        if self.phase == Phase::Running && self.limits.enforce {
            let term_at = kill_at.minus(self.limits.loss_grace);
            if now < term_at {
                return Step::Wait(Some(term_at));
            }
            self.phase = Phase::Ending(kill_at);
        }
        match self.phase {
            Phase::Running => Step::Wait(None),
            Phase::Ending(kill_at) if now < kill_at => {
                self.phase = Phase::Terminated(kill_at);
                Step::Term
            }
            Phase::Terminated(kill_at) if now < kill_at => Step::Wait(Some(kill_at)),
            Phase::Ending(_) | Phase::Terminated(_) => Step::Kill,
        }
    }

    /// Returns whether the policy has begun to end the tree.
    pub(crate) fn is_ending(&self) -> bool {
        self.phase != Phase::Running
    }

    fn not_after_lease(&self, time: BootTime) -> BootTime {
        if self.limits.enforce { time.min(self.safe_until.minus(self.limits.reserve)) } else { time }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> BootTime {
        BootTime::from_nanos(ms * 1_000_000)
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn policy(safe_until: u64) -> Policy {
        let limits = Limits { grace: ms(1000), loss_grace: ms(1000), reserve: ms(200), enforce: true };
        Policy::new(limits, at(safe_until))
    }

    #[test]
    fn without_a_renewal_term_comes_a_grace_before_kill_and_kill_before_the_end_of_the_lease() {
        let mut policy = policy(6000);
        assert_eq!(policy.next(at(0)), Step::Wait(Some(at(4800))));
        policy.renew(at(8000));
        assert_eq!(policy.next(at(4800)), Step::Wait(Some(at(6800))));
        assert_eq!(policy.next(at(6800)), Step::Term);
        policy.renew(at(20_000));
        assert_eq!(policy.next(at(6800)), Step::Wait(Some(at(7800))), "a late renewal does not stop the end");
        assert_eq!(policy.next(at(7800)), Step::Kill);
        assert_eq!(policy.next(at(7900)), Step::Kill);
    }

    #[test]
    fn without_a_grace_for_losses_there_is_no_term() {
        let limits = Limits { grace: ms(1000), loss_grace: ms(0), reserve: ms(200), enforce: true };
        let mut policy = Policy::new(limits, at(6000));
        assert_eq!(policy.next(at(0)), Step::Wait(Some(at(5800))));
        assert_eq!(policy.next(at(5800)), Step::Kill);
    }

    #[test]
    fn after_a_pause_of_the_guardian_kill_comes_at_once() {
        let mut policy = policy(6000);
        assert_eq!(policy.next(at(5900)), Step::Kill);
        assert!(policy.is_ending());
    }

    #[test]
    fn a_requested_end_has_the_whole_grace_unless_the_lease_ends_earlier() {
        let mut long = policy(60_000);
        long.end(at(100));
        assert_eq!(long.next(at(100)), Step::Term);
        assert_eq!(long.next(at(100)), Step::Wait(Some(at(1100))));
        assert_eq!(long.next(at(1100)), Step::Kill);
        let mut short = policy(700);
        short.end(at(100));
        assert_eq!(short.next(at(100)), Step::Term);
        assert_eq!(short.next(at(100)), Step::Wait(Some(at(500))));
    }

    #[test]
    fn an_orphan_tree_gets_half_a_second_also_while_it_is_being_ended() {
        let mut policy = policy(60_000);
        policy.end_orphan(at(0));
        assert_eq!(policy.next(at(0)), Step::Term);
        assert_eq!(policy.next(at(1)), Step::Wait(Some(at(500))));
        policy.end(at(100));
        assert_eq!(policy.next(at(100)), Step::Wait(Some(at(500))), "a later request does not move the end");
    }

    #[test]
    fn a_tree_that_may_outlive_the_lock_is_ended_only_on_request() {
        let limits = Limits { grace: ms(1000), loss_grace: ms(1000), reserve: ms(200), enforce: false };
        let mut policy = Policy::new(limits, at(0));
        assert_eq!(policy.next(at(100_000)), Step::Wait(None));
        policy.kill(at(100_000));
        assert_eq!(policy.next(at(100_000)), Step::Kill);
    }

    #[test]
    fn the_grace_fits_between_two_renewals() {
        let limits = Limits::choose(ms(12_000), ms(8000), None).unwrap();
        assert_eq!((limits.grace, limits.reserve), (ms(1500), ms(240)));
        assert_eq!(Limits::choose(ms(12_000), ms(8000), Some(ms(3001))), Err(ms(3000)));
        assert_eq!(Limits::choose(ms(12_000), ms(8000), Some(ms(3000))).unwrap().grace, ms(3000));
        assert_eq!(Limits::choose(ms(12_000), ms(4000), None).unwrap().grace, ms(500), "a large lease margin");
        let before_start = |grace| {
            let limits = Limits::choose(ms(12_000), ms(8000), grace).unwrap();
            limits.lease_before_start(ms(12_000), ms(8000))
        };
        assert_eq!(before_start(None), None);
        assert_eq!(before_start(Some(ms(3000))), Some(ms(6500)));
    }
}
