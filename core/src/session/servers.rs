//! Chooses the next server for a connection attempt, and the pause before the attempt. If the server list changes, this
//! file also decides whether the client moves to another server, so that the load spreads over the new list.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use super::connect_string::Server;

/// The pause after all servers have failed once. The pause doubles after every further round of failures.
const FIRST_BACKOFF: Duration = Duration::from_millis(25);
/// The longest pause before a connection attempt. During a longer pause, a lease could end although a server is
/// available again.
const LAST_BACKOFF: Duration = Duration::from_millis(500);

/// A source of random numbers for UUIDs, the order of the servers and the length of pauses. The simulation passes a
/// seeded generator.
pub(crate) type Entropy = Box<dyn FnMut() -> u128 + Send>;

/// The servers that a client uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerList {
    pub(super) servers: Vec<Server>,
    /// The servers that the client tries after all of `servers` have failed.
    pub(super) fallback: Vec<Server>,
}

/// What a connected client does after its server list has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Migration {
    /// The client keeps its connection.
    Stay,
    /// The client moves to an added server, because its present server has more than its share of the clients.
    Rebalance,
    /// The client moves to another server, because the list no longer contains its present server.
    Leave,
}

/// The servers of one client in random order. The random order distributes the clients over the servers.
#[derive(Debug)]
pub(super) struct Servers {
    order: Vec<Server>,
    fallback: Vec<Server>,
    /// The servers that the client has not tried in the present round. A round contains each server once.
    round: VecDeque<Server>,
    /// The server of the last attempt. The next round begins with the server after this one.
    last: Option<Server>,
    /// The number of failed attempts since a connection was last established.
    failures: usize,
}

impl Servers {
    pub(super) fn new(servers: Vec<Server>, entropy: &mut Entropy) -> Self {
        let order = shuffled(servers, entropy);
        Self { order, fallback: Vec::new(), round: VecDeque::new(), last: None, failures: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.order.len() + self.fallback.len()
    }

    /// Returns all servers, each once.
    pub(super) fn all(&self) -> impl Iterator<Item = &Server> {
        self.order.iter().chain(&self.fallback)
    }

    pub(super) fn contains(&self, server: &Server) -> bool {
        self.all().any(|listed| listed == server)
    }

    /// Returns the server for the next attempt. A later call returns the server after this one.
    pub(super) fn next(&mut self) -> Option<Server> {
        if self.round.is_empty() {
            self.round = self.next_round();
        }
        self.last = self.round.pop_front();
        self.last.clone()
    }

    fn next_round(&self) -> VecDeque<Server> {
        let last = self.order.iter().position(|server| Some(server) == self.last.as_ref());
        let (before, after) = self.order.split_at(last.map_or(0, |last| last + 1));
        after.iter().chain(before).chain(&self.fallback).cloned().collect()
    }

    /// Makes the next attempt use the same server as the last attempt.
    pub(super) fn retry_last(&mut self) {
        self.round.extend(self.last.clone());
        self.round.rotate_right(usize::from(self.last.is_some()));
    }

    /// Records that a connection was established. This call resets the pause to zero, and begins a new round.
    pub(super) fn record_success(&mut self) {
        self.failures = 0;
        self.round.clear();
    }

    /// Records a failed attempt or a lost connection. Returns the pause before the next attempt.
    ///
    /// The pause is zero until every server has failed once. Pauses are random within limits, so that many clients do
    /// not reconnect at the same time.
    pub(super) fn record_failure(&mut self, entropy: &mut Entropy) -> Duration {
        self.failures += 1;
        if self.failures < self.len() {
            return Duration::ZERO;
        }
        let rounds = self.failures / self.len().max(1) - 1;
        let wait = FIRST_BACKOFF.saturating_mul(1 << rounds.min(10)).min(LAST_BACKOFF);
        wait / 2 + wait.mul_f64(random_below(1000, entropy) as f64 / 2000.0)
    }

    /// Replaces the server list. `present` is the server of the present connection, if there is one. The next calls of
    /// [`next`](Self::next) return the servers in the order in which the client must try them.
    ///
    /// If each of the old servers had the same number of clients, then each of the new servers has about the same
    /// number of clients after all clients have moved. No more clients move than this goal requires. The rules are
    /// those of ZooKeeper's Java client.
    pub(super) fn replace(&mut self, list: ServerList, present: Option<&Server>, entropy: &mut Entropy) -> Migration {
        let before = std::mem::take(&mut self.order);
        let listed: HashSet<&Server> = list.servers.iter().collect();
        let rest = list.fallback.into_iter().filter(|server| !listed.contains(server)).collect();
        self.fallback = shuffled(rest, entropy);
        self.order = shuffled(list.servers, entropy);
        self.round.clear();
        self.failures = 0;
        self.last = present.cloned();
        let Some(present) = present else { return Migration::Stay };
        let known: HashSet<&Server> = before.iter().collect();
        let (kept, added): (Vec<_>, Vec<_>) = self.order.iter().cloned().partition(|server| known.contains(server));
        let change = ListChange { before: before.len(), kept, added };
        let migration = change.migration(present, entropy);
        self.round = match migration {
            Migration::Stay => VecDeque::new(),
            // If the added server does not answer, the client returns to its present server. A hold then stays safe.
            Migration::Rebalance => change.added.iter().take(1).chain([present]).cloned().collect(),
            Migration::Leave => change.round_after_leaving(entropy),
        };
        let in_round: HashSet<&Server> = self.round.iter().collect();
        let missing: Vec<Server> = self.all().filter(|server| !in_round.contains(server)).cloned().collect();
        if migration != Migration::Stay {
            self.round.extend(missing);
        }
        migration
    }
}

/// A change of the server list.
struct ListChange {
    /// The number of servers before the change.
    before: usize,
    /// The servers that both lists contain, in random order.
    kept: Vec<Server>,
    /// The servers that only the new list contains, in random order.
    added: Vec<Server>,
}

impl ListChange {
    fn after(&self) -> usize {
        self.kept.len() + self.added.len()
    }

