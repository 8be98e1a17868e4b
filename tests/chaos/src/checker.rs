//! The checker: it compares the reports of the library to the programs with the transaction logs of the servers.
//!
//! A *claim* is the interval in which a program may rely on a hold. It begins when the acquire returns, or at the first
//! check of the hold if the program was paused during the acquire. It ends at the last time for which the library
//! reported that the hold is safe, or earlier if the program releases the lock. A claim does not depend on what happens
//! to the program later.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::history::{Call, Hold, Process, ProcessEnd, ProcessHistory, StateChange, StateCheck};
use crate::server_log::{Node, NodeRemoval, RemovalCause, ServerHistory};
use crate::trace::{Exclusion, Nanos};

/// The time limit, in milliseconds, of an acquire that must succeed after the servers have recovered.
pub const FINAL_LIMIT_MS: i64 = 60_000;
/// The servers read their clock once per millisecond.
const CLOCK_SLACK: Nanos = 2 * MS;
/// The maximum delay between a check that observes a change and the trace of its event.
const EVENT_DELAY_TOLERANCE: Nanos = 500 * MS;
const MS: Nanos = 1_000_000;

const TIMEOUT: i32 = -3;
const LOST_STATUS: i32 = -6;
const CONNECTION: i32 = -9;
const AUTH: i32 = -10;
const DENIED: i32 = -11;
const FREE: i32 = 10;
const HELD: i32 = 11;
const LOST: i32 = 14;
const CLIENT_CONNECTING: i32 = 0;
const CLIENT_CLOSED: i32 = 4;

/// The input of the checker.
#[derive(Debug, Default)]
pub struct CheckInput {
    /// The nodes and transactions, according to the logs of the servers.
    pub server_history: ServerHistory,
    /// The programs that took part.
    pub processes: Vec<Process>,
    /// The writes that the store received, in order.
    pub writes: Vec<Write>,
    /// The time at which the last fault had ended and all servers served again.
    pub recovered_at: Nanos,
    /// Nodes that still existed after all programs had finished, while they were still running.
    pub orphan_nodes: Vec<String>,
    /// The session timeout.
    pub session_timeout: Duration,
    /// How late a call may return after its deadline on a busy machine.
    pub overrun_tolerance: Duration,
}

/// A write to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The path of the lock that protects the data.
    pub path: String,
    /// The fencing token of the write.
    pub token: i64,
    /// Whether the store accepted the write.
    pub is_accepted: bool,
}

/// The rules that must not be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Two claims that exclude each other must not overlap.
    Exclusion,
    /// A claim must not last longer than its node.
    ClaimOutlivesNode,
    /// A program must not claim a hold for more than a session timeout after another client removed its node or
    /// session.
    RemovalUnnoticed,
    /// A lock must not be granted while a node is ahead that excludes it.
    QueueOrder,
    /// A token must be the czxid of its node, and must be larger than all earlier tokens.
    Token,
    /// The store must not accept a stale write.
    StaleWrite,
    /// No node may exist after its program has finished with it.
    OrphanNode,
    /// Every wait must end after the servers have recovered.
    Stuck,
    /// A call must not return later than allowed.
    Overrun,
    /// A call must not fail before its deadline.
    EarlyTimeout,
    /// No event may be missing or repeated, and each event must follow from the event before it.
    EventSequence,
    /// The first check after a program was paused for longer than a session timeout must not report that its hold is
    /// safe.
    SafeAfterPause,
    /// A program must not crash, and the library must not leave threads behind.
    Crash,
}

/// A case in which a rule was broken.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// The details.
    pub text: String,
}

/// The counts of the programs of one language, or of all programs.
#[derive(Debug, Clone, Default)]
pub struct Statistics {
    /// The number of programs.
    pub processes: usize,
    /// The number of programs that were killed.
    pub killed: usize,
    /// The number of acquires.
    pub calls: usize,
    /// The number of acquires that succeeded.
    pub acquisitions: usize,
    /// The number of checks of holds.
    pub state_checks: usize,
    /// The number of holds that were lost.
    pub losses: usize,
    /// The number of events that were delivered.
    pub events: usize,
    /// The number of events that are missing or wrong.
    pub event_errors: usize,
    /// The number of first checks after a program was paused for longer than a session timeout.
    pub checks_after_pause: usize,
    /// The largest delay between the deadline of a call and its return.
    pub worst_overrun: Duration,
    /// The longest time for which a program claimed a hold after another client had removed its node or session.
    pub worst_removal_notice: Duration,
    /// The longest wait for a lock that ended after the servers had recovered.
    pub longest_wait: Duration,
}

/// The result of the checker.
#[derive(Debug, Default)]
pub struct CheckReport {
    /// The violations.
    pub violations: Vec<Violation>,
    /// The counts by language.
    pub statistics: BTreeMap<&'static str, Statistics>,
    /// The number of writes that the store accepted.
    pub writes_accepted: usize,
    /// The number of writes with an outdated token. A store that ignores tokens would have accepted them.
    pub writes_stale: usize,
    /// The number of lock nodes.
    pub lock_nodes: usize,
    /// The number of transactions in the servers' logs.
    pub transactions: usize,
    /// The number of transactions in the logs that the next leader did not have in memory.
    pub rolled_back: usize,
}

