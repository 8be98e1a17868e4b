//! A queue of notifications for the program. The size of the queue is bounded, even if the program never reads a
//! notification.
//!
//! The queue keeps every notification separately until it contains a limited number of notifications. After that, the
//! queue merges new notifications about the same hold or session with each other. The program then receives fewer
//! changes, but each change still begins with the state in which the previous change ended. If a merged change ends in
//! the state in which it began, the queue drops this change. The queue never drops the loss of a hold.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use super::interface::{Event, LockId, LockState, Notification, Revocation};
use crate::session::ClientState;

/// A queue of notifications. The module documentation describes when the queue merges notifications.
#[derive(Debug)]
pub struct CoalescingQueue {
    limit: usize,
    /// The notifications up to the limit.
    in_order: VecDeque<Notification>,
    /// The notifications beyond the limit, sorted by number. The queue merges notifications with the same subject,
    /// except losses.
    overflow: BTreeMap<u64, Notification>,
    /// For each subject, the number of the notification in `overflow` with which the queue can merge a new
    /// notification.
    mergeable: HashMap<Subject, u64>,
    /// The revocation requests in `overflow`.
    revocations: BTreeSet<u64>,
    last: u64,
    /// The number of losses in the queue.
    losses: usize,
}

/// The session, the hold or the node that a notification concerns. The queue merges only notifications with the same
/// subject.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Subject {
    Session,
    Hold(LockId, i64, u32),
    Node(LockId, String),
}

impl CoalescingQueue {
    /// Creates a queue that merges nothing while it has fewer than `limit` notifications.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            in_order: VecDeque::new(),
            overflow: BTreeMap::new(),
            mergeable: HashMap::new(),
            revocations: BTreeSet::new(),
            last: 0,
            losses: 0,
        }
    }

    /// Returns the number of notifications in the queue. The number never exceeds twice the limit, plus two for the
    /// session, two for each hold, two for each lost hold, and one for each hold that ends because the program closes
    /// the client.
    pub fn len(&self) -> usize {
        self.in_order.len() + self.overflow.len()
    }

    /// Returns whether no notification waits.
    pub fn is_empty(&self) -> bool {
        self.in_order.is_empty() && self.overflow.is_empty()
    }

    /// Returns whether the loss of a hold waits.
    pub const fn has_loss(&self) -> bool {
        self.losses > 0
    }

    /// Adds a notification at the end, or merges it with an earlier one beyond the limit.
    pub fn push(&mut self, notification: Notification) {
        if self.overflow.is_empty() && self.in_order.len() < self.limit {
            self.losses += usize::from(notification.is_loss());
            return self.in_order.push_back(notification);
        }
        let subject = Subject::of(&notification);
        let Some(&at) = self.mergeable.get(&subject) else { return self.append(subject, notification) };
        let joined = match self.overflow.get_mut(&at) {
            Some(waiting) => {
                self.losses -= usize::from(waiting.is_loss());
                let joined = waiting.merge(&notification);
                self.losses += usize::from(waiting.is_loss());
                joined
            }
            None => Merge::Separate,
        };
        match joined {
            Merge::Separate => self.append(subject, notification),
            Merge::Merged => {}
            Merge::CancelsOut => {
                self.overflow.remove(&at);
                self.mergeable.remove(&subject);
            }
        }
    }

    /// Removes and returns the next notification.
    pub fn pop(&mut self) -> Option<Notification> {
        if let Some(notification) = self.in_order.pop_front() {
            self.losses -= usize::from(notification.is_loss());
            return Some(notification);
        }
        let at = *self.overflow.first_key_value()?.0;
        self.take(at)
    }

    /// Removes and returns the notifications of holds that end because the program closes the client.
    pub fn take_closed_holds(&mut self) -> Vec<Notification> {
        let first = std::mem::take(&mut self.in_order).into_iter();
        let (mut taken, kept): (Vec<_>, Vec<_>) =
            first.partition(|notification| matches!(notification, Notification::Forfeit(_)));
        self.in_order = kept.into();
        self.losses -= taken.iter().filter(|notification| notification.is_loss()).count();
        let forfeits = self
            .overflow
            .iter()
            .filter(|(_, notification)| matches!(notification, Notification::Forfeit(_)))
            .map(|(&at, _)| at);
        for at in forfeits.collect::<Vec<_>>() {
            taken.extend(self.take(at));
        }
        taken
    }

    fn append(&mut self, subject: Subject, notification: Notification) {
        self.last += 1;
        if matches!(notification, Notification::Revocation(_)) {
            self.revocations.insert(self.last);
        }
        self.mergeable.insert(subject, self.last);
        self.losses += usize::from(notification.is_loss());
        self.overflow.insert(self.last, notification);
        // The queue may drop revocation requests. The node of the oldest request most likely no longer exists.
        if self.revocations.len() > self.limit
            && let Some(&oldest) = self.revocations.first()
        {
            self.take(oldest);
        }
    }

    fn take(&mut self, at: u64) -> Option<Notification> {
        let notification = self.overflow.remove(&at)?;
        self.losses -= usize::from(notification.is_loss());
        self.revocations.remove(&at);
        let subject = Subject::of(&notification);
        // If `mergeable` refers to a later notification of the same subject, the queue can still merge that
        // notification.
        if self.mergeable.get(&subject) == Some(&at) {
            self.mergeable.remove(&subject);
        }
        Some(notification)
    }
}

