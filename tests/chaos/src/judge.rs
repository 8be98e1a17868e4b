//! The judge: compares what programs were told, and when, with what really was.
//!
//! A *claim* is what a program may rely on: from the moment its call returned, or from its first look if it stood still during the
//! call, up to the last moment for which it was told that its hold is safe, unless it gave it up before. Whatever becomes of
//! the program meanwhile, the claim stands.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::story::{Call, End, Hold, Look, Process, Story, Told};
use crate::trace::{Nanos, Stance};
use crate::truth::{Gone, Node, Truth, Why};

/// A wait in which nobody may fail once all is well again.
pub const PATIENT_MS: i64 = 60_000;
/// The servers' clock is read once in a millisecond.
const CLOCK_SLACK: Nanos = 2 * MS;
/// An event may be written down so much later than what it tells of was seen.
const TOLD_WITHIN: Nanos = 500 * MS;
const MS: Nanos = 1_000_000;

const TIMEOUT: i32 = -3;
const LOST_STATUS: i32 = -6;
const CONNECTION: i32 = -9;
const FREE: i32 = 0;
const HELD: i32 = 1;
const LOST: i32 = 4;
const CLIENT_CLOSED: i32 = 4;

/// What is to be judged.
#[derive(Debug, Default)]
pub struct Case {
    /// What really was.
    pub truth: Truth,
    /// Who took part.
    pub processes: Vec<Process>,
    /// What the store was asked to write, in its order.
    pub writes: Vec<Write>,
    /// When the last fault was over and all servers served.
    pub healed: Nanos,
    /// Nodes that were left when everybody had finished and was still there.
    pub ghosts: Vec<String>,
    /// The sessions' timeout.
    pub session_timeout: Duration,
    /// So much later than its deadline may a call return, on a machine that has other things to do.
    pub allowance: Duration,
}

/// A write to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// What the lock of this path guards.
    pub path: String,
    /// The token it came with.
    pub token: i64,
    /// Whether it was accepted.
    pub is_accepted: bool,
}

/// What must not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Two claims that exclude each other at one time.
    Exclusion,
    /// A claim that outlives its node.
    Gone,
    /// Somebody claims for longer than a session timeout what was taken away from outside.
    Notice,
    /// Somebody is let in before one who is ahead.
    Order,
    /// A token that is not its node's czxid, or does not grow.
    Token,
    /// A stale write was accepted.
    Stale,
    /// A node was left by somebody who had finished.
    Ghost,
    /// A wait that did not end once all was well.
    Stuck,
    /// A call returned later than it may.
    Overrun,
    /// A call gave up before its deadline.
    Early,
    /// An event is missing, twice there, or does not follow from the one before.
    Event,
    /// A hold was called safe at the first look after its program had been away for longer than a session.
    Awakening,
    /// A program crashed, or left threads.
    Crash,
}

/// A rule that was broken, and how.
#[derive(Debug, Clone)]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// How.
    pub text: String,
}

/// What is counted of the programs of one language, or of all.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// Programs that took part.
    pub processes: usize,
    /// Those that were killed.
    pub killed: usize,
    /// Calls that asked for a lock.
    pub calls: usize,
    /// Calls that were given it.
    pub acquisitions: usize,
    /// Looks at holds.
    pub looks: usize,
    /// Holds that were lost.
    pub losses: usize,
    /// Events that were delivered.
    pub events: usize,
    /// Events that are missing or wrong.
    pub events_missed: usize,
    /// First looks after a program had been away for longer than a session: none may say that a hold is safe.
    pub awakenings: usize,
    /// How much later than its deadline a call returned, at worst.
    pub worst_overrun: Duration,
    /// How long somebody went on claiming what was taken away from outside, at worst.
    pub worst_notice: Duration,
    /// The longest wait for a lock that ended after all was well.
    pub longest_wait: Duration,
}

/// The judge's word.
#[derive(Debug, Default)]
pub struct Judgement {
    /// What must not have happened.
    pub violations: Vec<Violation>,
    /// What was counted, by language.
    pub figures: BTreeMap<&'static str, Figures>,
    /// Writes that were accepted.
    pub accepted: usize,
    /// Writes that a store without tokens would have accepted, although a later holder had written.
    pub stale: usize,
    /// Nodes of locks that there were.
    pub nodes: usize,
    /// Transactions in the servers' logs.
    pub transactions: usize,
    /// Transactions that are in the servers' logs, and that the next leader had forgotten.
    pub forgotten: usize,
}

/// Judges.
pub fn judge(case: &Case) -> Judgement {
    let mut bench = Bench { case, nodes: BTreeMap::new(), queues: BTreeMap::new(), word: Judgement::default() };
    bench.file_nodes();
    let mut claims = Vec::new();
    for process in &case.processes {
        match Story::of(&process.lines) {
            Ok(story) => claims.extend(bench.hear(process, &story)),
            Err(error) => bench.blame(Rule::Crash, format!("{}: {error}", process.name)),
        }
    }
    bench.check_exclusion(&claims);
    bench.check_tokens_grow(&claims);
    bench.check_writes();
    case.ghosts.iter().for_each(|ghost| bench.blame(Rule::Ghost, format!("{ghost} was left")));
    bench.word
}