/// Runs the checker.
pub fn check(input: &CheckInput) -> CheckReport {
    let mut checker =
        Checker { case: input, nodes: BTreeMap::new(), queues: BTreeMap::new(), report: CheckReport::default() };
    checker.index_nodes();
    let mut claims = Vec::new();
    for process in &input.processes {
        match ProcessHistory::of(&process.lines) {
            Ok(history) => claims.extend(checker.check_program(process, &history)),
            Err(error) => checker.add_violation(Rule::Crash, format!("{}: {error}", process.name)),
        }
    }
    checker.check_exclusion(&claims);
    checker.check_tokens_grow(&claims);
    checker.check_writes();
    input.orphan_nodes.iter().for_each(|node| checker.add_violation(Rule::OrphanNode, format!("{node} still exists")));
    checker.report
}

/// The interval in which a program may rely on a hold.
#[derive(Debug)]
struct Claim {
    description: String,
    path: String,
    stance: Exclusion,
    token: i64,
    leases: usize,
    /// The time at which the acquire returned, or `None` if the program was paused during the acquire.
    acquired_at: Option<Nanos>,
    from: Nanos,
    until: Nanos,
}

struct Checker<'a> {
    case: &'a CheckInput,
    /// The nodes by the transaction that created them.
    nodes: BTreeMap<i64, Vec<&'a Node>>,
    /// The nodes by directory, in the order of their creation.
    queues: BTreeMap<&'a str, Vec<&'a Node>>,
    report: CheckReport,
}

impl<'a> Checker<'a> {
    fn add_violation(&mut self, rule: Rule, text: String) {
        self.report.violations.push(Violation { rule, text });
    }

    fn index_nodes(&mut self) {
        (self.report.transactions, self.report.rolled_back) =
            (self.case.server_history.transactions, self.case.server_history.rolled_back);
        for node in self.case.server_history.nodes.iter().filter(|node| node.session != 0) {
            self.nodes.entry(node.czxid).or_default().push(node);
            self.queues.entry(directory(&node.path)).or_default().push(node);
            self.report.lock_nodes += 1;
        }
    }

    fn check_program(&mut self, process: &Process, history: &ProcessHistory) -> Vec<Claim> {
        let mut statistics = self.report.statistics.remove(process.language).unwrap_or_default();
        statistics.processes += 1;
        statistics.killed += usize::from(matches!(process.end, ProcessEnd::Killed(_)));
        statistics.calls += history.calls.len();
        statistics.acquisitions += history.holds.len();
        statistics.state_checks += history.holds.iter().map(|hold| hold.checks.len()).sum::<usize>();
        statistics.losses += history.holds.iter().filter(|hold| was_seen_lost(hold)).count();
        statistics.events += history.client_events.len() + history.lock_events.values().map(Vec::len).sum::<usize>();
        for call in &history.calls {
            self.check_call(process, call, &mut statistics);
        }
        let mut claims = Vec::new();
        for hold in &history.holds {
            self.check_blocking(process, hold, &mut statistics);
            self.check_after_pauses(process, history, hold, &mut statistics);
            claims.extend(self.claims(process, hold, &mut statistics));
        }
        let before = self.report.violations.len();
        if history.has_event_handler {
            self.check_events(process, history);
        }
        statistics.event_errors += self.report.violations.len() - before;
        self.check_end(process, history);
        self.report.statistics.insert(process.language, statistics);
        claims
    }

    fn check_call(&mut self, process: &Process, call: &Call, statistics: &mut Statistics) {
        let who = format!("{}: {} at {}", process.name, call.path, call.requested_at);
        let Some((answered, status)) = call.answer else {
            if !matches!(process.end, ProcessEnd::Killed(_)) {
                self.add_violation(Rule::Stuck, format!("{who} never returned"));
            }
            return;
        };
        if answered > self.case.recovered_at {
            let waited = Duration::from_nanos(answered - call.requested_at.max(self.case.recovered_at));
            statistics.longest_wait = statistics.longest_wait.max(waited);
        }
        if status != 0 && call.limit_ms >= FINAL_LIMIT_MS && call.requested_at > self.case.recovered_at {
            self.add_violation(Rule::Stuck, format!("{who} failed with {status} after the servers had recovered"));
        }
        if matches!(status, AUTH | DENIED) {
            self.add_violation(
                Rule::Stuck,
                format!("{who} failed with {status}, although the program has the permissions"),
            );
        }
        let Ok(limit) = u64::try_from(call.limit_ms) else { return };
        // With a time limit of zero, the server has one second to answer.
        let limit = if limit == 0 { 1000 * MS } else { limit * MS };
        self.check_deadline(process, &who, call.requested_at, answered, limit, statistics);
        let has_jumped = process.jumps.iter().any(|jump| (call.requested_at..answered).contains(jump));
        let gave_up = matches!(status, TIMEOUT | CONNECTION) && call.limit_ms > 0 && !has_jumped;
        if gave_up && answered - call.requested_at < limit {
            let after = Duration::from_nanos(answered - call.requested_at);
            self.add_violation(
                Rule::EarlyTimeout,
                format!("{who} failed with {status} after {after:?} of {} ms", call.limit_ms),
            );
        }
    }

    fn check_deadline(
        &mut self,
        process: &Process,
        who: &str,
        from: Nanos,
        until: Nanos,
        limit: Nanos,
        statistics: &mut Statistics,
    ) {
        let took = (until - from).saturating_sub(process.paused_time(from, until));
        let over = Duration::from_nanos(took.saturating_sub(limit));
        statistics.worst_overrun = statistics.worst_overrun.max(over);
        if over > self.case.overrun_tolerance {
            self.add_violation(Rule::Overrun, format!("{who} returned {over:?} late"));
        }
    }

