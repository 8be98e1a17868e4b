//! News that wait to be told to the program, in order, and in bounded space however long nobody listens.
//!
//! Up to a limit all of them are kept. What comes on top of that is joined with the last news of the same hold, or of the session, that
//! came on top: the program is told fewer steps, and each begins where the one before ended. What changed and changed back is
//! not told at all. An end is never lost: a hold that was lost is told to be lost, whatever came after.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use super::{Event, LockId, LockState, News, Revocation};
use crate::session::ClientState;

/// What waits to be told; see the module's description.
#[derive(Debug)]
pub struct Backlog {
    limit: usize,
    /// As it came.
    first: VecDeque<News>,
    /// What came when that was full, by its number; one of each subject, and losses.
    rest: BTreeMap<u64, News>,
    /// The news in the rest that others can be joined with.
    open: HashMap<Subject, u64>,
    /// The revocations in the rest.
    requests: BTreeSet<u64>,
    last: u64,
}

/// What news are about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Subject {
    Session,
    Hold(LockId, i64, u32),
    Node(LockId, String),
}

impl Backlog {
    /// One that joins nothing while fewer than `limit` wait.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            first: VecDeque::new(),
            rest: BTreeMap::new(),
            open: HashMap::new(),
            requests: BTreeSet::new(),
            last: 0,
        }
    }

    /// How many wait: at most twice the limit, two for the session, one for each hold and one for
    /// the end of the hold before it, and two for each hold that was lost.
    pub fn len(&self) -> usize {
        self.first.len() + self.rest.len()
    }

    /// Whether none wait.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.rest.is_empty()
    }

    /// Something has happened.
    pub fn push(&mut self, news: News) {
        if self.rest.is_empty() && self.first.len() < self.limit {
            return self.first.push_back(news);
        }
        let subject = Subject::of(&news);
        let Some(&at) = self.open.get(&subject) else { return self.append(subject, news) };
        let joined = match self.rest.get_mut(&at) {
            Some(waiting) => waiting.join(&news),
            None => Joined::Not,
        };
        match joined {
            Joined::Not => self.append(subject, news),
            Joined::Into => {}
            Joined::ToNothing => {
                self.rest.remove(&at);
                self.open.remove(&subject);
            }
        }
    }

    /// The next to be told.
    pub fn pop(&mut self) -> Option<News> {
        if let Some(news) = self.first.pop_front() {
            return Some(news);
        }
        let at = *self.rest.first_key_value()?.0;
        self.take(at)
    }

    fn append(&mut self, subject: Subject, news: News) {
        self.last += 1;
        if matches!(news, News::Revocation(_)) {
            self.requests.insert(self.last);
        }
        self.open.insert(subject, self.last);
        self.rest.insert(self.last, news);
        // A request is no promise, and the oldest is the likeliest to be for a node that is gone.
        if self.requests.len() > self.limit
            && let Some(&oldest) = self.requests.first()
        {
            self.take(oldest);
        }
    }

    fn take(&mut self, at: u64) -> Option<News> {
        let news = self.rest.remove(&at)?;
        self.requests.remove(&at);
        let subject = Subject::of(&news);
        // A later one of the same subject stays open.
        if self.open.get(&subject) == Some(&at) {
            self.open.remove(&subject);
        }
        Some(news)
    }
}

/// What became of news that are about the same as others that wait.
enum Joined {
    Not,
    Into,
    /// All is again as it was told last.
    ToNothing,
}

impl News {
    fn join(&mut self, newer: &Self) -> Joined {
        match (self, newer) {
            (Self::Event(waiting), Self::Event(newer)) => waiting.join(newer),
            // It is asked for already.
            (Self::Revocation(_), Self::Revocation(_)) => Joined::Into,
            _ => Joined::Not,
        }
    }
}

impl Event {
    fn join(&mut self, newer: &Self) -> Joined {
        let is_as_before = match (self, newer) {
            (Self::Client { state: ClientState::Lost, .. }, _) | (Self::Lock { state: LockState::Lost, .. }, _) => {
                return Joined::Not;
            }
            (Self::Client { state, previous }, Self::Client { state: newer, .. }) => {
                *state = *newer;
                state == previous
            }
            (Self::Lock { state, previous, .. }, Self::Lock { state: newer, .. }) => {
                *state = *newer;
                state == previous
            }
            _ => return Joined::Not,
        };
        if is_as_before { Joined::ToNothing } else { Joined::Into }
    }
}

