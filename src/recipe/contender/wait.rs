//! How a contender gets in: it finds its places, watches what it waits for, and is in when nobody is ahead anywhere.

use std::time::Duration;

use super::{Contender, Due, Node, Output, Place, REVOKE, Removal, Seen, Stage, Stand, Wait, Watch};
use crate::error::{Error, Status};
use crate::mutant::Mutant;
use crate::proto::{Code, EventKind, Response};
use crate::recipe::name::Mode;
use crate::recipe::rank::{Rank, rank};
use crate::recipe::{Desk, Spot, Step};
use crate::session::Failure;

impl Contender {
    /// Takes up the search for a place, and asks for the watches that are missing. Nodes that were found by their UUID are read
    /// first: their czxid and their owner are still unknown (rule 1).
    pub(super) fn go_on(&mut self, desk: &mut Desk<'_>) {
        if self.nodes().any(|node| node.czxid.is_none()) {
            return self.watch_own(desk, |node| node.czxid.is_none());
        }
        for at in 0..self.stands.len() {
            if self.stands.get(at).is_some_and(|stand| stand.place == Place::Listing) {
                self.list(desk, at);
            }
        }
        self.watch_missing(desk);
    }

    /// Finds the place of one stand.
    pub(super) fn rank(&mut self, desk: &mut Desk<'_>, at: usize, children: &[String]) -> Option<Output> {
        let Stand { wish, nodes, place, later } = self.stands.get_mut(at)?;
        if *place != Place::Listing {
            return None;
        }
        // Nobody else's are called like this: as many as there are of it, so many of ours are there.
        if children.iter().filter(|name| name.starts_with(&self.prefix)).count() < nodes.len() {
            return self.removed(desk);
        }
        *place = match (&wish.under, wish.mode) {
            (Some(under), _) if children.contains(under) || Mutant::NestBlindly.lives() => Place::First,
            // The own writer is not there any more: nothing keeps others out.
            (Some(_), _) => return self.removed(desk),
            (None, Mode::Lease) if fits(children.len(), wish.max) => Place::First,
            (None, Mode::Lease) if Mutant::CountOthersOnly.lives() && fits(children.len() - nodes.len(), wish.max) => {
                Place::First
            }
            (None, Mode::Lease) => Place::Crowded { count: children.len() },
            (None, mode) => match rank(children, &nodes.first()?.name, mode, wish.with_kazoo, later) {
                Rank::First => Place::First,
                Rank::Behind { ahead, count, is_tie } => {
                    let ahead = format!("{}/{ahead}", wish.directory);
                    Place::Waiting(Wait {
                        ahead,
                        count,
                        watch: Watch::Unset,
                        is_tie,
                        is_ours: false,
                        gap: false,
                        seen: None,
                    })
                }
                Rank::Foreign { name, family } => {
                    let why = format!("{name} belongs to {family}, which zklock can't take turns with");
                    let error = Error::new(Status::Foreign, format!("{}: {why}", wish.directory));
                    self.start_leaving(desk);
                    return Some(Output::Failed(error));
                }
            },
        };
        let is_first = *place == Place::First;
        if self.one_look && !is_first {
            self.start_leaving(desk);
            return Some(Output::Busy);
        }
        if is_first {
            return self.moved_to_first(desk);
        }
        let is_crowded = matches!(place, Place::Crowded { .. });
        self.watch_missing(desk);
        is_crowded.then_some(Output::Crowded)
    }

    /// Asks for the watches that are not set. The own nodes come first: where they are still there, what follows is sound.
    fn watch_missing(&mut self, desk: &mut Desk<'_>) {
        if Mutant::IgnoreOwnNode.lives() {
            self.nodes_mut().for_each(|node| node.watch = Watch::Set);
        }
        // Leases see their own nodes in the list that they watch.
        if self.stands.iter().any(|stand| stand.wish.mode != Mode::Lease) {
            self.watch_own(desk, |node| node.watch == Watch::Unset);
        }
        for at in 0..self.stands.len() {
            if let Some(Stand { place: Place::Waiting(wait), .. }) = self.stands.get_mut(at)
                && wait.watch == Watch::Unset
            {
                wait.watch = Watch::Asked;
                desk.watch(Step::WatchAhead(at), &wait.ahead);
            }
        }
    }

