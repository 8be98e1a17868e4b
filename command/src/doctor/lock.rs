//! Checks one path: the rights on it, a test lock below it, the clock, and the nodes of its participants.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::system::uname;
use zklock::internal::record_path;
use zklock::{Client, Error, Permission, Status};

use super::finding::{Finding, milliseconds};
use crate::clock::{timestamp, wall_time};
use crate::duration::show;
use crate::exit::{Exit, Failure};
use crate::holder::quote;
use crate::owner::printable_line;
use crate::run::is_in_future;
use crate::settings::Settings;
use crate::survey::{Entry, Role, Survey, below, is_of_one_object, read_contents};

/// The name of the test lock, a child of the path. No lock recipe takes it for a participant.
const TEST_LOCK: &str = "zklock_doctor";
/// The number of participants whose nodes are read.
const MOST_READ: usize = 1000;
/// The number of nodes with findings that are shown.
const MOST_SHOWN: usize = 20;
/// The largest difference of the clocks without a warning.
const CLOCK_LIMIT: Duration = Duration::from_secs(1);
/// Above this number, a directory gets near the largest sequence number, which is 2147483647.
const HIGH_SEQUENCE: i64 = 2_000_000_000;
/// From this number on, the library refuses to acquire the lock.
const LAST_SEQUENCE: i64 = (1 << 31) - (1 << 20);
/// The time limit of the test lock.
const LIMIT: Duration = Duration::from_secs(10);

/// Checks a path. `sessions` are all sessions of the ensemble, if they are known. A check that fails does not prevent the
/// others.
pub(crate) fn check(client: &Client, settings: &Settings, path: &str, sessions: Option<&[i64]>) -> Vec<Finding> {
    let part = |check: &'static str, found: Result<Vec<Finding>, Failure>| {
        found.unwrap_or_else(|failure| vec![Finding::fail(check, path, failure).advise(UNEXPECTED)])
    };
    let (is_complete, mut findings) = match rights_of_deepest(client, path) {
        Ok(found) => found,
        Err(failure) => (true, part("rights", Err(failure))),
    };
    findings.extend(part("rights", rights_of_others(settings, path)));
    findings.extend(test_lock(client, path, is_complete));
    findings.extend(part("numbers", numbers(client, path)));
    findings.extend(part("lock", participants(client, path, sessions)));
    // The record remains when the servers have deleted the empty directory of the lock.
    findings.extend(part("runs", record(client, path).map(|finding| finding.into_iter().collect())));
    findings
}

/// The advice for an error that the check does not expect.
const UNEXPECTED: &str = "The message names the request that failed. An acquire of the lock fails in the same way.";

/// Checks the permissions on the path or its deepest ancestor that exists. Also returns whether it is the path itself.
fn rights_of_deepest(client: &Client, path: &str) -> Result<(bool, Vec<Finding>), Failure> {
    let mut present = deepest_existing(client, path)?;
    loop {
        match rights(client, &present.0, present.1) {
            Ok(findings) => return Ok((present.1, findings)),
            // The servers delete an empty lock directory after a while.
            Err(failure) => match deepest_existing(client, path)? {
                now if now == present => return Err(failure),
                now => present = now,
            },
        }
    }
}