impl Subject {
    fn of(news: &News) -> Self {
        match news {
            News::Event(Event::Client { .. }) => Self::Session,
            News::Event(Event::Lock { lock, token, pass, .. }) => Self::Hold(*lock, *token, *pass),
            News::Revocation(Revocation { lock, node_path }) => Self::Node(*lock, node_path.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    fn hold(token: i64, previous: LockState, state: LockState) -> News {
        News::Event(Event::Lock { lock: 1, path: Arc::from("/a"), token, pass: 0, state, previous })
    }

    fn session(previous: ClientState, state: ClientState) -> News {
        News::Event(Event::Client { state, previous })
    }

    fn request(node: usize) -> News {
        News::Revocation(Revocation { lock: 1, node_path: format!("/a/{node}") })
    }

    fn told(backlog: &mut Backlog) -> Vec<News> {
        std::iter::from_fn(|| backlog.pop()).collect()
    }

    use ClientState::{Closed, Connected, Suspended};
    use LockState::{Free, Held, Lost, Uncertain};

    #[test]
    fn up_to_the_limit_all_is_told_as_it_came() {
        let mut backlog = Backlog::new(5);
        let all = [
            hold(7, Free, Held),
            session(Connected, Suspended),
            request(1),
            request(1),
            hold(7, Held, LockState::Suspended),
        ];
        all.iter().for_each(|news| backlog.push(news.clone()));
        assert_eq!(told(&mut backlog), all);
        assert!(backlog.is_empty());
    }

    #[test]
    fn steps_are_joined_and_what_changed_back_is_not_told() {
        let mut backlog = Backlog::new(1);
        backlog.push(session(ClientState::Connecting, Connected));
        backlog.push(session(Connected, Suspended));
        backlog.push(hold(7, Held, LockState::Suspended));
        backlog.push(session(Suspended, Connected));
        backlog.push(hold(7, LockState::Suspended, Uncertain));
        backlog.push(hold(8, Free, Held));
        backlog.push(session(Connected, Closed));
        backlog.push(hold(8, Held, Free));
        let expected =
            [session(ClientState::Connecting, Connected), hold(7, Held, Uncertain), session(Connected, Closed)];
        assert_eq!(told(&mut backlog), expected);
    }

    #[test]
    fn a_loss_is_told_whatever_comes_after() {
        let mut backlog = Backlog::new(0);
        backlog.push(hold(7, Free, Held));
        backlog.push(session(Connected, Suspended));
        backlog.push(session(Suspended, ClientState::Lost));
        backlog.push(hold(7, Held, Lost));
        backlog.push(hold(7, Lost, Free));
        for _ in 0..3 {
            backlog.push(session(ClientState::Lost, Connected));
            backlog.push(session(Connected, ClientState::Lost));
        }
        backlog.push(session(ClientState::Lost, Connected));
        let expected = [
            hold(7, Free, Lost),
            session(Connected, ClientState::Lost),
            hold(7, Lost, Free),
            session(ClientState::Lost, Connected),
        ];
        assert_eq!(told(&mut backlog), expected);
    }

    #[test]
    fn requests_are_told_once_and_the_oldest_is_forgotten_where_there_are_too_many() {
        let mut backlog = Backlog::new(2);
        (0..5).chain(0..5).chain([4, 4]).for_each(|node| backlog.push(request(node)));
        assert_eq!(told(&mut backlog), [0, 1, 3, 4].map(request));
    }

    /// A handler that stands still while a hundred holds and the session go through a million changes.
    #[test]
    fn a_million_changes_take_the_space_of_a_thousand() {
        let mut backlog = Backlog::new(1024);
        let most = 2 * 1024 + 2 + 100;
        let mut count = 0;
        for round in 0_i64..1250 {
            for (previous, state) in
                [(Connected, Suspended), (Suspended, ClientState::Lost), (ClientState::Lost, Connected)]
            {
                backlog.push(session(previous, state));
            }
            for token in 0..100 {
                let token = round * 100 + token;
                let steps = [Free, Held, LockState::Suspended, Uncertain, Held, LockState::Suspended, Held, Free];
                steps.windows(2).for_each(|step| backlog.push(hold(token, step[0], step[1])));
                backlog.push(request(usize::try_from(token).unwrap()));
                count += steps.len();
            }
            assert!(backlog.len() <= most, "{} wait", backlog.len());
        }
        assert_eq!(count, 1_000_000);
        assert!(backlog.open.len() <= most && backlog.requests.len() <= 1024);
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Hold(usize, LockState),
        Session(ClientState),
        Tell,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let states = prop::sample::select(vec![Free, Held, LockState::Suspended, Uncertain, Lost]);
        let sessions = prop::sample::select(vec![Connected, Suspended, ClientState::Lost]);
        let step = prop_oneof![
            4 => (0_usize..4, states).prop_map(|(hold, state)| Step::Hold(hold, state)),
            1 => sessions.prop_map(Step::Session),
            2 => Just(Step::Tell),
        ];
        prop::collection::vec(step, 0..200)
    }

    /// What the program knows of one subject.
    #[derive(Debug, Clone, Copy)]
    struct Known<S> {
        is: S,
        told: S,
        losses: usize,
        losses_told: usize,
    }

    impl<S: Copy + PartialEq + std::fmt::Debug> Known<S> {
        fn new(is: S) -> Self {
            Self { is, told: is, losses: 0, losses_told: 0 }
        }

        fn told(&mut self, previous: S, state: S, lost: S) {
            assert_eq!(previous, self.told, "a step is missing");
            assert_ne!(previous, state, "nothing has happened");
            self.told = state;
            self.losses_told += usize::from(state == lost);
        }
    }

    proptest! {
        #[test]
        fn chains_hold_and_ends_are_told(limit in 0_usize..6, steps in steps()) {
            let mut backlog = Backlog::new(limit);
            let mut client = Known::new(Connected);
            let mut holds = [Known::new(Free); 4];
            // A hold that is free again is followed by another one.
            let mut tokens = [0_i64, 1, 2, 3];
            let mut told: HashMap<i64, Known<LockState>> = HashMap::new();
            let mut tell = |backlog: &mut Backlog, client: &mut Known<ClientState>| match backlog.pop() {
                Some(News::Event(Event::Client { state, previous })) => client.told(previous, state, ClientState::Lost),
                Some(News::Event(Event::Lock { token, state, previous, .. })) => {
                    told.entry(token).or_insert_with(|| Known::new(Free)).told(previous, state, Lost);
                }
                _ => {}
            };
            let mut ends: HashMap<i64, (LockState, bool)> = HashMap::new();
            for step in steps {
                match step {
                    Step::Session(state) if state != client.is => {
                        backlog.push(session(client.is, state));
                        client.losses += usize::from(state == ClientState::Lost);
                        client.is = state;
                    }
                    Step::Hold(at, state) if state != holds[at].is && (holds[at].is != Lost || state == Free) => {
                        backlog.push(hold(tokens[at], holds[at].is, state));
                        holds[at].is = state;
                        let end = ends.entry(tokens[at]).or_insert((Free, false));
                        *end = (state, end.1 || state == Lost);
                        if state == Free {
                            tokens[at] += 4;
                        }
                    }
                    Step::Tell => tell(&mut backlog, &mut client),
                    _ => {}
                }
                let lost = ends.values().filter(|(_, was_lost)| *was_lost).count();
                // That one which was told of has ended, and of the next.
                prop_assert!(backlog.len() <= limit + 2 + 2 * holds.len() + 2 * lost);
            }
            while !backlog.is_empty() {
                tell(&mut backlog, &mut client);
            }
            prop_assert_eq!(client.told, client.is);
            prop_assert!(client.losses == 0 || client.losses_told > 0);
            for (token, (state, was_lost)) in ends {
                let known = told.get(&token).copied().unwrap_or_else(|| Known::new(Free));
                prop_assert_eq!(known.told, state);
                prop_assert_eq!(known.losses_told, usize::from(was_lost));
            }
            prop_assert!(backlog.open.is_empty() && backlog.requests.is_empty());
        }
    }
}
