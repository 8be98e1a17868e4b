//! How a contender gets in: it finds its places, watches what it waits for, and is in when nobody is ahead anywhere.

use std::time::Duration;

use super::{Contender, Due, Node, Output, Place, REVOKE, Removal, Seen, Stage, Stand, Wait, Watch, name_of};
use crate::error::{Error, Status};
use crate::mutant::Mutant;
use crate::proto::{Code, EventKind, Request, Response};
use crate::recipe::mirror::View;
use crate::recipe::name::{Mode, kin};
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
        // Servers answer in order, so a lost node in a place that was first before is known before the last list lets the others in.
        if !Mutant::ListFirst.lives() {
            self.watch_missing(desk);
        }
        for at in 0..self.stands.len() {
            if self.stands.get(at).is_some_and(|stand| stand.place == Place::Listing) {
                self.list(desk, at);
            }
        }
        if Mutant::ListFirst.lives() {
            self.watch_missing(desk);
        }
    }

    /// Finds the places that a mirror shows; whatever it can't show is listed, unless that is under way.
    pub(super) fn seek_all(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        (0..self.stands.len()).find_map(|at| match self.stands.get(at) {
            Some(Stand { place: Place::Listing, is_asked: false, .. }) if self.stage == Stage::Queued => {
                self.seek(desk, at)
            }
            _ => None,
        })
    }

    /// Finds the place of one stand, in its mirror or by a list.
    fn seek(&mut self, desk: &mut Desk<'_>, at: usize) -> Option<Output> {
        let own_number = self.stands.get(at).and_then(|stand| stand.number_of(stand.nodes.first()?));
        let Stand { wish, nodes, place, later, mirror, .. } = self.stands.get_mut(at)?;
        *place = Place::Listing;
        let own = nodes.first()?.name();
        let view = match (*mirror, &wish.under) {
            (None, _) => View::None,
            (Some(mirror), None) => desk
                .mirrors
                .place(desk.now, desk.session, mirror, own, own_number, |line| line.rank(own, wish.mode, later)),
            (Some(mirror), Some(under)) => {
                desk.mirrors.place(desk.now, desk.session, mirror, under, None, |_| Rank::First)
            }
        };
        match view {
            View::At(rank) => {
                let place = placed(rank, &wish.directory);
                self.take_place(desk, at, place)
            }
            View::Coming => None,
            View::None => {
                // If the mirror ended a moment ago, MirrorEnded is still to come and would not find it here: the own node has to be
                // watched from now on.
                match Mutant::TrustEndedMirror.lives() {
                    true => *mirror = None,
                    false => self.stands.get_mut(at)?.forget_mirror(true),
                }
                self.list(desk, at);
                None
            }
        }
    }

    /// Finds the place of one stand in a list.
    pub(super) fn rank(&mut self, desk: &mut Desk<'_>, at: usize, children: &[String]) -> Option<Output> {
        let Stand { wish, asked, nodes, place, later, .. } = self.stands.get(at)?;
        if *place != Place::Listing {
            return None;
        }
        // Nobody else's are called like this: as many as there are of it, so many of ours are there.
        if children.iter().filter(|name| name.starts_with(&**asked)).count() < nodes.len() {
            return self.removed(desk);
        }
        let place = match (&wish.under, wish.mode) {
            (Some(under), _) if children.contains(under) || Mutant::NestBlindly.lives() => Ok(Place::First),
            // The own writer is not there any more: nothing keeps others out.
            (Some(_), _) => return self.removed(desk),
            (None, Mode::Lease) if fits(children.len(), wish.max) => Ok(Place::First),
            (None, Mode::Lease) if Mutant::CountOthersOnly.lives() && fits(children.len() - nodes.len(), wish.max) => {
                Ok(Place::First)
            }
            (None, Mode::Lease) => Ok(Place::Crowded { count: children.len() }),
            (None, mode) => {
                placed(rank(children, nodes.first()?.name(), mode, wish.with_kazoo, later), &wish.directory)
            }
        };
        self.tell_use(desk, at, place.as_ref().ok(), children.len());
        self.take_place(desk, at, place)
    }

    /// Who was alone in a list, and who was not, is worth knowing for the next time.
    fn tell_use(&mut self, desk: &mut Desk<'_>, at: usize, place: Option<&Place>, count: usize) {
        let Some(stand) = self.stands.get_mut(at) else { return };
        match place {
            Some(Place::First) if stand.is_present && stand.mirror.is_none() => {
                let number = stand.nodes.first().and_then(|node| stand.number_of(node));
                let directory = &stand.wish.directory;
                stand.mirror = desk.mirrors.listed_first(desk.now, desk.session, directory, count, number);
            }
            Some(Place::Waiting(_)) => desk.mirrors.listed_behind(&stand.wish.directory),
            _ => {}
        }
    }

    fn take_place(&mut self, desk: &mut Desk<'_>, at: usize, place: Result<Place, Error>) -> Option<Output> {
        let place = match place {
            Ok(place) => place,
            Err(error) => {
                self.start_leaving(desk);
                return Some(Output::Failed(error));
            }
        };
        let (is_first, is_crowded) = (place == Place::First, matches!(place, Place::Crowded { .. }));
        self.stands.get_mut(at)?.place = place;
        self.has_waited |= !is_first;
        if self.one_look && !is_first {
            self.start_leaving(desk);
            return Some(Output::Busy);
        }
        if is_first {
            return self.moved_to_first(desk);
        }
        self.watch_missing(desk);
        is_crowded.then_some(Output::Crowded)
    }

    /// Asks for the watches that are not set. The own nodes come first: where they are still there, what follows is sound.
    fn watch_missing(&mut self, desk: &mut Desk<'_>) {
        if Mutant::IgnoreOwnNode.lives() {
            self.nodes_mut().for_each(|node| node.watch = Watch::Set);
        }
        self.follow_own(desk);
        // Leases see their own nodes in the list that they watch, but not that they are asked back.
        if self.is_revocable || self.stands.iter().any(|stand| stand.wish.mode != Mode::Lease) {
            self.watch_own(desk, |node| node.watch == Watch::Unset);
        }
        for at in 0..self.stands.len() {
            self.watch_ahead(desk, at);
        }
    }

    fn watch_ahead(&mut self, desk: &mut Desk<'_>, at: usize) {
        let Some(Stand { asked, place: Place::Waiting(wait), mirror, .. }) = self.stands.get_mut(at) else {
            return;
        };
        if wait.watch != Watch::Unset {
            return;
        }
        let name = name_of(&wait.ahead);
        // Who came first of two with one number is not in their names.
        if let Some(mirror) = *mirror
            && !wait.is_tie
            && desk.mirrors.follow(mirror, name, desk.machine)
        {
            wait.is_ours = name.starts_with(kin(asked));
            wait.watch = Watch::Mirrored;
            desk.mirrors.will_look(desk.now, desk.machine);
            return;
        }
        wait.watch = Watch::Asked;
        desk.watch(Step::WatchAhead(at), &wait.ahead);
    }

    /// Own nodes that a mirror shows are not watched otherwise, unless what is written into them matters.
    fn follow_own(&mut self, desk: &mut Desk<'_>) {
        for stand in self.stands.iter_mut().filter(|_| !self.is_revocable) {
            let Some(mirror) = stand.mirror else { continue };
            for node in stand.nodes.iter_mut().filter(|node| node.watch == Watch::Unset && node.czxid.is_some()) {
                if desk.mirrors.follow(mirror, node.name(), desk.machine) {
                    node.watch = Watch::Mirrored;
                }
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
            Err(_) if is_in => return None,
            Err(failure) => {
                self.start_leaving(desk);
                return self.failure(failure, "reading the own node in");
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
            Err(failure) => {
                self.start_leaving(desk);
                return self.failure(failure, "reading the node ahead in");
            }
        }
        None
    }

    /// The mirror of a stand is not there any more. What it has shown last was so, or may not have been.
    pub(super) fn mirror_ended(&mut self, desk: &mut Desk<'_>, was_sound: bool) -> Option<Output> {
        for stand in &mut self.stands {
            if stand.mirror.is_some_and(|mirror| !desk.mirrors.stands(mirror)) {
                stand.forget_mirror(was_sound);
            }
        }
        let output = self.seek_all(desk);
        if output.is_none() && self.stage == Stage::Queued && desk.session.is_connected() {
            self.watch_missing(desk);
        }
        output
    }

    /// Reads the nodes ahead that are known from a mirror alone, to know whose they are.
    pub(super) fn look(&mut self, desk: &mut Desk<'_>) -> Option<Output> {
        for (at, stand) in self.stands.iter_mut().enumerate() {
            if let Place::Waiting(Wait { ahead, watch: Watch::Mirrored, seen: None, .. }) = &stand.place
                && stand.look.is_none()
            {
                stand.look = Some(ahead.clone());
                desk.send(Step::LookAhead(at), &Request::GetData { path: ahead.clone(), watch: false });
            }
        }
        None
    }

    /// The counterpart. What is not there, or may not be read, is not what a mirror should show.
    pub(super) fn ahead_looked_at(
        &mut self,
        desk: &mut Desk<'_>,
        at: usize,
        result: Result<Response, Failure>,
    ) -> Option<Output> {
        let Stand { place, mirror, look, .. } = self.stands.get_mut(at)?;
        let looked_at = look.take()?;
        let (Place::Waiting(wait), Some(mirror)) = (place, *mirror) else { return None };
        if wait.ahead != looked_at {
            // Somebody else is ahead by now.
            return None;
        }
        match result {
            Ok(Response::Data { data, stat }) => {
                wait.seen = Some(Seen::new(stat.ephemeral_owner, data.unwrap_or_default()));
            }
            Err(Failure::Code(_)) => {
                desk.mirrors.is_wrong(desk.now, desk.session, mirror, name_of(&wait.ahead));
            }
            _ => {}
        }
        None
    }

    /// The node ahead was one of our own, and is gone since we deleted it: its mirror shows who is ahead now.
    pub(super) fn passed(&mut self, desk: &mut Desk<'_>, path: &str) -> Option<Output> {
        let is_behind = |stand: &Stand| matches!(&stand.place, Place::Waiting(wait) if wait.ahead == path);
        let at = self.stands.iter().position(is_behind).filter(|_| self.stage == Stage::Queued)?;
        self.seek(desk, at)
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
    /// ahead may have put a read lock in its place. A mirror shows all of that but the session's end.
    fn moved_up(&mut self, desk: &mut Desk<'_>, at: usize) -> Option<Output> {
        let is_watched = self.nodes().all(|node| node.watch == Watch::Set);
        let Stand { wish, place, .. } = self.stands.get_mut(at)?;
        if matches!(place, Place::Waiting(Wait { watch: Watch::Mirrored, is_ours: false, .. })) {
            return self.seek(desk, at);
        }
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
        // Where that costs nothing, a hold is watched from the start.
        self.follow_own(desk);
        self.stands.iter_mut().for_each(Stand::shed);
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
        if !self.is_revocable || !matches!(self.stage, Stage::Queued | Stage::In) {
            return;
        }
        match desk.session.is_connected() {
            true => self.watch_own(desk, |_| true),
            // Somebody may have asked long ago: they are to be read when it is back, and not only when they change.
            false => self.nodes_mut().for_each(|node| node.watch = Watch::Unset),
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
        let Some(Stand { wish, place, mirror, .. }) = self.stands.get(at) else { return };
        match (place, mirror) {
            (Place::Waiting(Wait { ahead, watch: Watch::Mirrored, .. }), Some(mirror)) => {
                desk.mirrors.unfollow(*mirror, name_of(ahead), desk.machine);
            }
            (Place::Waiting(wait), _) => desk.unwatch(&wait.ahead),
            _ => {}
        }
        if wish.mode == Mode::Lease {
            desk.unwatch_children(&wish.directory);
        }
    }

    pub(super) fn stop_all_waiting(&self, desk: &mut Desk<'_>) {
        (0..self.stands.len()).for_each(|at| self.stop_waiting(desk, at));
    }
}

/// A rank as a place in this directory, or why there is none.
pub(super) fn placed(rank: Rank, directory: &str) -> Result<Place, Error> {
    match rank {
        Rank::First => Ok(Place::First),
        Rank::Behind { ahead, count, is_tie } => Ok(Place::Waiting(Wait {
            ahead: format!("{directory}/{ahead}"),
            count,
            watch: Watch::Unset,
            is_tie,
            is_ours: false,
            gap: false,
            seen: None,
        })),
        Rank::Foreign { name, family } => {
            let why = format!("{name} belongs to {family}, which zklock can't take turns with");
            Err(Error::new(Status::Foreign, format!("{directory}: {why}")))
        }
    }
}

/// Whether so many leases may be out.
fn fits(count: usize, max: i32) -> bool {
    usize::try_from(max).is_ok_and(|max| count <= max)
}
