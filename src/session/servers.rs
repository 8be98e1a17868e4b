//! Which server to try next, and when.

use std::time::Duration;

use super::Entropy;
use super::connect_string::Server;

/// The wait after a first fruitless round; it doubles with every further one.
const FIRST_BACKOFF: Duration = Duration::from_millis(25);
/// No wait is longer: a server that is back should not stand idle while a lease runs out.
const LAST_BACKOFF: Duration = Duration::from_millis(500);

/// The servers of one client in a random order, so that clients spread over an ensemble.
#[derive(Debug)]
pub(super) struct Servers {
    order: Vec<Server>,
    next: usize,
    /// Tries since a connection last stood.
    failures: usize,
}

impl Servers {
    pub(super) fn new(mut order: Vec<Server>, entropy: &mut Entropy) -> Self {
        for last in (1..order.len()).rev() {
            order.swap(last, below(last as u128 + 1, entropy));
        }
        Self { order, next: 0, failures: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// The server to try now; the one after it comes next.
    pub(super) fn next(&mut self) -> Option<Server> {
        let server = self.order.get(self.next).cloned();
        self.next = (self.next + 1) % self.order.len().max(1);
        server
    }

    /// The server that was tried last comes next once more.
    pub(super) fn again(&mut self) {
        let count = self.order.len().max(1);
        self.next = (self.next + count - 1) % count;
    }

    /// A connection stood: the next failure is a first one again.
    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// How long to wait before the next try, after a connection or an attempt has failed. Every server gets its turn before
    /// any wait; waits are spread by chance, so that many clients do not come back in step.
    pub(super) fn failed(&mut self, entropy: &mut Entropy) -> Duration {
        self.failures += 1;
        if self.failures < self.len() {
            return Duration::ZERO;
        }
        let rounds = self.failures / self.len().max(1) - 1;
        let wait = FIRST_BACKOFF.saturating_mul(1 << rounds.min(10)).min(LAST_BACKOFF);
        wait / 2 + wait.mul_f64(below(1000, entropy) as f64 / 2000.0)
    }
}

fn below(limit: u128, entropy: &mut Entropy) -> usize {
    usize::try_from(entropy() % limit).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(count: u16) -> (Servers, Entropy) {
        let mut state = 7_u128;
        let mut entropy: Entropy = Box::new(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        });
        let order = (0..count).map(|port| Server { host: "h".into(), port }).collect();
        (Servers::new(order, &mut entropy), entropy)
    }

    #[test]
    fn every_server_is_tried_before_any_wait_and_waits_are_bounded() {
        let (mut servers, mut entropy) = servers(3);
        let mut tried: Vec<_> = (0..3).filter_map(|_| servers.next()).map(|s| s.port).collect();
        tried.sort_unstable();
        assert_eq!(tried, [0, 1, 2]);
        assert_eq!(servers.failed(&mut entropy), Duration::ZERO);
        assert_eq!(servers.failed(&mut entropy), Duration::ZERO);
        assert!(servers.failed(&mut entropy) >= FIRST_BACKOFF / 2);
        for _ in 0..1000 {
            assert!(servers.failed(&mut entropy) <= LAST_BACKOFF);
        }
        assert!(servers.failed(&mut entropy) >= LAST_BACKOFF / 2);
        servers.succeeded();
        assert_eq!(servers.failed(&mut entropy), Duration::ZERO);
    }

    #[test]
    fn the_last_one_can_be_asked_again() {
        for count in 1..4 {
            let (mut servers, _) = servers(count);
            for _ in 0..5 {
                let last = servers.next();
                servers.again();
                assert_eq!(servers.next(), last);
            }
        }
    }
}