/// What a program may rely on.
#[derive(Debug)]
struct Claim {
    who: String,
    path: String,
    stance: Stance,
    token: i64,
    leases: usize,
    /// When it was got, if the program did not stand still meanwhile.
    got: Option<Nanos>,
    from: Nanos,
    until: Nanos,
}

struct Bench<'a> {
    case: &'a Case,
    /// By the transaction that made them.
    nodes: BTreeMap<i64, Vec<&'a Node>>,
    /// Contenders by directory, in the order in which they came.
    queues: BTreeMap<&'a str, Vec<&'a Node>>,
    word: Judgement,
}

impl<'a> Bench<'a> {
    fn blame(&mut self, rule: Rule, text: String) {
        self.word.violations.push(Violation { rule, text });
    }

    fn file_nodes(&mut self) {
        (self.word.transactions, self.word.forgotten) = (self.case.truth.transactions, self.case.truth.forgotten);
        for node in self.case.truth.nodes.iter().filter(|node| node.owner != 0) {
            self.nodes.entry(node.czxid).or_default().push(node);
            self.queues.entry(directory(&node.path)).or_default().push(node);
            self.word.nodes += 1;
        }
    }

    fn hear(&mut self, process: &Process, story: &Story) -> Vec<Claim> {
        let mut figures = self.word.figures.remove(process.language).unwrap_or_default();
        figures.processes += 1;
        figures.killed += usize::from(matches!(process.end, End::Killed(_)));
        figures.calls += story.calls.len();
        figures.acquisitions += story.holds.len();
        figures.looks += story.holds.iter().map(|hold| hold.looks.len()).sum::<usize>();
        figures.losses += story.holds.iter().filter(|hold| was_seen_lost(hold)).count();
        figures.events += story.client.len() + story.told.values().map(Vec::len).sum::<usize>();
        for call in &story.calls {
            self.check_call(process, call, &mut figures);
        }
        let mut claims = Vec::new();
        for hold in &story.holds {
            self.check_blocking(process, hold, &mut figures);
            self.check_awakenings(process, story, hold, &mut figures);
            claims.extend(self.claims(process, hold, &mut figures));
        }
        let before = self.word.violations.len();
        if story.hears_events {
            self.check_events(process, story);
        }
        figures.events_missed += self.word.violations.len() - before;
        self.check_end(process, story);
        self.word.figures.insert(process.language, figures);
        claims
    }

    fn check_call(&mut self, process: &Process, call: &Call, figures: &mut Figures) {
        let who = format!("{}: {} at {}", process.name, call.path, call.asked);
        let Some((answered, status)) = call.answer else {
            if !matches!(process.end, End::Killed(_)) {
                self.blame(Rule::Stuck, format!("{who} never returned"));
            }
            return;
        };
        if answered > self.case.healed {
            let waited = Duration::from_nanos(answered - call.asked.max(self.case.healed));
            figures.longest_wait = figures.longest_wait.max(waited);
        }
        if status != 0 && call.limit_ms >= PATIENT_MS && call.asked > self.case.healed {
            self.blame(Rule::Stuck, format!("{who} failed with {status} after all was well"));
        }
        let Ok(limit) = u64::try_from(call.limit_ms) else { return };
        // With a limit of zero the server has a second to answer.
        let limit = if limit == 0 { 1000 * MS } else { limit * MS };
        self.check_deadline(process, &who, call.asked, answered, limit, figures);
        let has_jumped = process.jumps.iter().any(|jump| (call.asked..answered).contains(jump));
        let gave_up = matches!(status, TIMEOUT | CONNECTION) && call.limit_ms > 0 && !has_jumped;
        if gave_up && answered - call.asked < limit {
            let after = Duration::from_nanos(answered - call.asked);
            self.blame(Rule::Early, format!("{who} failed with {status} after {after:?} of {} ms", call.limit_ms));
        }
    }

    fn check_deadline(
        &mut self,
        process: &Process,
        who: &str,
        from: Nanos,
        until: Nanos,
        limit: Nanos,
        figures: &mut Figures,
    ) {
        let took = (until - from).saturating_sub(process.absent(from, until));
        let over = Duration::from_nanos(took.saturating_sub(limit));
        figures.worst_overrun = figures.worst_overrun.max(over);
        if over > self.case.allowance {
            self.blame(Rule::Overrun, format!("{who} returned {over:?} late"));
        }
    }