    /// Checks the duration of the calls that must not block, and of the releases, which block for at most a session
    /// timeout.
    fn check_blocking(&mut self, process: &Process, hold: &Hold, statistics: &mut Statistics) {
        let who = |what: &str| format!("{}: {what} token {}", process.name, hold.token);
        if let (Some((from, waits)), Some((until, _))) = (hold.release_started, hold.released) {
            let limit = if waits { nanos(self.case.session_timeout) } else { 0 };
            self.check_deadline(process, &who("the release of"), from, until, limit, statistics);
        }
        for look in &hold.checks {
            self.check_deadline(process, &who("the check of"), look.at, look.done_at, 0, statistics);
        }
    }

    /// Tests the first check of a hold after a pause that was longer than a session timeout. This check must not report
    /// that the hold is safe, unless the library has confirmed the hold since the pause.
    fn check_after_pauses(
        &mut self,
        process: &Process,
        history: &ProcessHistory,
        hold: &Hold,
        statistics: &mut Statistics,
    ) {
        let timeout = nanos(self.case.session_timeout);
        let long = process.pauses.iter().filter(|pause| pause.until - pause.from > timeout);
        let awakenings = long.map(|pause| (pause.from, pause.until));
        for (asleep, awake) in awakenings.chain(process.jumps.iter().map(|&jump| (jump, jump))) {
            let was_there = hold.acquired_at < asleep && hold.release_started.is_none_or(|(leave, _)| leave > awake);
            let Some(look) = hold.checks.iter().find(|look| was_there && look.at >= awake) else { continue };
            statistics.checks_after_pause += 1;
            let is_confirmed = !history.has_event_handler
                || hold.paths().any(|path| {
                    let told = history.lock_events.get(&(path.to_owned(), hold.token)).map_or(&[][..], Vec::as_slice);
                    told.iter()
                        .any(|told| told.state == HELD && (awake..look.at + EVENT_DELAY_TOLERANCE).contains(&told.at))
                });
            let is_confirmed =
                is_confirmed && self.first_removal(hold).is_none_or(|gone| gone.at + CLOCK_SLACK > look.at);
            if look.is_held && !is_confirmed {
                let (token, away) = (hold.token, Duration::from_nanos(look.at - asleep));
                let text = format!("{}: token {token} was reported safe after a pause of {away:?}", process.name);
                self.add_violation(Rule::SafeAfterPause, text);
            }
        }
    }

    /// Checks a hold and returns its claims: one for each of its locks.
    fn claims(&mut self, process: &Process, hold: &Hold, statistics: &mut Statistics) -> Vec<Claim> {
        let who = format!("{} (thread {}, token {})", process.name, hold.thread, hold.token);
        let is_sure = process.paused_time(hold.requested_at, hold.acquired_at) == 0;
        if is_sure {
            self.check_order(&who, hold);
        }
        let leases = self.check_nodes(&who, hold);
        let Some((from, until)) = claim_interval(process, hold, is_sure) else { return Vec::new() };
        let until = self.check_claim_end(&who, hold, until, statistics);
        // Another client removed the node while the reply to the acquire was on its way.
        if until < from {
            return Vec::new();
        }
        let claim = |path: &str| Claim {
            description: who.clone(),
            path: path.to_owned(),
            stance: hold.exclusion,
            token: hold.token,
            leases,
            acquired_at: is_sure.then_some(hold.acquired_at),
            from,
            until,
        };
        hold.paths().map(claim).collect()
    }

    /// Checks that the token is the transaction that created the nodes. Returns the number of nodes.
    fn check_nodes(&mut self, who: &str, hold: &Hold) -> usize {
        let mut count = 0;
        for path in hold.paths() {
            let here = self.own_nodes(hold).filter(|node| is_below(node, path)).count();
            if here == 0 {
                self.add_violation(
                    Rule::Token,
                    format!("{who}: the transaction of the token created no node of {path}"),
                );
            }
            count += here;
        }
        count
    }

    /// Checks that no node was ahead, at the time of the grant, that excludes the hold.
    fn check_order(&mut self, who: &str, hold: &Hold) {
        if matches!(hold.exclusion, Exclusion::Leases(_)) {
            return;
        }
        let mut overtaken = Vec::new();
        for own in self.own_nodes(hold) {
            let queue = self.queues.get(directory(&own.path)).map_or(&[][..], Vec::as_slice);
            let ahead = queue.iter().take_while(|node| node.czxid < own.czxid).filter(|node| {
                let is_excluded = hold.exclusion == Exclusion::Exclusive || !node.path.contains("__READ__");
                is_excluded && sequence_text(node) <= sequence_text(own) && existed_at(node, hold.acquired_at)
            });
            overtaken.extend(ahead.map(|node| node.path.clone()));
        }
        for node in overtaken {
            self.add_violation(
                Rule::QueueOrder,
                format!("{who} was granted the lock at {}, but {node} was ahead", hold.acquired_at),
            );
        }
    }