/// The result of merging a notification with an earlier notification of the same subject.
enum Merge {
    Separate,
    Merged,
    /// The new state equals the last state that the queue has reported.
    CancelsOut,
}

impl Notification {
    fn merge(&mut self, newer: &Self) -> Merge {
        match (self, newer) {
            (Self::Event(waiting), Self::Event(newer)) => waiting.merge(newer),
            // The queue already contains a notification of the same revocation request.
            (Self::Revocation(_), Self::Revocation(_)) => Merge::Merged,
            _ => Merge::Separate,
        }
    }
}

impl Event {
    fn merge(&mut self, newer: &Self) -> Merge {
        let is_as_before = match (self, newer) {
            (Self::Client { state: ClientState::Lost, .. }, _) | (Self::Lock { state: LockState::Lost, .. }, _) => {
                return Merge::Separate;
            }
            (Self::Client { state, previous }, Self::Client { state: newer, .. }) => {
                *state = *newer;
                state == previous
            }
            (Self::Lock { state, previous, .. }, Self::Lock { state: newer, .. }) => {
                *state = *newer;
                state == previous
            }
            _ => return Merge::Separate,
        };
        if is_as_before { Merge::CancelsOut } else { Merge::Merged }
    }
}

impl Subject {
    fn of(notification: &Notification) -> Self {
        match notification {
            Notification::Event(Event::Client { .. }) | Notification::Forfeit(Event::Client { .. }) => Self::Session,
            Notification::Event(Event::Lock { lock, token, fencing_pass, .. })
            | Notification::Forfeit(Event::Lock { lock, token, fencing_pass, .. }) => {
                Self::Hold(*lock, *token, *fencing_pass)
            }
            Notification::Revocation(Revocation { lock, node_path }) => Self::Node(*lock, node_path.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    fn hold(token: i64, previous: LockState, state: LockState) -> Notification {
        Notification::Event(Event::Lock { lock: 1, path: Arc::from("/a"), token, fencing_pass: 0, state, previous })
    }

    fn session(previous: ClientState, state: ClientState) -> Notification {
        Notification::Event(Event::Client { state, previous })
    }

    fn request(node: usize) -> Notification {
        Notification::Revocation(Revocation { lock: 1, node_path: format!("/a/{node}") })
    }

    fn drain(queue: &mut CoalescingQueue) -> Vec<Notification> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    use ClientState::{Closed, Connected, Suspended};
    use LockState::{Free, Held, Lost, Uncertain};

    #[test]
    fn events_below_limit_are_delivered_unchanged() {
        let mut queue = CoalescingQueue::new(5);
        let all = [
            hold(7, Free, Held),
            session(Connected, Suspended),
            request(1),
            request(1),
            hold(7, Held, LockState::Suspended),
        ];
        all.iter().for_each(|notification| queue.push(notification.clone()));
        assert_eq!(drain(&mut queue), all);
        assert!(queue.is_empty());
    }

    #[test]
    fn events_above_limit_are_merged_and_reverted_changes_dropped() {
        let mut queue = CoalescingQueue::new(1);
        queue.push(session(ClientState::Connecting, Connected));
        queue.push(session(Connected, Suspended));
        queue.push(hold(7, Held, LockState::Suspended));
        queue.push(session(Suspended, Connected));
        queue.push(hold(7, LockState::Suspended, Uncertain));
        queue.push(hold(8, Free, Held));
        queue.push(session(Connected, Closed));
        queue.push(hold(8, Held, Free));
        let expected =
            [session(ClientState::Connecting, Connected), hold(7, Held, Uncertain), session(Connected, Closed)];
        assert_eq!(drain(&mut queue), expected);
    }

    #[test]
    fn loss_is_delivered_despite_later_events() {
        let mut queue = CoalescingQueue::new(0);
        queue.push(hold(7, Free, Held));
        queue.push(session(Connected, Suspended));
        queue.push(session(Suspended, ClientState::Lost));
        queue.push(hold(7, Held, Lost));
        queue.push(hold(7, Lost, Free));
        for _ in 0..3 {
            queue.push(session(ClientState::Lost, Connected));
            queue.push(session(Connected, ClientState::Lost));
        }
        queue.push(session(ClientState::Lost, Connected));
        let expected = [
            hold(7, Free, Lost),
            session(Connected, ClientState::Lost),
            hold(7, Lost, Free),
            session(ClientState::Lost, Connected),
        ];
        assert_eq!(drain(&mut queue), expected);
    }

    #[test]
    fn revocations_are_merged_and_oldest_is_dropped_above_limit() {
        let mut queue = CoalescingQueue::new(2);
        (0..5).chain(0..5).chain([4, 4]).for_each(|node| queue.push(request(node)));
        assert_eq!(drain(&mut queue), [0, 1, 3, 4].map(request));
    }

    /// Adds a million changes of a hundred holds and of the session to a queue that the program does not read.
    #[test]
    fn million_events_need_bounded_space() {
        let mut queue = CoalescingQueue::new(1024);
        let most = 2 * 1024 + 2 + 100;
        let mut count = 0;
        for round in 0_i64..1250 {
            for (previous, state) in
                [(Connected, Suspended), (Suspended, ClientState::Lost), (ClientState::Lost, Connected)]
            {
                queue.push(session(previous, state));
            }
            for token in 0..100 {
                let token = round * 100 + token;
                let steps = [Free, Held, LockState::Suspended, Uncertain, Held, LockState::Suspended, Held, Free];
                steps.windows(2).for_each(|step| queue.push(hold(token, step[0], step[1])));
                queue.push(request(usize::try_from(token).unwrap()));
                count += steps.len();
            }
            assert!(queue.len() <= most, "{} wait", queue.len());
        }
        assert_eq!(count, 1_000_000);
        assert!(queue.mergeable.len() <= most && queue.revocations.len() <= 1024);
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Hold(usize, LockState),
        Session(ClientState),
        Pop,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let states = prop::sample::select(vec![Free, Held, LockState::Suspended, Uncertain, Lost]);
        let sessions = prop::sample::select(vec![Connected, Suspended, ClientState::Lost]);
        let step = prop_oneof![
            4 => (0_usize..4, states).prop_map(|(hold, state)| Step::Hold(hold, state)),
            1 => sessions.prop_map(Step::Session),
            2 => Just(Step::Pop),
        ];
        prop::collection::vec(step, 0..200)
    }

    /// The actual state of one subject, and the state that the queue has reported to the program.
    #[derive(Debug, Clone, Copy)]
    struct Known<S> {
        actual: S,
        reported: S,
        losses: usize,
        losses_reported: usize,
    }

    impl<S: Copy + PartialEq + std::fmt::Debug> Known<S> {
        fn new(actual: S) -> Self {
            Self { actual, reported: actual, losses: 0, losses_reported: 0 }
        }

        fn report(&mut self, previous: S, state: S, lost: S) {
            assert_eq!(previous, self.reported, "the program missed a change");
            assert_ne!(previous, state, "the notification reports no change");
            self.reported = state;
            self.losses_reported += usize::from(state == lost);
        }
    }

    proptest! {
        #[test]
        fn merged_events_form_a_chain_and_losses_are_delivered(limit in 0_usize..6, steps in steps()) {
            let mut queue = CoalescingQueue::new(limit);
            let mut client = Known::new(Connected);
            let mut holds = [Known::new(Free); 4];
            // After the release of a hold, the next hold has another token.
            let mut tokens = [0_i64, 1, 2, 3];
            let mut known_holds: HashMap<i64, Known<LockState>> = HashMap::new();
            let mut deliver_next = |queue: &mut CoalescingQueue, client: &mut Known<ClientState>| match queue.pop() {
                Some(Notification::Event(Event::Client { state, previous })) => client.report(previous, state, ClientState::Lost),
                Some(Notification::Event(Event::Lock { token, state, previous, .. })) => {
                    known_holds.entry(token).or_insert_with(|| Known::new(Free)).report(previous, state, Lost);
                }
                _ => {}
            };
            let mut ends: HashMap<i64, (LockState, bool)> = HashMap::new();
            for step in steps {
                match step {
                    Step::Session(state) if state != client.actual => {
                        queue.push(session(client.actual, state));
                        client.losses += usize::from(state == ClientState::Lost);
                        client.actual = state;
                    }
                    Step::Hold(at, state) if state != holds[at].actual && (holds[at].actual != Lost || state == Free) => {
                        queue.push(hold(tokens[at], holds[at].actual, state));
                        holds[at].actual = state;
                        let end = ends.entry(tokens[at]).or_insert((Free, false));
                        *end = (state, end.1 || state == Lost);
                        if state == Free {
                            tokens[at] += 4;
                        }
                    }
                    Step::Pop => deliver_next(&mut queue, &mut client),
                    _ => {}
                }
                let waiting = queue.in_order.iter().chain(queue.overflow.values());
                assert_eq!(queue.has_loss(), waiting.into_iter().any(Notification::is_loss));
                let lost = ends.values().filter(|(_, was_lost)| *was_lost).count();
                // Apart from losses, the queue contains at most two notifications for each lock: the end of the
                // previous hold, and one change of the current hold.
                prop_assert!(queue.len() <= limit + 2 + 2 * holds.len() + 2 * lost);
            }
            while !queue.is_empty() {
                deliver_next(&mut queue, &mut client);
            }
            prop_assert_eq!(client.reported, client.actual);
            prop_assert!(client.losses == 0 || client.losses_reported > 0);
            for (token, (state, was_lost)) in ends {
                let known = known_holds.get(&token).copied().unwrap_or_else(|| Known::new(Free));
                prop_assert_eq!(known.reported, state);
                prop_assert_eq!(known.losses_reported, usize::from(was_lost));
            }
            prop_assert!(queue.mergeable.is_empty() && queue.revocations.is_empty());
        }
    }
}