    /// What blocks for a time that is known, or not at all.
    fn check_blocking(&mut self, process: &Process, hold: &Hold, figures: &mut Figures) {
        let who = |what: &str| format!("{}: {what} token {}", process.name, hold.token);
        if let (Some((from, waits)), Some((until, _))) = (hold.leave, hold.left) {
            let limit = if waits { nanos(self.case.session_timeout) } else { 0 };
            self.check_deadline(process, &who("the release of"), from, until, limit, figures);
        }
        for look in &hold.looks {
            self.check_deadline(process, &who("a look at"), look.at, look.done, 0, figures);
        }
    }

    /// Who was away for longer than his session can't know that he still holds, unless he heard so since.
    fn check_awakenings(&mut self, process: &Process, story: &Story, hold: &Hold, figures: &mut Figures) {
        let timeout = nanos(self.case.session_timeout);
        let long = process.absences.iter().filter(|absence| absence.until - absence.from > timeout);
        let awakenings = long.map(|absence| (absence.from, absence.until));
        for (asleep, awake) in awakenings.chain(process.jumps.iter().map(|&jump| (jump, jump))) {
            let was_there = hold.got < asleep && hold.leave.is_none_or(|(leave, _)| leave > awake);
            let Some(look) = hold.looks.iter().find(|look| was_there && look.at >= awake) else { continue };
            figures.awakenings += 1;
            let is_confirmed = !story.hears_events
                || hold.paths().any(|path| {
                    let told = story.told.get(&(path.to_owned(), hold.token)).map_or(&[][..], Vec::as_slice);
                    told.iter().any(|told| told.state == HELD && (awake..look.at + TOLD_WITHIN).contains(&told.at))
                });
            let is_confirmed = is_confirmed && self.gone(hold).is_none_or(|gone| gone.at + CLOCK_SLACK > look.at);
            if look.is_held && !is_confirmed {
                let (token, away) = (hold.token, Duration::from_nanos(look.at - asleep));
                let text = format!("{}: token {token} was called safe at once after {away:?} away", process.name);
                self.blame(Rule::Awakening, text);
            }
        }
    }

    /// What the program may rely on by this hold, for each of its locks.
    fn claims(&mut self, process: &Process, hold: &Hold, figures: &mut Figures) -> Vec<Claim> {
        let who = format!("{} (thread {}, token {})", process.name, hold.thread, hold.token);
        let is_sure = process.absent(hold.asked, hold.got) == 0;
        if is_sure {
            self.check_order(&who, hold);
        }
        let leases = self.check_nodes(&who, hold);
        let Some((from, until)) = span(process, hold, is_sure) else { return Vec::new() };
        let until = self.check_gone(&who, hold, until, figures);
        let claim = |path: &str| Claim {
            who: who.clone(),
            path: path.to_owned(),
            stance: hold.stance,
            token: hold.token,
            leases,
            got: is_sure.then_some(hold.got),
            from,
            until,
        };
        hold.paths().map(claim).collect()
    }

    /// The token is the transaction that made its nodes. How many of them there are.
    fn check_nodes(&mut self, who: &str, hold: &Hold) -> usize {
        let mut count = 0;
        for path in hold.paths() {
            let here = self.own_nodes(hold).filter(|node| is_below(node, path)).count();
            if here == 0 {
                self.blame(Rule::Token, format!("{who}: no node of {path} was made by that transaction"));
            }
            count += here;
        }
        count
    }

    /// Nobody whom he would have to wait for is ahead when he is let in.
    fn check_order(&mut self, who: &str, hold: &Hold) {
        if matches!(hold.stance, Stance::Leases(_)) {
            return;
        }
        let mut overtaken = Vec::new();
        for own in self.own_nodes(hold) {
            let queue = self.queues.get(directory(&own.path)).map_or(&[][..], Vec::as_slice);
            let ahead = queue.iter().take_while(|node| node.czxid < own.czxid).filter(|node| {
                let is_excluded = hold.stance == Stance::Exclusive || !node.path.contains("__READ__");
                is_excluded && number(node) <= number(own) && is_there(node, hold.got)
            });
            overtaken.extend(ahead.map(|node| node.path.clone()));
        }
        for node in overtaken {
            self.blame(Rule::Order, format!("{who} was let in at {}, with {node} ahead", hold.got));
        }
    }

    /// No claim outlives its node. Until when it stands: what was taken away from outside is no claim any more.
    fn check_gone(&mut self, who: &str, hold: &Hold, until: Nanos, figures: &mut Figures) -> Nanos {
        let Some(gone) = self.gone(hold) else { return until };
        match gone.why {
            Why::Given | Why::Expired => {
                if until > gone.at + CLOCK_SLACK {
                    let over = Duration::from_nanos(until - gone.at);
                    self.blame(Rule::Gone, format!("{who} is claimed for {over:?} after its end ({:?})", gone.why));
                }
                until
            }
            Why::Taken | Why::Closed => {
                let last = hold.looks.iter().filter(|look| look.is_held).map(|look| look.at).max();
                let over = Duration::from_nanos(last.unwrap_or_default().saturating_sub(gone.at));
                figures.worst_notice = figures.worst_notice.max(over);
                if over > self.case.session_timeout {
                    self.blame(Rule::Notice, format!("{who} is claimed for {over:?} after it was {:?}", gone.why));
                }
                until.min(gone.at)
            }
        }
    }