    /// Decides whether a client of the server `present` moves.
    ///
    /// A kept server had a share of 1/before of the clients, and its new share is 1/after. If the list has grown, a
    /// client of a kept server therefore stays with probability before/after.
    fn migration(&self, present: &Server, entropy: &mut Entropy) -> Migration {
        match (self.kept.contains(present), self.added.contains(present)) {
            (false, false) => Migration::Leave,
            // The client used the server as a fallback.
            (false, true) => Migration::Stay,
            _ if self.after() <= self.before => Migration::Stay,
            _ if random_below(self.after() as u128, entropy) < self.before => Migration::Stay,
            _ => Migration::Rebalance,
        }
    }

    /// Returns the order in which a client tries the servers after its server was removed.
    ///
    /// If the list has grown, all clients of removed servers move to added servers. Otherwise, the share of each kept
    /// server grows by 1/after - 1/before. The clients of the (before - kept) removed servers are the only ones that
    /// move. Each of these clients therefore chooses a kept server with probability kept * (before - after) / (after *
    /// (before - kept)).
    fn round_after_leaving(&self, entropy: &mut Entropy) -> VecDeque<Server> {
        let (mut kept, mut added) = (VecDeque::from(self.kept.clone()), VecDeque::from(self.added.clone()));
        let wanted = self.kept.len() * self.before.saturating_sub(self.after());
        let of = (self.after() * self.before.saturating_sub(self.kept.len())).max(1);
        let mut round = VecDeque::new();
        loop {
            let is_kept = added.is_empty() || (!kept.is_empty() && random_below(of as u128, entropy) < wanted);
            match if is_kept { &mut kept } else { &mut added }.pop_front() {
                Some(server) => round.push_back(server),
                None => return round,
            }
        }
    }
}

/// Returns the servers in random order, without repetitions.
fn shuffled(servers: Vec<Server>, entropy: &mut Entropy) -> Vec<Server> {
    let mut seen = HashSet::with_capacity(servers.len());
    let mut order: Vec<Server> = servers.into_iter().filter(|server| seen.insert(server.clone())).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, random_below(last as u128 + 1, entropy));
    }
    order
}