    /// Checks that the claim does not last longer than its node. Returns the end of the claim. If another client
    /// removed the node, the claim ends at that time.
    fn check_claim_end(&mut self, who: &str, hold: &Hold, until: Nanos, statistics: &mut Statistics) -> Nanos {
        let Some(gone) = self.first_removal(hold) else { return until };
        match gone.why {
            RemovalCause::DeletedByOwnSession | RemovalCause::SessionExpired => {
                if until > gone.at + CLOCK_SLACK {
                    let over = Duration::from_nanos(until - gone.at);
                    self.add_violation(
                        Rule::ClaimOutlivesNode,
                        format!("{who} claimed the hold for {over:?} after its end ({:?})", gone.why),
                    );
                }
                until
            }
            RemovalCause::DeletedByOtherSession | RemovalCause::SessionClosed => {
                let last = hold.checks.iter().filter(|look| look.is_held).map(|look| look.at).max();
                let over = Duration::from_nanos(last.unwrap_or_default().saturating_sub(gone.at));
                statistics.worst_removal_notice = statistics.worst_removal_notice.max(over);
                if over > self.case.session_timeout {
                    self.add_violation(
                        Rule::RemovalUnnoticed,
                        format!("{who} claimed the hold for {over:?} after it was {:?}", gone.why),
                    );
                }
                until.min(gone.at)
            }
        }
    }

    /// Checks that claims that exclude each other do not overlap.
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
                if let Some(other) = conflicting_claim(claim, &running) {
                    let both = Duration::from_nanos(other.until.min(claim.until).saturating_sub(claim.from));
                    let text = format!(
                        "{}: {} and {} both claimed the lock for {both:?}",
                        claim.path, other.description, claim.description
                    );
                    self.add_violation(Rule::Exclusion, text);
                }
                running.push(claim);
            }
        }
    }

    /// Checks that later exclusive holds have larger tokens.
    fn check_tokens_grow(&mut self, claims: &[Claim]) {
        let mut got: Vec<_> =
            claims.iter().filter_map(|claim| Some((&claim.path, claim.acquired_at?, claim))).collect();
        got.retain(|(_, _, claim)| claim.stance == Exclusion::Exclusive);
        got.sort_by_key(|&(path, got, _)| (path, got));
        for ((path, _, one), (_, _, two)) in got.iter().zip(got.iter().skip(1)).filter(|(one, two)| one.0 == two.0) {
            if two.token <= one.token {
                self.add_violation(
                    Rule::Token,
                    format!(
                        "{path}: {} acquired the lock after {}, but its token is not larger",
                        two.description, one.description
                    ),
                );
            }
        }
    }

    fn check_writes(&mut self) {
        let mut highest: BTreeMap<&str, i64> = BTreeMap::new();
        for write in &self.case.writes {
            let highest = highest.entry(&write.path).or_insert(i64::MIN);
            let is_stale = write.token < *highest;
            self.report.writes_stale += usize::from(is_stale);
            self.report.writes_accepted += usize::from(write.is_accepted);
            if is_stale && write.is_accepted {
                let text = format!("{}: a write with token {} was accepted after {highest}", write.path, write.token);
                self.report.violations.push(Violation { rule: Rule::StaleWrite, text });
            }
            if write.is_accepted {
                *highest = write.token.max(*highest);
            }
        }
    }

    fn check_events(&mut self, process: &Process, history: &ProcessHistory) {
        let name = &process.name;
        for ((path, token), told) in &history.lock_events {
            let what = format!("{name}: {path}, token {token}");
            self.check_event_sequence(&what, told, FREE);
            let last = told.last().map_or(FREE, |told| told.state);
            if process.end == ProcessEnd::Success && last != FREE {
                self.add_violation(Rule::EventSequence, format!("{what}: the last event reported the state {last}"));
            }
            if let Some(back) = told.iter().find(|told| told.previous == LOST && told.state != FREE) {
                self.add_violation(
                    Rule::EventSequence,
                    format!("{what}: an event reported a change from LOST to {}", back.state),
                );
            }
        }
        self.check_event_sequence(&format!("{name}: its session"), &history.client_events, CLIENT_CONNECTING);
        let last = history.client_events.last().map_or(CLIENT_CONNECTING, |told| told.state);
        if process.end == ProcessEnd::Success && last != CLIENT_CLOSED {
            self.add_violation(
                Rule::EventSequence,
                format!("{name}: the last event of its session reported the state {last}"),
            );
        }
        for hold in &history.holds {
            self.check_events_of_hold(process, history, hold);
        }
    }

    /// Checks that each event starts at the state in which the event before it ended.
    fn check_event_sequence(&mut self, what: &str, told: &[StateChange], first: i32) {
        let mut before = first;
        for told in told {
            if told.previous != before || told.state == before {
                let (previous, state) = (told.previous, told.state);
                self.add_violation(
                    Rule::EventSequence,
                    format!("{what}: the state was {before}, but an event reported {previous} to {state}"),
                );
            }
            before = told.state;
        }
    }

    /// Checks that events were delivered for the acquisition of a hold and for its loss.
    fn check_events_of_hold(&mut self, process: &Process, history: &ProcessHistory, hold: &Hold) {
        let is_over = |at: Nanos| match process.end {
            ProcessEnd::Killed(killed) => at + nanos(self.case.session_timeout) < killed,
            ProcessEnd::Success | ProcessEnd::Failure(_) => true,
        };
        let timeout = nanos(self.case.session_timeout);
        let long_gone = self.first_removal(hold).is_some_and(|gone| {
            let noticed = gone.at + timeout + process.paused_time(gone.at, Nanos::MAX) + 1000 * MS;
            hold.release_started.is_some_and(|(leave, _)| leave > noticed)
        });
        // If the release discovers the loss, the release reports it, and no event does.
        let is_lost = hold.checks.iter().any(|look| look.state == LOST) || long_gone;
        let mut missing = Vec::new();
        let mut heard_of_loss = false;
        for path in hold.paths() {
            let told = history.lock_events.get(&(path.to_owned(), hold.token)).map_or(&[][..], Vec::as_slice);
            heard_of_loss |= told.iter().any(|told| told.state == LOST);
            if is_over(hold.acquired_at) && !told.iter().any(|told| told.state == HELD) {
                missing.push(format!("no event reported HELD for {path}"));
            }
        }
        if is_lost && is_over(hold.released.map_or(Nanos::MAX - timeout, |(left, _)| left)) && !heard_of_loss {
            missing.push("no event reported LOST".to_owned());
        }
        for missing in missing {
            self.add_violation(Rule::EventSequence, format!("{}: token {}: {missing}", process.name, hold.token));
        }
    }

    fn check_end(&mut self, process: &Process, history: &ProcessHistory) {
        match (process.end, history.threads_left) {
            (ProcessEnd::Killed(_), _) | (ProcessEnd::Success, Some(0)) => {}
            (ProcessEnd::Success, left) => {
                self.add_violation(Rule::Crash, format!("{}: threads left: {left:?}", process.name));
            }
            (ProcessEnd::Failure(status), _) => {
                self.add_violation(Rule::Crash, format!("{}: exit status {status:#x}", process.name));
            }
        }
    }

    fn own_nodes(&self, hold: &Hold) -> impl Iterator<Item = &'a Node> + use<'a> {
        self.nodes.get(&hold.token).cloned().unwrap_or_default().into_iter()
    }

    /// Returns the first removal of a node of this hold.
    fn first_removal(&self, hold: &Hold) -> Option<NodeRemoval> {
        self.own_nodes(hold).filter_map(|node| node.removal).min_by_key(|gone| gone.at)
    }
}