    /// Claims that exclude each other have no moment in common.
    fn check_exclusion(&mut self, claims: &[Claim]) {
        let mut by_path: BTreeMap<&str, Vec<&Claim>> = BTreeMap::new();
        for claim in claims {
            by_path.entry(&claim.path).or_default().push(claim);
        }
        for claims in by_path.values_mut() {
            claims.sort_by_key(|claim| claim.from);
            let mut running: Vec<&Claim> = Vec::new();
            for claim in claims {
                running.retain(|other| other.until > claim.from);
                if let Some(other) = excluded(claim, &running) {
                    let both = Duration::from_nanos(other.until.min(claim.until).saturating_sub(claim.from));
                    let text = format!("{}: {} and {} at once, for {both:?}", claim.path, other.who, claim.who);
                    self.blame(Rule::Exclusion, text);
                }
                running.push(claim);
            }
        }
    }

    /// Of those who exclude everybody, who comes later has the larger token.
    fn check_tokens_grow(&mut self, claims: &[Claim]) {
        let mut got: Vec<_> = claims.iter().filter_map(|claim| Some((&claim.path, claim.got?, claim))).collect();
        got.retain(|(_, _, claim)| claim.stance == Stance::Exclusive);
        got.sort_by_key(|&(path, got, _)| (path, got));
        for ((path, _, one), (_, _, two)) in got.iter().zip(got.iter().skip(1)).filter(|(one, two)| one.0 == two.0) {
            if two.token <= one.token {
                self.blame(Rule::Token, format!("{path}: {} came after {}", two.who, one.who));
            }
        }
    }

    fn check_writes(&mut self) {
        let mut highest: BTreeMap<&str, i64> = BTreeMap::new();
        for write in &self.case.writes {
            let highest = highest.entry(&write.path).or_insert(i64::MIN);
            let is_stale = write.token < *highest;
            self.word.stale += usize::from(is_stale);
            self.word.accepted += usize::from(write.is_accepted);
            if is_stale && write.is_accepted {
                let text = format!("{}: a write with {} was accepted after {highest}", write.path, write.token);
                self.word.violations.push(Violation { rule: Rule::Stale, text });
            }
            if write.is_accepted {
                *highest = write.token.max(*highest);
            }
        }
    }

    fn check_events(&mut self, process: &Process, story: &Story) {
        let name = &process.name;
        for ((path, token), told) in &story.told {
            let what = format!("{name}: {path}, token {token}");
            self.check_chain(&what, told, FREE);
            let last = told.last().map_or(FREE, |told| told.state);
            if process.end == End::Well && last != FREE {
                self.blame(Rule::Event, format!("{what} was told to be {last} at last"));
            }
            if let Some(back) = told.iter().find(|told| told.previous == LOST && told.state != FREE) {
                self.blame(Rule::Event, format!("{what} was lost and came back as {}", back.state));
            }
        }
        self.check_chain(&format!("{name}: its session"), &story.client, FREE);
        let last = story.client.last().map_or(FREE, |told| told.state);
        if process.end == End::Well && last != CLIENT_CLOSED {
            self.blame(Rule::Event, format!("{name}: its session was told to be {last} at last"));
        }
        for hold in &story.holds {
            self.check_told(process, story, hold);
        }
    }

    /// Each change begins where the one before has ended.
    fn check_chain(&mut self, what: &str, told: &[Told], first: i32) {
        let mut before = first;
        for told in told {
            if told.previous != before || told.state == before {
                let (previous, state) = (told.previous, told.state);
                self.blame(
                    Rule::Event,
                    format!("{what} was {before}, and is told to have been {previous} and to be {state}"),
                );
            }
            before = told.state;
        }
    }

    /// What was got was told, and what was lost.
    fn check_told(&mut self, process: &Process, story: &Story, hold: &Hold) {
        let is_over = |at: Nanos| match process.end {
            End::Killed(killed) => at + nanos(self.case.session_timeout) < killed,
            End::Well | End::Badly(_) => true,
        };
        let timeout = nanos(self.case.session_timeout);
        let long_gone = self.gone(hold).is_some_and(|gone| {
            let noticed = gone.at + timeout + process.absent(gone.at, Nanos::MAX) + 1000 * MS;
            hold.leave.is_some_and(|(leave, _)| leave > noticed)
        });
        // What a release finds out is told by the release.
        let is_lost = hold.looks.iter().any(|look| look.state == LOST) || long_gone;
        let mut missing = Vec::new();
        let mut heard_of_loss = false;
        for path in hold.paths() {
            let told = story.told.get(&(path.to_owned(), hold.token)).map_or(&[][..], Vec::as_slice);
            heard_of_loss |= told.iter().any(|told| told.state == LOST);
            if is_over(hold.got) && !told.iter().any(|told| told.state == HELD) {
                missing.push(format!("{path} was never told to be held"));
            }
        }
        if is_lost && is_over(hold.left.map_or(Nanos::MAX - timeout, |(left, _)| left)) && !heard_of_loss {
            missing.push("it was never told to be lost".to_owned());
        }
        for missing in missing {
            self.blame(Rule::Event, format!("{}: token {}: {missing}", process.name, hold.token));
        }
    }