    pub(super) fn own_seen(
        &mut self,
        desk: &mut Desk<'_>,
        spot: Spot,
        result: Result<Response, Failure>,
    ) -> Option<Output> {
        let (is_leaving, is_in) = (self.is_leaving(), self.stage == Stage::In);
        let node = self.node_mut(spot)?;
        node.watch = if result.is_ok() { Watch::Set } else { Watch::Unset };
        if is_leaving {
            return None;
        }
        let (data, stat) = match result {
            Ok(Response::Data { data, stat }) => (data, stat),
            Ok(other) => return self.nonsense(desk, &other, "getData"),
            Err(Failure::ConnectionLost) => return None,
            Err(Failure::Code(Code::NO_NODE)) => return self.removed(desk),
            // It is there, without being readable. Whoever waits, though, could be misled.
            Err(Failure::Code(Code::NO_AUTH)) if is_in => return self.confirmed(spot),
            // Asked again with the next check.
            Err(Failure::Code(_)) if is_in => return None,
            Err(Failure::Code(code)) => {
                self.start_leaving(desk);
                return self.failure(code, "reading the own node in");
            }
        };
        if stat.ephemeral_owner != desk.session.id() && !Mutant::AdoptDeadNode.lives() {
            // Rule 1: it has the UUID we asked for, but another session's life.
            self.start_leaving(desk);
            return Some(Output::Removed(Removal::SessionEnded));
        }
        let was_found = node.czxid.replace(stat.czxid).is_none();
        let is_new = node.revoked_at != Some(stat.version) || Mutant::RevokeOnEveryLook.lives();
        if data.as_deref() == Some(REVOKE) && is_new && self.is_revocable {
            let node = self.node_mut(spot)?;
            node.revoked_at = Some(stat.version);
            self.revoked = Some(node.path.clone());
        }
        if was_found && self.stage == Stage::Queued && self.nodes().all(|node| node.czxid.is_some()) {
            self.go_on(desk);
        }
        if is_in { self.confirmed(spot) } else { None }
    }

    /// All its nodes have been seen, once the last of them has.
    fn confirmed(&mut self, spot: Spot) -> Option<Output> {
        self.node_mut(spot)?.is_confirmed = true;
        self.nodes().all(|node| node.is_confirmed).then_some(Output::Confirmed)
    }

    pub(super) fn ahead_seen(
        &mut self,
        desk: &mut Desk<'_>,
        at: usize,
        result: Result<Response, Failure>,
    ) -> Option<Output> {
        let is_queued = self.stage == Stage::Queued || Mutant::LetInLeaver.lives();
        let Stand { nodes, place, later, .. } = self.stands.get_mut(at)?;
        let Place::Waiting(wait) = place else { return None };
        if wait.watch != Watch::Asked || !is_queued {
            return None;
        }
        match result {
            Ok(Response::Data { data, stat }) => {
                wait.watch = Watch::Set;
                wait.seen = Some(Seen::new(stat.ephemeral_owner, data.unwrap_or_default()));
                wait.is_ours = stat.ephemeral_owner == desk.session.id();
                if wait.is_tie && nodes.first().and_then(|node| node.czxid).is_some_and(|own| own < stat.czxid) {
                    later.extend(wait.ahead.rsplit('/').next().map(str::to_owned));
                    desk.unwatch(&wait.ahead);
                    self.list(desk, at);
                }
            }
            Ok(other) => return self.nonsense(desk, &other, "getData"),
            Err(Failure::ConnectionLost) => wait.watch = Watch::Unset,
            Err(Failure::Code(Code::NO_NODE)) if Mutant::WaitForNobody.lives() => return None,
            Err(Failure::Code(Code::NO_NODE)) => return self.moved_up(desk, at),
            Err(Failure::Code(code)) => {
                self.start_leaving(desk);
                return self.failure(code, "reading the node ahead in");
            }
        }
        None
    }

    pub(super) fn fired(&mut self, desk: &mut Desk<'_>, kind: EventKind, path: &str) -> Option<Output> {
        if let Some(spot) =
            self.spots().into_iter().find(|&spot| self.node_mut(spot).is_some_and(|own| own.path == path))
        {
            self.node_mut(spot)?.watch = Watch::Unset;
            if kind == EventKind::Deleted {
                return self.removed(desk);
            }
            if matches!(self.stage, Stage::Queued | Stage::In) {
                self.watch_own(desk, |node| node.path == path);
            }
            return None;
        }
        let is_joining = self.stage == Stage::Joining { leaving: false } && !Mutant::HearNothingWhileJoining.lives();
        if self.stage != Stage::Queued && !is_joining {
            return None;
        }
        for at in 0..self.stands.len() {
            let Stand { wish, place, .. } = self.stands.get_mut(at)?;
            match place {
                Place::Waiting(wait) if wait.ahead == path => {
                    if kind == EventKind::Deleted {
                        return self.moved_up(desk, at);
                    }
                    wait.watch = Watch::Unset;
                    self.watch_missing(desk);
                }
                // Asked for anew in any case, also by who has just joined and hears what one who left had asked for: whoever hears of
                // a change is not told of the next.
                Place::Crowded { .. } | Place::Listing if wish.mode == Mode::Lease && *wish.directory == *path => {
                    self.list(desk, at);
                }
                _ => {}
            }
        }
        None
    }