fn random_below(limit: u128, entropy: &mut Entropy) -> usize {
    usize::try_from(entropy() % limit).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn entropy(mut state: u128) -> Entropy {
        Box::new(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) & 0x7fff_ffff
        })
    }

    fn list(ports: impl IntoIterator<Item = u16>) -> Vec<Server> {
        ports.into_iter().map(|port| Server { host: "h".into(), port }).collect()
    }

    fn change(ports: impl IntoIterator<Item = u16>) -> ServerList {
        ServerList { servers: list(ports), fallback: Vec::new() }
    }

    fn servers(count: u16) -> (Servers, Entropy) {
        let mut entropy = entropy(7);
        (Servers::new(list(0..count), &mut entropy), entropy)
    }

    /// Returns the ports of one round of attempts.
    fn round(servers: &mut Servers) -> Vec<u16> {
        (0..servers.len()).filter_map(|_| servers.next()).map(|server| server.port).collect()
    }

    #[test]
    fn every_server_is_tried_before_any_wait_and_waits_are_bounded() {
        let (mut servers, mut entropy) = servers(3);
        let mut tried = round(&mut servers);
        tried.sort_unstable();
        assert_eq!(tried, [0, 1, 2]);
        assert_eq!(servers.record_failure(&mut entropy), Duration::ZERO);
        assert_eq!(servers.record_failure(&mut entropy), Duration::ZERO);
        assert!(servers.record_failure(&mut entropy) >= FIRST_BACKOFF / 2);
        for _ in 0..1000 {
            assert!(servers.record_failure(&mut entropy) <= LAST_BACKOFF);
        }
        assert!(servers.record_failure(&mut entropy) >= LAST_BACKOFF / 2);
        servers.record_success();
        assert_eq!(servers.record_failure(&mut entropy), Duration::ZERO);
    }

    #[test]
    fn retry_last_returns_the_last_server() {
        for count in 1..4 {
            let (mut servers, _) = servers(count);
            for _ in 0..5 {
                let last = servers.next();
                servers.retry_last();
                assert_eq!(servers.next(), last);
            }
        }
    }

    #[test]
    fn fallback_servers_are_tried_after_all_others() {
        let (mut servers, mut entropy) = servers(2);
        let with_fallback = ServerList { servers: list([2, 3, 4]), fallback: list([0, 3, 1]) };
        let _ = servers.replace(with_fallback, None, &mut entropy);
        for _ in 0..3 {
            let tried = round(&mut servers);
            assert!(tried[..3].iter().all(|port| *port > 1) && tried[3..].iter().all(|port| *port < 2), "{tried:?}");
            // A connection that lasted begins a new round, so the fallback servers come last again.
            servers.next().unwrap();
            servers.record_success();
        }
    }

    #[test]
    fn client_that_rebalances_tries_one_added_server_and_then_returns() {
        let (mut servers, mut entropy) = servers(1);
        let present = servers.next();
        while servers.replace(change([0, 1, 2, 3]), present.as_ref(), &mut entropy) != Migration::Rebalance {
            let _ = servers.replace(change([0]), present.as_ref(), &mut entropy);
        }
        let tried = round(&mut servers);
        assert!(tried[0] > 0 && tried[1] == 0, "{tried:?}");
    }

    /// Many clients change from one list to the next. Afterwards, each server must have its share of the clients, and
    /// no more clients may have moved than necessary.
    #[test]
    fn clients_spread_evenly_over_each_new_list() {
        const CLIENTS: usize = 60_000;
        let lists: [&[u16]; 9] =
            [&[1], &[1, 2, 3], &[1, 2, 3, 4, 5], &[4, 5, 6, 7], &[4, 8, 9], &[4, 8, 9, 10, 1], &[2, 3], &[3, 2], &[2]];
        let mut clients: Vec<(Servers, Entropy, Option<Server>)> = (0..CLIENTS)
            .map(|seed| {
                let mut entropy = entropy(seed as u128 * 0x9e37_79b9_7f4a_7c15);
                let mut servers = Servers::new(list(lists[0].iter().copied()), &mut entropy);
                let present = servers.next();
                (servers, entropy, present)
            })
            .collect();
        for step in lists.windows(2) {
            let mut moved = 0;
            let mut load: BTreeMap<u16, usize> = BTreeMap::new();
            for (servers, entropy, present) in &mut clients {
                let migration = servers.replace(change(step[1].iter().copied()), present.as_ref(), entropy);
                if migration != Migration::Stay {
                    moved += 1;
                    *present = servers.next();
                }
                *load.entry(present.as_ref().unwrap().port).or_default() += 1;
            }
            let share = CLIENTS / step[1].len();
            assert_eq!(load.len(), step[1].len(), "{step:?}: {load:?}");
            // With this number of clients, six standard deviations are less than 3 % of a share.
            for (port, count) in &load {
                assert!(count.abs_diff(share) < share * 3 / 100, "{step:?}: server {port} of {load:?}");
            }
            let kept = step[1].iter().filter(|port| step[0].contains(port)).count();
            let stays = kept as f64 / step[0].len().max(step[1].len()) as f64;
            let expected = CLIENTS as f64 * (1.0 - stays);
            assert!((moved as f64 - expected).abs() < CLIENTS as f64 * 0.02, "{step:?}: {moved} moved, not {expected}");
        }
    }

    proptest! {
        /// After any sequence of changes, a round contains each server of the list exactly once.
        #[test]
        fn each_round_contains_each_server_once(
            changes in prop::collection::vec((prop::collection::vec(0_u16..8, 1..8), prop::collection::vec(0_u16..8, 0..4), any::<bool>(), 0_usize..12), 1..12),
            seed in any::<u64>(),
        ) {
            let mut entropy = entropy(u128::from(seed));
            let mut servers = Servers::new(list([0, 1, 1]), &mut entropy);
            let mut present = servers.next();
            for (ports, fallback, is_connected, attempts) in changes {
                let connected = present.as_ref().filter(|_| is_connected);
                let new = ServerList { servers: list(ports.clone()), fallback: list(fallback.clone()) };
                let migration = servers.replace(new, connected, &mut entropy);
                let is_listed = connected.is_some_and(|server| ports.contains(&server.port));
                prop_assert_eq!(migration == Migration::Leave, connected.is_some() && !is_listed);
                let mut expected: Vec<u16> = ports.into_iter().chain(fallback).collect();
                expected.sort_unstable();
                expected.dedup();
                prop_assert_eq!(servers.len(), expected.len());
                for _ in 0..2 {
                    let mut tried = round(&mut servers);
                    tried.sort_unstable();
                    prop_assert_eq!(&tried, &expected);
                }
                for _ in 0..attempts {
                    present = servers.next();
                    prop_assert!(present.is_some());
                }
            }
        }
    }
}