    fn check_end(&mut self, process: &Process, story: &Story) {
        match (process.end, story.threads_left) {
            (End::Killed(_), _) | (End::Well, Some(0)) => {}
            (End::Well, left) => self.blame(Rule::Crash, format!("{}: threads left: {left:?}", process.name)),
            (End::Badly(status), _) => self.blame(Rule::Crash, format!("{}: it ended with {status:#x}", process.name)),
        }
    }

    fn own_nodes(&self, hold: &Hold) -> impl Iterator<Item = &'a Node> + use<'a> {
        self.nodes.get(&hold.token).cloned().unwrap_or_default().into_iter()
    }

    /// When the first of its nodes was gone.
    fn gone(&self, hold: &Hold) -> Option<Gone> {
        self.own_nodes(hold).filter_map(|node| node.gone).min_by_key(|gone| gone.at)
    }
}

impl Judgement {
    /// The figures of all languages together.
    pub fn total(&self) -> Figures {
        let mut total = Figures::default();
        self.figures.values().for_each(|figures| total.add(figures));
        total
    }

    /// How often a rule was broken.
    pub fn count(&self, rule: Rule) -> usize {
        self.violations.iter().filter(|violation| violation.rule == rule).count()
    }
}

impl Figures {
    fn add(&mut self, other: &Self) {
        self.processes += other.processes;
        self.killed += other.killed;
        self.calls += other.calls;
        self.acquisitions += other.acquisitions;
        self.looks += other.looks;
        self.losses += other.losses;
        self.events += other.events;
        self.events_missed += other.events_missed;
        self.awakenings += other.awakenings;
        self.worst_overrun = self.worst_overrun.max(other.worst_overrun);
        self.worst_notice = self.worst_notice.max(other.worst_notice);
        self.longest_wait = self.longest_wait.max(other.longest_wait);
    }
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Exclusion,
        Self::Gone,
        Self::Notice,
        Self::Order,
        Self::Token,
        Self::Stale,
        Self::Ghost,
        Self::Stuck,
        Self::Overrun,
        Self::Early,
        Self::Event,
        Self::Awakening,
        Self::Crash,
    ];
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusion => "two hold a lock",
            Self::Gone => "claimed after its end",
            Self::Notice => "taken away, and not noticed",
            Self::Order => "let in out of turn",
            Self::Token => "wrong tokens",
            Self::Stale => "stale writes accepted",
            Self::Ghost => "ghosts",
            Self::Stuck => "stuck waiters",
            Self::Overrun => "calls that overran",
            Self::Early => "calls that gave up early",
            Self::Event => "events missed or wrong",
            Self::Awakening => "safe at once after being away",
            Self::Crash => "crashes and threads left",
        })
    }
}

/// From when until when a program may rely on a hold, as far as it was told.
fn span(process: &Process, hold: &Hold, is_sure: bool) -> Option<(Nanos, Nanos)> {
    let first = hold.looks.iter().find(|look| look.is_held).map(|look| look.at);
    let from = if is_sure { hold.got } else { first? };
    let until = hold.looks.iter().map(|look| look.claimed_until(process)).max().unwrap_or(from).max(from);
    let end = match (hold.leave, process.end) {
        (Some((leave, _)), _) => leave,
        (None, End::Killed(killed)) => killed,
        (None, _) => Nanos::MAX,
    };
    Some((from, until.min(end)))
}

impl Look {
    /// Its clock may have jumped since, and then the time it was told of passed sooner.
    fn claimed_until(&self, process: &Process) -> Nanos {
        let asked = if self.is_held { self.at } else { 0 };
        if self.left_ms == 0 {
            return asked;
        }
        let jump = process.jumps.iter().copied().find(|&jump| jump >= self.left_at).unwrap_or(Nanos::MAX);
        asked.max((self.left_at + self.left_ms * MS).min(jump))
    }
}

fn was_seen_lost(hold: &Hold) -> bool {
    hold.looks.iter().any(|look| look.state == LOST) || hold.left.is_some_and(|(_, status)| status == LOST_STATUS)
}

/// Who is in that the claim excludes.
fn excluded<'a>(claim: &Claim, running: &[&'a Claim]) -> Option<&'a Claim> {
    if let Stance::Leases(most) = claim.stance {
        let out: usize = running.iter().map(|claim| claim.leases).sum();
        return running.last().filter(|_| out + claim.leases > most).copied();
    }
    let shares = |other: &Claim| claim.stance == Stance::Shared && other.stance == Stance::Shared;
    running.iter().find(|other| !shares(other)).copied()
}

