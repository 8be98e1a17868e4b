//! The judge: looks at what the servers know and at what the clients were told, and when.
//!
//! A claim is what a program may rely on: from the moment it looked at its hold until the end of the time that was said to
//! be left, or until it releases. Whatever becomes of the client meanwhile, the claim stands.

use std::collections::{BTreeMap, BTreeSet};

use zklock::{ClientState, LockState, Time};

/// Who holds: a client and one of its threads.
pub(crate) type Holder = (usize, usize);

#[derive(Debug, Default)]
pub(crate) struct Judge {
    claims: BTreeMap<Holder, Claim>,
    /// The newest token that was given out for each path.
    last: BTreeMap<usize, i64>,
    /// Nodes that are no more, and since when.
    gone: BTreeMap<i64, Time>,
    /// Those that are, by directory.
    queues: BTreeMap<String, BTreeSet<i64>>,
    /// Nodes that somebody took away who may: no claim to them is worth anything any more.
    void: BTreeSet<i64>,
    /// What was told of each session, by client.
    clients: BTreeMap<usize, ClientState>,
    /// What was told of each hold, by client, lock and token.
    told: BTreeMap<(usize, u64, i64), LockState>,
    pub(crate) grants: usize,
    pub(crate) losses: usize,
    pub(crate) verdict: Option<String>,
}

#[derive(Debug)]
struct Claim {
    path: usize,
    token: i64,
    until: Time,
}

impl Judge {
    pub(crate) fn blame(&mut self, what: impl FnOnce() -> String) {
        self.verdict.get_or_insert_with(what);
    }

    /// A node is made.
    pub(crate) fn created(&mut self, directory: &str, token: i64) {
        self.queues.entry(directory.to_owned()).or_default().insert(token);
    }

    /// Somebody was told that he has the lock. What happened before `since` he should know.
    pub(crate) fn granted(&mut self, now: Time, holder: Holder, path: usize, directory: &str, token: i64, since: Time) {
        self.grants += 1;
        self.claims.insert(holder, Claim { path, token, until: now });
        if self.gone.get(&token).is_some_and(|&gone| gone < since) {
            self.blame(|| format!("path {path}: {holder:?} was granted token {token}, whose node had long been gone"));
        }
        // He will hear in a moment that somebody took his node away.
        if self.void.contains(&token) {
            return;
        }
        let last = self.last.entry(path).or_insert(i64::MIN);
        if token <= *last {
            let last = *last;
            self.blame(|| format!("path {path}: token {token} was given out after {last}"));
        }
        self.last.insert(path, token);
        let other = self.claims.iter().find(|&(&other, claim)| {
            other != holder && claim.path == path && claim.until > now && !self.void.contains(&claim.token)
        });
        if let Some((other, claim)) = other {
            let text = format!(
                "two hold path {path}: {holder:?} was granted token {token} while {other:?} may rely on token {} for {:?}",
                claim.token,
                claim.until - now
            );
            self.blame(|| text);
        }
        // Who has left may still seem to be there, but nobody who is there may be overtaken.
        if let Some(&first) = self.queues.get(directory).and_then(BTreeSet::first)
            && first < token
        {
            self.blame(|| {
                format!("path {path}: {holder:?} was granted token {token} before {first}, which is still there")
            });
        }
        if self.gone.contains_key(&token) {
            self.blame(|| format!("path {path}: {holder:?} was granted token {token}, whose node is gone"));
        }
    }

    /// Somebody looked at his hold, and it is safe until then.
    pub(crate) fn safe(&mut self, now: Time, holder: Holder, token: i64, until: Time) {
        let Some(claim) = self.claims.get_mut(&holder) else { return };
        claim.until = claim.until.max(until);
        if until > now && self.gone.contains_key(&token) && !self.void.contains(&token) {
            self.blame(|| format!("{holder:?} takes token {token} for safe, whose node is gone"));
        }
    }

    /// Somebody has begun to release.
    pub(crate) fn released(&mut self, holder: Holder) {
        self.claims.remove(&holder);
    }

    /// A client is no more: whoever worked with its holds is gone too.
    pub(crate) fn died(&mut self, client: usize) {
        self.claims.retain(|&(owner, _), _| owner != client);
    }

    /// Nobody will tell this client's program anything any more.
    pub(crate) fn forgotten(&mut self, client: usize) {
        self.told.retain(|&(owner, _, _), _| owner != client);
    }

    /// A node is about to be taken away by somebody who may.
    pub(crate) fn voided(&mut self, token: i64) {
        self.void.insert(token);
    }

    /// A node is taken away.
    pub(crate) fn removed(&mut self, now: Time, token: i64) {
        self.gone.insert(token, now);
        self.queues.values_mut().for_each(|queue| {
            queue.remove(&token);
        });
        if self.void.contains(&token) {
            return;
        }
        if let Some((holder, claim)) = self.claims.iter().find(|(_, claim)| claim.token == token && claim.until > now) {
            let text = format!(
                "the node of token {token} was removed while {holder:?} may rely on it for {:?}",
                claim.until - now
            );
            self.blame(|| text);
        }
    }

    /// A client's program was told how a hold stands.
    pub(crate) fn told(&mut self, client: usize, lock: u64, token: i64, previous: LockState, state: LockState) {
        let key = (client, lock, token);
        let before = self.told.get(&key).copied().unwrap_or(LockState::Free);
        if before != previous {
            self.blame(|| {
                format!("client {client}: token {token} was {before:?} and is now told to have been {previous:?}")
            });
        }
        if before == state {
            self.blame(|| format!("client {client}: token {token} was told twice to be {state:?}"));
        }
        if before == LockState::Lost && state != LockState::Free {
            self.blame(|| format!("client {client}: token {token} was lost and came back as {state:?}"));
        }
        self.losses += usize::from(state == LockState::Lost);
        self.told.insert(key, state);
    }

    /// A client's program was told how its session stands.
    pub(crate) fn told_client(&mut self, client: usize, previous: ClientState, state: ClientState) {
        let before = self.clients.insert(client, state).unwrap_or(ClientState::Connecting);
        if before != previous || before == state {
            self.blame(|| {
                format!("client {client} was {before:?} and is told to have been {previous:?} and to be {state:?}")
            });
        }
    }

    /// A client's program looked at its session, with nothing due.
    pub(crate) fn seen_client(&mut self, client: usize, state: ClientState) {
        let told = self.clients.get(&client).copied().unwrap_or(ClientState::Connecting);
        if told != state {
            self.blame(|| format!("client {client} is {state:?}, and was told to be {told:?}"));
        }
    }

    /// A client's program looked, with nothing due: what it sees is what it was told.
    pub(crate) fn seen(&mut self, client: usize, lock: u64, token: i64, state: LockState) {
        let told = self.told.get(&(client, lock, token)).copied().unwrap_or(LockState::Free);
        if told != state {
            self.blame(|| format!("client {client}: token {token} is {state:?}, and was told to be {told:?}"));
        }
    }

    /// Everything is over: nobody has anything.
    pub(crate) fn ended(&mut self) {
        let left = self.told.iter().find(|&(_, &state)| state != LockState::Free).map(|(key, state)| (*key, *state));
        if let Some((key, state)) = left {
            self.blame(|| format!("{key:?} was told to be {state:?} at last"));
        }
    }
}