impl CheckReport {
    /// The counts of all languages together.
    pub fn total(&self) -> Statistics {
        let mut total = Statistics::default();
        self.statistics.values().for_each(|statistics| total.add(statistics));
        total
    }

    /// The number of violations of a rule.
    pub fn count(&self, rule: Rule) -> usize {
        self.violations.iter().filter(|violation| violation.rule == rule).count()
    }
}

impl Statistics {
    fn add(&mut self, other: &Self) {
        self.processes += other.processes;
        self.killed += other.killed;
        self.calls += other.calls;
        self.acquisitions += other.acquisitions;
        self.state_checks += other.state_checks;
        self.losses += other.losses;
        self.events += other.events;
        self.event_errors += other.event_errors;
        self.checks_after_pause += other.checks_after_pause;
        self.worst_overrun = self.worst_overrun.max(other.worst_overrun);
        self.worst_removal_notice = self.worst_removal_notice.max(other.worst_removal_notice);
        self.longest_wait = self.longest_wait.max(other.longest_wait);
    }
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 13] = [
        Self::Exclusion,
        Self::ClaimOutlivesNode,
        Self::RemovalUnnoticed,
        Self::QueueOrder,
        Self::Token,
        Self::StaleWrite,
        Self::OrphanNode,
        Self::Stuck,
        Self::Overrun,
        Self::EarlyTimeout,
        Self::EventSequence,
        Self::SafeAfterPause,
        Self::Crash,
    ];
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusion => "two holders of one lock",
            Self::ClaimOutlivesNode => "claimed after its end",
            Self::RemovalUnnoticed => "removal not noticed",
            Self::QueueOrder => "granted out of order",
            Self::Token => "wrong tokens",
            Self::StaleWrite => "stale writes accepted",
            Self::OrphanNode => "orphan nodes",
            Self::Stuck => "stuck waiters",
            Self::Overrun => "calls that overran",
            Self::EarlyTimeout => "calls that timed out early",
            Self::EventSequence => "events missed or wrong",
            Self::SafeAfterPause => "safe directly after a pause",
            Self::Crash => "crashes and threads left",
        })
    }
}

/// The interval in which a program may rely on a hold, according to what the library reported to it.
fn claim_interval(process: &Process, hold: &Hold, is_sure: bool) -> Option<(Nanos, Nanos)> {
    let first = hold.checks.iter().find(|look| look.is_held).map(|look| look.at);
    let from = if is_sure { hold.acquired_at } else { first? };
    let until = hold.checks.iter().map(|look| look.claimed_until(process)).max().unwrap_or(from).max(from);
    let end = match (hold.release_started, process.end) {
        (Some((leave, _)), _) => leave,
        (None, ProcessEnd::Killed(killed)) => killed,
        (None, _) => Nanos::MAX,
    };
    Some((from, until.min(end)))
}

impl StateCheck {
    /// If the clock of the program has jumped since the check, the reported time ended at the jump.
    fn claimed_until(&self, process: &Process) -> Nanos {
        let asked = if self.is_held { self.at } else { 0 };
        if self.remaining_ms == 0 {
            return asked;
        }
        let jump = process.jumps.iter().copied().find(|&jump| jump >= self.remaining_at).unwrap_or(Nanos::MAX);
        asked.max((self.remaining_at + self.remaining_ms * MS).min(jump))
    }
}

fn was_seen_lost(hold: &Hold) -> bool {
    hold.checks.iter().any(|look| look.state == LOST) || hold.released.is_some_and(|(_, status)| status == LOST_STATUS)
}