    /// The node ahead is gone. If it was the only one, we are first: our own nodes were there when the watches on them were set,
    /// would have been reported gone before, and nodes are only ever added behind them. Otherwise the list tells. So it does where
    /// both nodes are of one session, whose end takes them away one after the other; and for writers, since whoever held the node
    /// ahead may have put a read lock in its place.
    fn moved_up(&mut self, desk: &mut Desk<'_>, at: usize) -> Option<Output> {
        let is_watched = self.nodes().all(|node| node.watch == Watch::Set);
        let Stand { wish, place, .. } = self.stands.get_mut(at)?;
        let is_plain =
            matches!(place, Place::Waiting(Wait { count: 1, is_tie: false, is_ours: false, gap: false, .. }));
        let may_be_replaced = wish.mode == Mode::Write && !Mutant::OverlookDowngrade.lives();
        if (is_plain && is_watched && !may_be_replaced) || Mutant::GrantOutOfTurn.lives() {
            *place = Place::First;
            return self.moved_to_first(desk);
        }
        self.stop_waiting(desk, at);
        self.list(desk, at);
        None
    }

    /// Nobody is ahead of this one. It is in when that is true of all.
    fn moved_to_first(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        if self.stands.iter().all(|stand| stand.place == Place::First) {
            return self.enter(desk);
        }
        // While others wait, this one has to stay. If they do is known with the last list.
        if self.stands.iter().all(|stand| stand.place != Place::Listing) {
            self.watch_missing(desk);
        }
        None
    }

    /// Nobody is ahead. Rule 1: granted only to nodes of the session that is surely alive now.
    fn enter(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        if self.session != desk.session.id() && !Mutant::AdoptDeadNode.lives() {
            self.start_leaving(desk);
            return Some(Output::Removed(Removal::SessionEnded));
        }
        if !desk.session.lease_runs(desk.now) && !Mutant::GrantOnDeadLease.lives() {
            // The answer was long on its way, or the process stood still: have the session confirmed, and look again.
            for at in 0..self.stands.len() {
                self.stop_waiting(desk, at);
                self.stands.get_mut(at)?.place = Place::Listing;
            }
            self.list_when_alive(desk);
            return None;
        }
        self.stop_all_waiting(desk);
        self.stage = Stage::In;
        Some(Output::In)
    }

    /// Has a quorum confirm the session, and lists. A proof that comes too soon after a silence proves too little.
    pub(super) fn list_when_alive(&mut self, desk: &mut Desk<'_>) {
        desk.session.prove(desk.now);
        match desk.session.proof_due_in(desk.now) {
            Duration::ZERO => self.go_on(desk),
            wait if self.retry.due == Due::Never => self.retry.due = Due::In(wait),
            _ => {}
        }
    }

    pub(super) fn confirm(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        if self.stage == Stage::In {
            self.nodes_mut().for_each(|node| node.is_confirmed = false);
            self.watch_own(desk, |_| true);
        }
        None
    }

    pub(super) fn max_changed(&mut self, desk: &mut Desk<'_>, max: i32) -> Option<Output> {
        for at in 0..self.stands.len() {
            let stand = self.stands.get_mut(at)?;
            stand.wish.max = max;
            if self.stage == Stage::Queued
                && matches!(stand.place, Place::Crowded { .. })
                && desk.session.is_connected()
            {
                self.list(desk, at);
            }
        }
        None
    }

    pub(super) fn watch_for_revocation(&mut self, desk: &mut Desk<'_>) {
        if self.is_revocable && matches!(self.stage, Stage::Queued | Stage::In) && desk.session.is_connected() {
            self.watch_own(desk, |_| true);
        }
    }

    fn watch_own(&mut self, desk: &mut Desk<'_>, which: impl Fn(&Node) -> bool) {
        for spot in self.spots() {
            if let Some(node) = self.node_mut(spot).filter(|node| which(node)) {
                node.watch = Watch::Asked;
                desk.watch(Step::WatchOwn(spot), &node.path);
            }
        }
    }

    fn stop_waiting(&self, desk: &mut Desk<'_>, at: usize) {
        let Some(Stand { wish, place, .. }) = self.stands.get(at) else { return };
        if let Place::Waiting(wait) = place {
            desk.unwatch(&wait.ahead);
        }
        if wish.mode == Mode::Lease {
            desk.unwatch_children(&wish.directory);
        }
    }

    pub(super) fn stop_all_waiting(&self, desk: &mut Desk<'_>) {
        (0..self.stands.len()).for_each(|at| self.stop_waiting(desk, at));
    }
}

/// Whether so many leases may be out.
fn fits(count: usize, max: i32) -> bool {
    usize::try_from(max).is_ok_and(|max| count <= max)
}