fn directory(node: &str) -> &str {
    node.rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// A semaphore's leases have a directory of their own below its path.
fn is_below(node: &Node, path: &str) -> bool {
    let directory = directory(&node.path);
    directory == path || directory.strip_suffix("/leases") == Some(path)
}

/// Its place in the queue.
fn number(node: &Node) -> &str {
    node.path.get(node.path.len().saturating_sub(10)..).unwrap_or_default()
}

/// Surely still there, by the servers' clock.
fn is_there(node: &Node, at: Nanos) -> bool {
    node.gone.is_none_or(|gone| gone.at > at + CLOCK_SLACK)
}

fn nanos(duration: Duration) -> Nanos {
    Nanos::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::Absence;
    use crate::trace;

    const T: Nanos = 4000;

    /// A case in milliseconds, in which all is well for as long as nothing is added that is not.
    struct Plot {
        case: Case,
    }

    impl Plot {
        fn new() -> Self {
            let session_timeout = Duration::from_millis(T);
            let allowance = Duration::from_millis(100);
            let case = Case { session_timeout, allowance, healed: 90_000 * MS, ..Case::default() };
            Self { case }
        }

        /// A node of session `token`, which ends as it should or not.
        fn node(mut self, path: &str, token: i64, made: Nanos, gone: Option<(Nanos, Why)>) -> Self {
            let gone = gone.map(|(at, why)| Gone { at: at * MS, why });
            let path = path.to_owned();
            self.case.truth.nodes.push(Node { path, czxid: token, owner: token, made: made * MS, gone });
            self
        }

        /// A program that writes these lines, in which times are in milliseconds; those that end a program well follow by themselves.
        fn program(mut self, lines: &[&str]) -> Self {
            self.case.processes.push(program(&[lines, &["95000 0 client 1 4", "95000 0 end 0"]].concat()));
            self
        }

        fn change(mut self, change: impl FnOnce(&mut Case)) -> Self {
            change(&mut self.case);
            self
        }

        #[track_caller]
        fn breaks(&self, rule: Rule) {
            let broken: Vec<Rule> = judge(&self.case).violations.iter().map(|violation| violation.rule).collect();
            assert!(broken.contains(&rule), "{rule:?} is not among {broken:?}");
        }

        #[track_caller]
        fn breaks_only(&self, rule: Rule) {
            let violations = judge(&self.case).violations;
            assert!(!violations.is_empty() && violations.iter().all(|broken| broken.rule == rule), "{violations:?}");
        }

        #[track_caller]
        fn is_well(&self) {
            let violations = judge(&self.case).violations;
            assert!(violations.is_empty(), "{violations:?}");
        }
    }

    /// Its times are multiplied, wherever they stand in a line.
    fn program(lines: &[&str]) -> Process {
        let mut text = String::from("0 0 begin 4000 1\n0 0 client 0 1\n");
        for line in lines {
            let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let times: &[usize] = if words[2] == "look" { &[0, 5, 8] } else { &[0] };
            for &time in times {
                words[time] = (words[time].parse::<Nanos>().unwrap() * MS).to_string();
            }
            text.push_str(&(words.join(" ") + "\n"));
        }
        let lines = trace::parse(&text).unwrap();
        Process { name: "someone".to_owned(), language: "C", lines, ..Process::default() }
    }

    /// What a program says of a hold from `got` to `leave`, with one look at it.
    fn hold(path: &str, token: i64, got: u64, look: u64, leave: u64) -> Vec<String> {
        let asked = got - 10;
        vec![
            format!("{asked} 1 call {path} exclusive 500"),
            format!("{got} 1 got {path} {token}"),
            format!("{got} 0 lock {path} {token} 0 1"),
            format!("{look} 1 look {token} 1 {look} 0 1 {look}"),
            format!("{leave} 1 leave {token} 1"),
            format!("{leave} 1 left {token} 0"),
            format!("{leave} 0 lock {path} {token} 1 0"),
        ]
    }

    fn with(plot: Plot, lines: &[String]) -> Plot {
        plot.program(&lines.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn given(at: Nanos) -> Option<(Nanos, Why)> {
        Some((at, Why::Given))
    }

    fn two_in_turn() -> Plot {
        let plot = Plot::new().node("/a/x-0000000001", 11, 90, given(200)).node("/a/x-0000000002", 12, 150, given(300));
        let plot = with(plot, &hold("/a", 11, 100, 150, 199));
        with(plot, &hold("/a", 12, 210, 250, 299))
    }

    /// One or more lines of a hold in place of another one.
    fn replaced(lines: &[String], kind: &str, by: &str) -> Vec<String> {
        let lines = lines.iter().flat_map(|line| if line.contains(kind) { by.split('\n') } else { line.split('\n') });
        lines.map(str::to_owned).collect()
    }

    fn one_who_says(kind: &str, by: &str) -> Plot {
        let plot = Plot::new().node("/a/x-0000000001", 11, 90, given(200));
        with(plot, &replaced(&hold("/a", 11, 100, 150, 199), kind, by))
    }

    #[test]
    fn one_after_the_other_is_well() {
        two_in_turn().is_well();
        let word = judge(&two_in_turn().case);
        assert_eq!((word.total().acquisitions, word.total().events, word.nodes), (2, 8, 2));
    }

    #[test]
    fn two_claims_at_once() {
        let plot = Plot::new().node("/a/x-0000000001", 11, 90, given(300)).node("/a/x-0000000002", 12, 95, given(400));
        let plot = with(plot, &hold("/a", 11, 100, 150, 299));
        with(plot, &hold("/a", 12, 110, 160, 399)).breaks(Rule::Exclusion);
    }

    #[test]
    fn a_claim_lasts_for_as_long_as_the_program_was_told() {
        let first = replaced(&hold("/a", 11, 100, 150, 199), " look ", "150 1 look 11 1 150 500 1 150");
        // It never gives it up.
        let first: Vec<String> =
            first.into_iter().filter(|line| !line.contains(" leave ") && !line.contains(" left ")).collect();
        let plot = Plot::new().node("/a/x-0000000001", 11, 90, Some((600, Why::Expired)));
        let plot = with(plot.node("/a/x-0000000002", 12, 95, given(900)), &first);
        let plot = with(plot, &hold("/a", 12, 610, 650, 899));
        plot.breaks(Rule::Gone);
        plot.breaks(Rule::Exclusion);
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        let reader = |token, got| -> Vec<String> {
            hold("/a", token, got, got + 80, got + 90).iter().map(|line| line.replace("exclusive", "shared")).collect()
        };
        let plot = Plot::new().node("/a/x-__READ__0000000001", 11, 90, given(200)).node(
            "/a/x-__READ__0000000002",
            12,
            95,
            given(250),
        );
        let plot = with(with(plot, &reader(11, 100)), &reader(12, 120));
        plot.is_well();
        let plot = plot.node("/a/x-__WRIT__0000000003", 13, 100, given(400));
        with(plot, &hold("/a", 13, 130, 150, 160)).breaks(Rule::Exclusion);
    }

    #[test]
    fn a_semaphore_has_so_many_leases() {
        let lease = |token, got| -> Vec<String> {
            hold("/a", token, got, got + 80, got + 90)
                .iter()
                .map(|line| line.replace("exclusive", "leases:2"))
                .collect()
        };
        let node = |plot: Plot, token| plot.node(&format!("/a/leases/x-00000000{token}"), token, 90, given(300));
        let plot = (11..13).fold(Plot::new(), node);
        let plot = with(with(plot, &lease(11, 100)), &lease(12, 120));
        plot.is_well();
        with(node(plot, 13), &lease(13, 130)).breaks(Rule::Exclusion);
    }

    #[test]
    fn an_expired_hold_is_not_to_be_claimed() {
        let plot = Plot::new().node("/a/x-0000000001", 11, 90, Some((140, Why::Expired)));
        with(plot, &hold("/a", 11, 100, 150, 199)).breaks_only(Rule::Gone);
    }

    #[test]
    fn what_was_taken_away_is_noticed_within_a_session_timeout() {
        let taken = |look: u64| {
            let plot = Plot::new().node("/a/x-0000000001", 11, 90, Some((140, Why::Taken)));
            let lines = hold("/a", 11, 100, look, look + 10);
            with(
                plot,
                &replaced(&lines, " lock /a 11 1 0", &format!("{look} 0 lock /a 11 1 4\n{look} 0 lock /a 11 4 0")),
            )
        };
        taken(150).is_well();
        let word = judge(&taken(150).case);
        assert_eq!(word.total().worst_notice, Duration::from_millis(10));
        taken(150 + T).breaks_only(Rule::Notice);
    }

    #[test]
    fn nobody_is_let_in_before_who_is_ahead() {
        let plot = Plot::new().node("/a/x-0000000001", 11, 90, given(300)).node("/a/x-0000000002", 12, 95, given(400));
        with(plot, &hold("/a", 12, 110, 160, 399)).breaks_only(Rule::Order);
    }

    #[test]
    fn a_token_is_the_number_of_what_made_the_node_and_grows() {
        let plot = Plot::new().node("/a/x-0000000001", 11, 90, given(200));
        with(plot, &hold("/a", 77, 100, 150, 199)).breaks_only(Rule::Token);
        let plot = Plot::new().node("/a/x-0000000002", 12, 90, given(200)).node("/a/x-0000000001", 11, 80, given(300));
        let plot = with(plot, &hold("/a", 12, 100, 150, 199));
        with(plot, &hold("/a", 11, 210, 250, 299)).breaks(Rule::Token);
    }

    #[test]
    fn a_store_takes_nothing_stale() {
        let write = |token, is_accepted| Write { path: "/a".to_owned(), token, is_accepted };
        let refused = [write(11, true), write(12, true), write(11, false)];
        let plot = two_in_turn().change(|case| case.writes = refused.to_vec());
        plot.is_well();
        assert_eq!(judge(&plot.case).stale, 1);
        let plot = plot.change(|case| case.writes.push(write(11, true)));
        plot.breaks_only(Rule::Stale);
    }

    #[test]
    fn nodes_that_are_left_are_ghosts() {
        two_in_turn().change(|case| case.ghosts.push("/a/x".to_owned())).breaks_only(Rule::Ghost);
    }

    #[test]
    fn a_wait_that_never_ends_or_fails_when_all_is_well() {
        Plot::new().program(&["100 1 call /a exclusive -1"]).breaks_only(Rule::Stuck);
        let lines = ["91000 1 call /a exclusive 60000", "94000 1 failed /a -6"];
        Plot::new().program(&lines).breaks_only(Rule::Stuck);
    }

    #[test]
    fn calls_keep_their_deadlines_but_for_the_time_in_which_the_program_stood_still() {
        let lines = ["100 1 call /a exclusive 500", "900 1 failed /a -3"];
        let plot = Plot::new().program(&lines);
        plot.breaks_only(Rule::Overrun);
        let absence = Absence { from: 200 * MS, until: 500 * MS };
        plot.change(|case| case.processes[0].absences.push(absence)).is_well();
        one_who_says(" left ", "4400 1 left 11 0").breaks_only(Rule::Overrun);
        one_who_says(" look ", "150 1 look 11 1 150 0 1 300").breaks(Rule::Overrun);
    }

    #[test]
    fn no_call_gives_up_early() {
        let lines = ["100 1 call /a exclusive 500", "599 1 failed /a -3"];
        let plot = Plot::new().program(&lines);
        plot.breaks_only(Rule::Early);
        plot.change(|case| case.processes[0].jumps.push(300 * MS)).is_well();
    }

    #[test]
    fn events_follow_from_one_another_and_none_is_missing() {
        for (kind, by) in [
            // Never told to be held; told twice; told wrong; not told to be free.
            (" lock /a 11 0 1", "100 0 lock /a 11 0 3"),
            (" lock /a 11 1 0", "199 0 lock /a 11 0 1"),
            (" lock /a 11 1 0", "199 0 lock /a 11 2 0"),
            (" lock /a 11 1 0", "199 0 client 1 2"),
        ] {
            one_who_says(kind, by).breaks_only(Rule::Event);
        }
        // Lost, by what was seen, and never told.
        one_who_says(" look ", "150 1 look 11 0 150 0 4 150").breaks_only(Rule::Event);
        // Lost, by what was seen, and came back.
        let back = "199 0 lock /a 11 1 4\n199 0 lock /a 11 4 1\n199 0 lock /a 11 1 0";
        one_who_says(" lock /a 11 1 0", back).breaks_only(Rule::Event);
    }

    #[test]
    fn the_last_event_of_a_client_is_its_end() {
        let mut process = program(&["95000 0 end 0"]);
        process.name = "someone".to_owned();
        Plot::new().change(|case| case.processes.push(process)).breaks_only(Rule::Event);
    }

    #[test]
    fn nothing_is_safe_at_once_after_being_away_for_longer_than_a_session() {
        let plot = Plot::new().node("/a/x-0000000001", 11, 90, given(9000));
        let plot = with(plot, &hold("/a", 11, 100, 8500, 8600));
        let absence = Absence { from: 200 * MS, until: 8400 * MS };
        let plot = plot.change(|case| case.processes[0].absences.push(absence));
        plot.breaks_only(Rule::Awakening);
        assert_eq!(judge(&plot.case).total().awakenings, 1);
        // Unless it was confirmed since.
        let mut lines = hold("/a", 11, 100, 8500, 8600);
        lines.insert(3, "8410 0 lock /a 11 1 3".to_owned());
        lines.insert(4, "8450 0 lock /a 11 3 1".to_owned());
        let plot = with(Plot::new().node("/a/x-0000000001", 11, 90, given(9000)), &lines);
        plot.change(|case| case.processes[0].absences.push(absence)).is_well();
    }

    #[test]
    fn a_jump_of_the_clock_is_as_good_as_being_away() {
        let plot = Plot::new().node("/a/x-0000000001", 11, 90, given(9000));
        let plot = with(plot, &hold("/a", 11, 100, 150, 199));
        plot.change(|case| case.processes[0].jumps.push(120 * MS)).breaks_only(Rule::Awakening);
    }

    #[test]
    fn programs_end_well_and_leave_no_threads() {
        let plot = || Plot::new().program(&[]);
        plot().is_well();
        plot().change(|case| case.processes[0].end = End::Badly(11)).breaks_only(Rule::Crash);
        plot().change(|case| drop(case.processes[0].lines.pop())).breaks_only(Rule::Crash);
        let process = program(&["95000 0 client 1 4", "95000 0 end 1"]);
        Plot::new().change(|case| case.processes.push(process)).breaks_only(Rule::Crash);
    }
}