/// Returns a running claim that this claim excludes.
fn conflicting_claim<'a>(claim: &Claim, running: &[&'a Claim]) -> Option<&'a Claim> {
    if let Exclusion::Leases(most) = claim.stance {
        let out: usize = running.iter().map(|claim| claim.leases).sum();
        return running.last().filter(|_| out + claim.leases > most).copied();
    }
    let shares = |other: &Claim| claim.stance == Exclusion::Shared && other.stance == Exclusion::Shared;
    running.iter().find(|other| !shares(other)).copied()
}

fn directory(node: &str) -> &str {
    node.rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// The leases of a semaphore are in a separate directory below its path.
fn is_below(node: &Node, path: &str) -> bool {
    let directory = directory(&node.path);
    directory == path || directory.strip_suffix("/leases") == Some(path)
}

/// The sequence number of a node.
fn sequence_text(node: &Node) -> &str {
    node.path.get(node.path.len().saturating_sub(10)..).unwrap_or_default()
}

/// Whether a node certainly existed at this time, by the clock of the servers.
fn existed_at(node: &Node, at: Nanos) -> bool {
    node.removal.is_none_or(|gone| gone.at > at + CLOCK_SLACK)
}

fn nanos(duration: Duration) -> Nanos {
    Nanos::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Pause;
    use crate::trace;

    const T: Nanos = 4000;

    /// An input with times in milliseconds. It contains no violation until a test adds one.
    struct InputBuilder {
        case: CheckInput,
    }

    impl InputBuilder {
        fn new() -> Self {
            let session_timeout = Duration::from_millis(T);
            let overrun_tolerance = Duration::from_millis(100);
            let input =
                CheckInput { session_timeout, overrun_tolerance, recovered_at: 90_000 * MS, ..CheckInput::default() };
            Self { case: input }
        }

        /// Adds a node of the session `token`.
        fn node(mut self, path: &str, token: i64, made: Nanos, gone: Option<(Nanos, RemovalCause)>) -> Self {
            let removal = gone.map(|(at, cause)| NodeRemoval { at: at * MS, why: cause });
            let path = path.to_owned();
            self.case.server_history.nodes.push(Node {
                path,
                czxid: token,
                session: token,
                created_at: made * MS,
                removal,
            });
            self
        }

        /// Adds a program with these trace lines, whose times are in milliseconds. The lines of an orderly end are
        /// added.
        fn program(mut self, lines: &[&str]) -> Self {
            self.case.processes.push(program(&[lines, &["95000 0 client 1 4", "95000 0 end 0"]].concat()));
            self
        }

        fn change(mut self, change: impl FnOnce(&mut CheckInput)) -> Self {
            change(&mut self.case);
            self
        }

        #[track_caller]
        fn expect_violation(&self, rule: Rule) {
            let broken: Vec<Rule> = check(&self.case).violations.iter().map(|violation| violation.rule).collect();
            assert!(broken.contains(&rule), "{rule:?} is not among {broken:?}");
        }

        #[track_caller]
        fn expect_only(&self, rule: Rule) {
            let violations = check(&self.case).violations;
            assert!(!violations.is_empty() && violations.iter().all(|broken| broken.rule == rule), "{violations:?}");
        }

        #[track_caller]
        fn expect_no_violation(&self) {
            let violations = check(&self.case).violations;
            assert!(violations.is_empty(), "{violations:?}");
        }
    }

    /// Converts all times in the lines from milliseconds to nanoseconds.
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

    /// The trace lines of a hold from `got` to `leave`, with one check of the hold.
    fn hold(path: &str, token: i64, got: u64, look: u64, leave: u64) -> Vec<String> {
        let asked = got - 10;
        vec![
            format!("{asked} 1 call {path} exclusive 500"),
            format!("{got} 1 got {path} {token}"),
            format!("{got} 0 lock {path} {token} 10 11"),
            format!("{look} 1 look {token} 1 {look} 0 11 {look}"),
            format!("{leave} 1 leave {token} 1"),
            format!("{leave} 1 left {token} 0"),
            format!("{leave} 0 lock {path} {token} 11 10"),
        ]
    }

    fn with(plot: InputBuilder, lines: &[String]) -> InputBuilder {
        plot.program(&lines.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn given(at: Nanos) -> Option<(Nanos, RemovalCause)> {
        Some((at, RemovalCause::DeletedByOwnSession))
    }

    fn two_in_turn() -> InputBuilder {
        let plot = InputBuilder::new().node("/a/x-0000000001", 11, 90, given(200)).node(
            "/a/x-0000000002",
            12,
            150,
            given(300),
        );
        let plot = with(plot, &hold("/a", 11, 100, 150, 199));
        with(plot, &hold("/a", 12, 210, 250, 299))
    }

    /// Replaces the lines of one kind by other lines.
    fn replaced(lines: &[String], kind: &str, by: &str) -> Vec<String> {
        let lines = lines.iter().flat_map(|line| if line.contains(kind) { by.split('\n') } else { line.split('\n') });
        lines.map(str::to_owned).collect()
    }

    fn one_who_says(kind: &str, by: &str) -> InputBuilder {
        let plot = InputBuilder::new().node("/a/x-0000000001", 11, 90, given(200));
        with(plot, &replaced(&hold("/a", 11, 100, 150, 199), kind, by))
    }

    #[test]
    fn successive_holds_pass() {
        two_in_turn().expect_no_violation();
        let word = check(&two_in_turn().case);
        assert_eq!((word.total().acquisitions, word.total().events, word.lock_nodes), (2, 8, 2));
    }

    #[test]
    fn two_claims_at_once() {
        let plot =
            InputBuilder::new().node("/a/x-0000000001", 11, 90, given(300)).node("/a/x-0000000002", 12, 95, given(400));
        let plot = with(plot, &hold("/a", 11, 100, 150, 299));
        with(plot, &hold("/a", 12, 110, 160, 399)).expect_violation(Rule::Exclusion);
    }

    #[test]
    fn claim_lasts_until_the_reported_remaining_time() {
        let first = replaced(&hold("/a", 11, 100, 150, 199), " look ", "150 1 look 11 1 150 500 11 150");
        // This program never releases the lock.
        let first: Vec<String> =
            first.into_iter().filter(|line| !line.contains(" leave ") && !line.contains(" left ")).collect();
        let plot = InputBuilder::new().node("/a/x-0000000001", 11, 90, Some((600, RemovalCause::SessionExpired)));
        let plot = with(plot.node("/a/x-0000000002", 12, 95, given(900)), &first);
        let plot = with(plot, &hold("/a", 12, 610, 650, 899));
        plot.expect_violation(Rule::ClaimOutlivesNode);
        plot.expect_violation(Rule::Exclusion);
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        let reader = |token, got| -> Vec<String> {
            hold("/a", token, got, got + 80, got + 90).iter().map(|line| line.replace("exclusive", "shared")).collect()
        };
        let plot = InputBuilder::new().node("/a/x-__READ__0000000001", 11, 90, given(200)).node(
            "/a/x-__READ__0000000002",
            12,
            95,
            given(250),
        );
        let plot = with(with(plot, &reader(11, 100)), &reader(12, 120));
        plot.expect_no_violation();
        let plot = plot.node("/a/x-__WRIT__0000000003", 13, 100, given(400));
        with(plot, &hold("/a", 13, 130, 150, 160)).expect_violation(Rule::Exclusion);
    }

    #[test]
    fn leases_beyond_the_count_break_exclusion() {
        let lease = |token, got| -> Vec<String> {
            hold("/a", token, got, got + 80, got + 90)
                .iter()
                .map(|line| line.replace("exclusive", "leases:2"))
                .collect()
        };
        let node =
            |plot: InputBuilder, token| plot.node(&format!("/a/leases/x-00000000{token}"), token, 90, given(300));
        let plot = (11..13).fold(InputBuilder::new(), node);
        let plot = with(with(plot, &lease(11, 100)), &lease(12, 120));
        plot.expect_no_violation();
        with(node(plot, 13), &lease(13, 130)).expect_violation(Rule::Exclusion);
    }

    #[test]
    fn claim_after_session_expiry_is_reported() {
        let plot = InputBuilder::new().node("/a/x-0000000001", 11, 90, Some((140, RemovalCause::SessionExpired)));
        with(plot, &hold("/a", 11, 100, 150, 199)).expect_only(Rule::ClaimOutlivesNode);
    }

    #[test]
    fn removal_unnoticed_for_a_session_timeout_is_reported() {
        let taken = |look: u64| {
            let plot =
                InputBuilder::new().node("/a/x-0000000001", 11, 90, Some((140, RemovalCause::DeletedByOtherSession)));
            let lines = hold("/a", 11, 100, look, look + 10);
            with(
                plot,
                &replaced(
                    &lines,
                    " lock /a 11 11 10",
                    &format!("{look} 0 lock /a 11 11 14\n{look} 0 lock /a 11 14 10"),
                ),
            )
        };
        taken(150).expect_no_violation();
        let word = check(&taken(150).case);
        assert_eq!(word.total().worst_removal_notice, Duration::from_millis(10));
        taken(150 + T).expect_only(Rule::RemovalUnnoticed);
    }

    #[test]
    fn hold_whose_node_was_removed_before_the_acquire_returned_excludes_nobody() {
        let taken_at = |at, got| {
            let plot = InputBuilder::new()
                .node("/a/x-0000000001", 11, 90, Some((at, RemovalCause::DeletedByOtherSession)))
                .node("/a/x-0000000002", 12, 95, given(300));
            let lost = format!("{got} 0 lock /a 11 11 14\n{got} 0 lock /a 11 14 10");
            let first = replaced(&hold("/a", 11, got, got + 10, got + 20), " lock /a 11 11 10", &lost);
            with(with(plot, &first), &hold("/a", 12, 110, 250, 299))
        };
        taken_at(105, 120).expect_no_violation();
        taken_at(125, 120).expect_violation(Rule::Exclusion);
        taken_at(125, 120).expect_violation(Rule::Token);
    }

    #[test]
    fn grant_with_a_node_ahead_is_reported() {
        let plot =
            InputBuilder::new().node("/a/x-0000000001", 11, 90, given(300)).node("/a/x-0000000002", 12, 95, given(400));
        with(plot, &hold("/a", 12, 110, 160, 399)).expect_only(Rule::QueueOrder);
    }

    #[test]
    fn token_that_is_not_the_czxid_or_does_not_grow_is_reported() {
        let plot = InputBuilder::new().node("/a/x-0000000001", 11, 90, given(200));
        with(plot, &hold("/a", 77, 100, 150, 199)).expect_only(Rule::Token);
        let plot =
            InputBuilder::new().node("/a/x-0000000002", 12, 90, given(200)).node("/a/x-0000000001", 11, 80, given(300));
        let plot = with(plot, &hold("/a", 12, 100, 150, 199));
        with(plot, &hold("/a", 11, 210, 250, 299)).expect_violation(Rule::Token);
    }

    #[test]
    fn accepted_stale_write_is_reported() {
        let write = |token, is_accepted| Write { path: "/a".to_owned(), token, is_accepted };
        let refused = [write(11, true), write(12, true), write(11, false)];
        let plot = two_in_turn().change(|input| input.writes = refused.to_vec());
        plot.expect_no_violation();
        assert_eq!(check(&plot.case).writes_stale, 1);
        let plot = plot.change(|input| input.writes.push(write(11, true)));
        plot.expect_only(Rule::StaleWrite);
    }

    #[test]
    fn leftover_node_is_reported() {
        two_in_turn().change(|input| input.orphan_nodes.push("/a/x".to_owned())).expect_only(Rule::OrphanNode);
    }

    #[test]
    fn wait_that_never_returns_or_fails_after_recovery_is_reported() {
        InputBuilder::new().program(&["100 1 call /a exclusive -1"]).expect_only(Rule::Stuck);
        let lines = ["91000 1 call /a exclusive 60000", "94000 1 failed /a -6"];
        InputBuilder::new().program(&lines).expect_only(Rule::Stuck);
        let lines = ["100 1 call /a exclusive 500", "200 1 failed /a -11"];
        InputBuilder::new().program(&lines).expect_only(Rule::Stuck);
    }

    #[test]
    fn overrun_is_reported_unless_the_program_was_paused() {
        let lines = ["100 1 call /a exclusive 500", "900 1 failed /a -3"];
        let plot = InputBuilder::new().program(&lines);
        plot.expect_only(Rule::Overrun);
        let pause = Pause { from: 200 * MS, until: 500 * MS };
        plot.change(|input| input.processes[0].pauses.push(pause)).expect_no_violation();
        one_who_says(" left ", "4400 1 left 11 0").expect_only(Rule::Overrun);
        one_who_says(" look ", "150 1 look 11 1 150 0 11 300").expect_violation(Rule::Overrun);
    }

    #[test]
    fn early_timeout_is_reported_unless_the_clock_jumped() {
        let lines = ["100 1 call /a exclusive 500", "599 1 failed /a -3"];
        let plot = InputBuilder::new().program(&lines);
        plot.expect_only(Rule::EarlyTimeout);
        plot.change(|input| input.processes[0].jumps.push(300 * MS)).expect_no_violation();
    }

    #[test]
    fn missing_or_inconsistent_event_is_reported() {
        for (kind, by) in [
            // In turn: no event for HELD, a repeated event, a wrong event, and no event for FREE.
            (" lock /a 11 10 11", "100 0 lock /a 11 10 13"),
            (" lock /a 11 11 10", "199 0 lock /a 11 10 11"),
            (" lock /a 11 11 10", "199 0 lock /a 11 12 10"),
            (" lock /a 11 11 10", "199 0 client 1 2"),
        ] {
            one_who_says(kind, by).expect_only(Rule::EventSequence);
        }
        // A check reported LOST, but no event did.
        one_who_says(" look ", "150 1 look 11 0 150 0 14 150").expect_only(Rule::EventSequence);
        // A check reported LOST, and a later event reported HELD.
        let back = "199 0 lock /a 11 11 14\n199 0 lock /a 11 14 11\n199 0 lock /a 11 11 10";
        one_who_says(" lock /a 11 11 10", back).expect_only(Rule::EventSequence);
    }

    #[test]
    fn missing_closed_event_is_reported() {
        let mut process = program(&["95000 0 end 0"]);
        process.name = "someone".to_owned();
        InputBuilder::new().change(|input| input.processes.push(process)).expect_only(Rule::EventSequence);
    }

    #[test]
    fn unverified_safe_state_after_a_long_pause_is_reported() {
        let plot = InputBuilder::new().node("/a/x-0000000001", 11, 90, given(9000));
        let plot = with(plot, &hold("/a", 11, 100, 8500, 8600));
        let pause = Pause { from: 200 * MS, until: 8400 * MS };
        let plot = plot.change(|input| input.processes[0].pauses.push(pause));
        plot.expect_only(Rule::SafeAfterPause);
        assert_eq!(check(&plot.case).total().checks_after_pause, 1);
        // A confirmation since the pause makes the claim valid.
        let mut lines = hold("/a", 11, 100, 8500, 8600);
        lines.insert(3, "8410 0 lock /a 11 11 13".to_owned());
        lines.insert(4, "8450 0 lock /a 11 13 11".to_owned());
        let plot = with(InputBuilder::new().node("/a/x-0000000001", 11, 90, given(9000)), &lines);
        plot.change(|input| input.processes[0].pauses.push(pause)).expect_no_violation();
    }

    #[test]
    fn unverified_safe_state_after_a_clock_jump_is_reported() {
        let plot = InputBuilder::new().node("/a/x-0000000001", 11, 90, given(9000));
        let plot = with(plot, &hold("/a", 11, 100, 150, 199));
        plot.change(|input| input.processes[0].jumps.push(120 * MS)).expect_only(Rule::SafeAfterPause);
    }

    #[test]
    fn programs_end_well_and_leave_no_threads() {
        let plot = || InputBuilder::new().program(&[]);
        plot().expect_no_violation();
        plot().change(|input| input.processes[0].end = ProcessEnd::Failure(11)).expect_only(Rule::Crash);
        plot().change(|input| drop(input.processes[0].lines.pop())).expect_only(Rule::Crash);
        let process = program(&["95000 0 client 1 4", "95000 0 end 1"]);
        InputBuilder::new().change(|input| input.processes.push(process)).expect_only(Rule::Crash);
    }
}