/// Checks whether a client without credentials may do more than the options ask for.
fn rights_of_others(settings: &Settings, path: &str) -> Result<Vec<Finding>, Failure> {
    let wanted = ["acl.lock_directory", "acl.parents", "acl"].into_iter().find_map(|name| settings.option(name));
    let Some(wanted) = wanted.filter(|wanted| *wanted != "open" && !wanted.contains("world:")) else {
        return Ok(Vec::new());
    };
    if settings.option("tls.cert").is_some() {
        // The certificate is an identity too, and a server may refuse a client without one.
        return Ok(Vec::new());
    }
    let other = Client::connect(&settings.servers, &settings.without_credentials()?)?;
    let mut allowed = Vec::new();
    for permission in [Permission::Create, Permission::Delete, Permission::Write] {
        // A missing directory gives no permission.
        match other.check_permission(path, permission) {
            Ok(true) => allowed.push(permission.to_string()),
            Ok(false) => {}
            Err(error) if is_of_one_object(&error) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
    }
    if allowed.is_empty() {
        return Ok(Vec::new());
    }
    let detail =
        format!("a client without credentials has {}, although the options ask for {wanted}", allowed.join(", "));
    Ok(vec![Finding::warn("rights", path, detail).advise(format!(
        "Another program created the directory with its own list. Let an owner change it with setAcl {path} in zkCli.sh."
    ))])
}

/// Checks how many nodes the directories of the lock have had: each participant needs a new sequence number.
fn numbers(client: &Client, path: &str) -> Result<Vec<Finding>, Failure> {
    let mut findings = Vec::new();
    for directory in [path.to_owned(), below(path, "locks"), below(path, "leases")] {
        let created = match client.children(&directory) {
            // The check of the participants reports a list that this client cannot read.
            Err(error) if is_of_one_object(&error) => continue,
            children => children?.map_or(0, |children| children.created),
        };
        let detail = format!("the next sequence number is {created}, near the end at 2147483647");
        let finding = match created {
            ..HIGH_SEQUENCE => continue,
            HIGH_SEQUENCE..LAST_SEQUENCE => Finding::warn("numbers", directory, detail),
            _ => {
                let failure = Failure::new(Exit::Internal, detail + ", so no participant can join");
                Finding::fail("numbers", directory, failure)
            }
        };
        let advice = "Stop all programs that use the lock and delete its directory. The numbers then begin at 0.";
        findings.push(finding.advise(advice));
    }
    Ok(findings)
}

/// Returns the path or its deepest ancestor that exists, and whether it is the path itself.
fn deepest_existing(client: &Client, path: &str) -> Result<(String, bool), Failure> {
    let mut candidate = path;
    loop {
        let exists = match client.children(candidate) {
            // A server reports a missing node before a missing permission, and lists no missing node.
            Err(error) if is_of_one_object(&error) => true,
            children => children?.is_some(),
        };
        if exists || candidate == "/" {
            return Ok((candidate.to_owned(), candidate == path));
        }
        candidate = match candidate.rsplit_once('/') {
            Some(("", _)) | None => "/",
            Some((parent, _)) => parent,
        };
    }
}

/// Checks the permissions that a participant needs.
fn rights(client: &Client, node: &str, is_complete: bool) -> Result<Vec<Finding>, Failure> {
    let wanted: &[(Permission, &str)] = &[
        (Permission::Create, "a participant cannot create its node"),
        (Permission::Read, "a participant cannot see the queue"),
        (Permission::Delete, "a participant cannot release the lock, and operators cannot delete its node"),
    ];
    // Below the deepest existing ancestor, the client creates all nodes itself.
    let wanted = if is_complete { wanted } else { wanted.get(..1).unwrap_or_default() };
    let mut missing = Vec::new();
    for (permission, consequence) in wanted {
        if !client.check_permission(node, *permission)? {
            missing.push(format!("{permission} is missing: {consequence}"));
        }
    }
    if missing.is_empty() {
        let names: Vec<String> = wanted.iter().map(|(permission, _)| permission.to_string()).collect();
        return Ok(vec![Finding::ok("rights", node, format!("this client has {}", names.join(", ")))]);
    }
    let failure = Failure::new(Exit::Denied, missing.join("; "));
    let advice = format!(
        "Check the credentials (auth.*), or let an owner change the list: getAcl {node} and setAcl in zkCli.sh show and change it."
    );
    Ok(vec![Finding::fail("rights", node, failure).advise(advice)])
}

/// Acquires and releases a lock that no other program uses, and compares the clocks.
fn test_lock(client: &Client, path: &str, existed: bool) -> Vec<Finding> {
    let lock_path = below(path, TEST_LOCK);
    let tested = acquire_and_release(client, &lock_path);
    // The directories may contain the nodes of another call. An empty one is a container, so the server deletes it
    // later.
    let _ = client.delete_node(&lock_path);
    if !existed {
        let _ = client.delete_node(path);
    }
    match tested {
        Ok(TestLock { acquire, release, clock }) => {
            let detail = format!("acquired after {} and released after {}", milliseconds(acquire), milliseconds(release));
            vec![Finding::ok("test lock", lock_path, detail)].into_iter().chain(clock.map(|clock| clock.finding())).collect()
        }
        Err(error) => vec![Finding::fail("test lock", lock_path, error.into()).advise(
            "The message names the request that failed. Compare it with the access control list of the path and the options acl.*.",
        )],
    }
}

/// What the test lock has shown.
struct TestLock {
    acquire: Duration,
    release: Duration,
    clock: Option<ClockOffset>,
}

/// The difference between the clock of the leader and the clock of this host.
struct ClockOffset {
    /// Positive if the leader is ahead, in milliseconds.
    ahead_ms: i64,
    /// The time that the measurement took.
    took: Duration,
}

fn acquire_and_release(client: &Client, path: &str) -> Result<TestLock, Error> {
    let lock = client.mutex(path)?;
    let (began, started) = (wall_time(), Instant::now());
    lock.acquire(Some(LIMIT))?;
    let (ended, acquire) = (wall_time(), started.elapsed());
    let node = match lock.node_paths()?.first() {
        Some(node) => client.read_node(node)?,
        None => None,
    };
    let middle = began.as_millisecond().midpoint(ended.as_millisecond());
    let clock = node.map(|node| ClockOffset { ahead_ms: node.created_ms - middle, took: acquire });
    let started = Instant::now();
    lock.release()?;
    Ok(TestLock { acquire, release: started.elapsed(), clock })
}

impl ClockOffset {
    fn finding(&self) -> Finding {
        let distance = Duration::from_millis(self.ahead_ms.unsigned_abs());
        let direction = if self.ahead_ms < 0 { "behind" } else { "ahead of" };
        let detail = format!("the clock of the leader is {} {direction} this host", show(distance));
        if distance > CLOCK_LIMIT + self.took {
            return Finding::warn("clock", "leader", detail).advise(
                "Locks do not depend on the time of day, but the periods of --once-per and the ages in status do. Run an NTP client on all hosts.",
            );
        }
        Finding::ok(
            "clock",
            "leader",
            format!("within {} of this host", show((distance + self.took).max(Duration::from_millis(1)))),
        )
    }
}

/// Checks the nodes of the participants.
fn participants(client: &Client, path: &str, sessions: Option<&[i64]>) -> Result<Vec<Finding>, Failure> {
    let mut survey = match Survey::read(client, path) {
        Err(error) if is_of_one_object(&error) => {
            let advice =
                "A participant cannot see the queue either. Use another path, or let the queue become shorter.";
            return Ok(vec![Finding::fail("lock", path, error.into()).advise(advice)]);
        }
        survey => survey?,
    };
    read_contents(client, survey.entries.iter_mut().take(MOST_READ))?;
    let mut findings = vec![Finding::ok("lock", path, summary(&survey))];
    if survey.foreign() > 0 {
        let kinds: BTreeSet<&str> = survey.entries.iter().map(|entry| entry.kind.name()).collect();
        let kinds: Vec<&str> = kinds.into_iter().collect();
        let failure =
            Failure::new(Exit::Foreign, format!("participants use different kinds of lock: {}", kinds.join(", ")));
        findings.push(Finding::fail("kinds", path, failure).advise(
            "These locks do not exclude each other. Give each kind its own path, or move all programs to one kind. zklock status shows who uses which.",
        ));
    }
    let leases: BTreeSet<i32> = survey.entries.iter().filter_map(Entry::max_leases).collect();
    if leases.len() > 1 {
        let leases: Vec<String> = leases.iter().map(i32::to_string).collect();
        let detail = format!("participants use semaphores with different numbers of leases: {}", leases.join(", "));
        findings.push(Finding::fail("kinds", path, Failure::new(Exit::Foreign, detail)).advise(
            "Each program allows its own number of holders. Give the same number to --semaphore in all calls. zklock status --json shows who uses which.",
        ));
    }
    for directory in &survey.denied {
        findings.push(Finding::warn("lock", directory, "this client cannot list the directory").advise(
            "The participants of a semaphore in it are not shown. A semaphore needs the right; other locks do not use the directory.",
        ));
    }
    let mut nodes = Vec::new();
    for entry in survey.entries.iter().take(MOST_READ) {
        nodes.extend(node_finding(client, path, entry, sessions)?);
    }
    // Failures come first, because they decide the exit code.
    nodes.sort_by_key(|finding| !finding.is_failure());
    let hidden = nodes.len().saturating_sub(MOST_SHOWN);
    findings.extend(nodes.into_iter().take(MOST_SHOWN));
    if hidden > 0 {
        let detail = format!("{hidden} more nodes have findings like those above");
        findings.push(Finding::warn("node", path, detail).advise("Mend those above, and call zklock doctor again."));
    }
    if survey.entries.len() > MOST_READ {
        let detail = format!("the lock has {} participants; {MOST_READ} of them were checked", survey.entries.len());
        findings.push(Finding::ok("lock", path, detail));
    }
    Ok(findings)
}

/// Returns what is wrong with a node.
fn node_finding(
    client: &Client,
    path: &str,
    entry: &Entry,
    sessions: Option<&[i64]>,
) -> Result<Option<Finding>, Failure> {
    let Some(content) = &entry.content else { return Ok(None) };
    let name = entry.node.rsplit('/').next().unwrap_or_default();
    let delete = how_to_delete(path, name);
    if content.is_permanent() {
        let failure = Failure::new(
            Exit::Unavailable,
            format!("the node is not ephemeral, so no session ends it ({})", entry.who()),
        );
        let advice = format!(
            "No lock library makes such a node; a copy of the tree can contain it. If no program needs it: {delete}"
        );
        return Ok(Some(Finding::fail("node", &entry.node, failure).advise(advice)));
    }
    let is_dead = sessions.is_some_and(|sessions| !sessions.contains(&content.session));
    // The session may have begun after the servers were asked, so the present list decides. A session that has ended
    // takes its node along.
    if is_dead && is_older_than_the_list(content.created) && client.read_node(&entry.node)?.is_some() {
        let failure = Failure::new(
            Exit::Unavailable,
            format!("session 0x{:x} has ended, but its node exists ({})", content.session, entry.who()),
        );
        let advice = format!("This is an error of the servers. Update and restart them. To remove the node: {delete}");
        return Ok(Some(Finding::fail("node", &entry.node, failure).advise(advice)));
    }
    let is_gone = content.who.owner.as_ref().is_some_and(|owner| {
        owner.host == uname().nodename().to_string_lossy()
            && !fs::exists(format!("/proc/{}", owner.pid)).unwrap_or(true)
    });
    if is_gone {
        let verb = if entry.role == Role::Holds { "held" } else { "wanted" };
        let detail = format!("{verb} by {}, which no longer runs on this host", entry.who());
        let advice = "The servers delete the node when the session ends. If the process runs in a container with its own process ids, all is well.";
        return Ok(Some(Finding::warn("node", &entry.node, detail).advise(advice)));
    }
    Ok(None)
}

/// Says how to delete a node. Messages contain no invisible characters, so a command for a name with such characters would
/// name another node.
fn how_to_delete(path: &str, name: &str) -> String {
    if printable_line(name) == name && printable_line(path) == path {
        format!("zklock break --yes --node {} {} deletes it.", shell_word(name), shell_word(path))
    } else {
        format!(
            "delete {name:?} below {path:?} with a program. A copied command could name another node, because the name contains invisible characters."
        )
    }
}

/// Writes a name so that the user can copy it to a shell. Any client can create a node whose name has a meaning there.
fn shell_word(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-_.:".contains(c);
    if name.chars().all(is_plain) { name.to_owned() } else { quote(name) }
}

/// The longest time between the question for the sessions and the check of a node.
const LIST_AGE: Duration = Duration::from_secs(120);

fn is_older_than_the_list(created: Timestamp) -> bool {
    Duration::try_from(wall_time().duration_since(created)).is_ok_and(|age| age > LIST_AGE)
}

/// Checks the record of `--once-per`.
fn record(client: &Client, path: &str) -> Result<Option<Finding>, Failure> {
    let node = record_path(path);
    let runs = match client.past_runs(path) {
        Err(error) if is_of_one_object(&error) => {
            let advice =
                "run --once-per needs this right. Check the credentials (auth.*), or let an owner change the list.";
            return Ok(Some(Finding::fail("runs", node, error.into()).advise(advice)));
        }
        Err(error) if error.status() == Status::Invalid => {
            let advice = "run --once-per cannot use this path. Delete the node, or choose another path.";
            return Ok(Some(Finding::fail("runs", node, error.into()).advise(advice)));
        }
        runs => runs?,
    };
    let Some(last) = runs.first() else { return Ok(None) };
    if is_in_future(last, wall_time()) {
        let (owner, began) = (printable_line(&last.owner), timestamp(last.started));
        let detail = format!("{owner} began the last run at {began:.0}, in the future of this host");
        let advice = "Until its period is over, run --once-per skips the job. Compare the clocks of both hosts. If the time of the run is wrong, delete the node.";
        return Ok(Some(Finding::warn("runs", node, detail).advise(advice)));
    }
    let recorded = match runs.len() {
        1 => "1 run is recorded".to_owned(),
        count => format!("{count} runs are recorded"),
    };
    Ok(Some(Finding::ok("runs", node, recorded)))
}

fn summary(survey: &Survey) -> String {
    match survey.kind {
        None if survey.exists => "free".to_owned(),
        None => "free; the node does not exist yet, and the first participant creates it".to_owned(),
        Some(kind) => format!("{}, {} holding, {} waiting", kind.name(), survey.count(Role::Holds), survey.waiting()),
    }
}
