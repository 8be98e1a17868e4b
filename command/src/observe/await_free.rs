//! `zklock wait`: waits until a lock is free, without joining its queue. The servers report each change of the queue,
//! so the wait does not poll.

use std::sync::mpsc;
use std::thread::Builder;
use std::time::Duration;

use serde_json::json;
use zklock::{Client, Status};

use super::connect_with;
use super::table::answer;
use crate::cli::WaitArguments;
use crate::clock::BootTime;
use crate::console::{Console, Verbosity};
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::run::acquire::leave;
use crate::settings::Settings;
use crate::survey::{Content, Entry, Kind, Role, Survey, read_contents};

/// After the time limit, a check of the lock waits for each answer for as long as an acquire with timeout 0.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Waits until the lock is free.
pub(crate) fn run(arguments: &WaitArguments) -> Result<Exit, Failure> {
    if let Some(max_leases) = arguments.semaphore.filter(|max_leases| *max_leases < arguments.qty) {
        return Err(Failure::usage(format!(
            "--qty {} is more than the {max_leases} leases of --semaphore; the wait would never end",
            arguments.qty
        )));
    }
    let deadline = arguments.timeout.map(|timeout| BootTime::now() + timeout);
    let settings = Settings::of_process(&arguments.connection)?;
    let client = connect_with(&settings, arguments.timeout, &Console::new(Verbosity::Normal, false))?;
    let Some(limit) = arguments.timeout else { return wait(&client, arguments, None) };
    let (sender, result) = mpsc::channel();
    let of_thread = (client.clone(), arguments.clone());
    // The thread ends with this process if the server stays silent.
    let waiting = Builder::new().spawn(move || {
        let (client, arguments) = of_thread;
        // The other end may have given up.
        let _ = sender.send(wait(&client, &arguments, deadline));
    });
    if let Err(error) = waiting {
        leave(client);
        return Err(Failure::system("starting a thread", error));
    }
    let answers = || client.metrics().map_or(0, |metrics| metrics.answers);
    let left = deadline.map_or(limit, |deadline| deadline - BootTime::now());
    let (mut received, mut seen) = (result.recv_timeout(left), None);
    // A check of the lock needs several answers, and may continue while they arrive.
    while received.is_err() && seen != Some(answers()) {
        seen = Some(answers());
        received = result.recv_timeout(ANSWER_LIMIT);
    }
    leave(client);
    received.unwrap_or_else(|_| {
        let limit = duration::show(limit);
        Err(Failure::new(Exit::Unavailable, format!("{}: no server has answered within {limit}", arguments.path)))
    })
}

fn wait(client: &Client, arguments: &WaitArguments, deadline: Option<BootTime>) -> Result<Exit, Failure> {
    let mut directory = arguments.path.clone();
    loop {
        // The list is older than the survey. A change that the survey does not show therefore ends the wait at once.
        let list = client.children(&directory)?;
        let mut survey = Survey::of_lock(client, &arguments.path)?;
        if let (Some(directory), Some(_)) = (survey.denied.first(), arguments.semaphore) {
            let message =
                format!("an access control list forbids to list {directory}, so free leases cannot be counted");
            return Err(Failure::new(Exit::Denied, message));
        }
        if is_free(&survey, arguments) {
            let text = format!("{}\n", json!({"path": survey.path, "free": true}));
            return answer(if arguments.json { &text } else { "" }).map(|()| Exit::Command(0));
        }
        // The contents are read now, because the server may be silent at the deadline.
        let mut obstacles = survey.entries.iter_mut().filter(|entry| !(arguments.shared && entry.is_shared));
        let mut first = obstacles.next();
        read_contents(client, first.as_deref_mut())?;
        if let Some(first) = first.filter(|first| first.content.as_ref().is_some_and(Content::is_permanent)) {
            let reason = first.describe().unwrap_or_default();
            let message = format!("{}: the wait would never end: {reason}; zklock doctor says what to do", survey.path);
            return Err(Failure::new(Exit::Foreign, message));
        }
        let left = deadline.map(|deadline| deadline - BootTime::now());
        if left == Some(Duration::ZERO) {
            return Err(busy(&survey, arguments));
        }
        match list {
            Some(list) if directory == directory_to_watch(&survey, arguments) => {
                let changed = client.start_await_children(&directory, list.zxid, left)?.wait();
                if changed.as_ref().is_err_and(|error| error.status() == Status::Timeout) {
                    return Err(busy(&survey, arguments));
                }
                changed?;
            }
            _ => directory = directory_to_watch(&survey, arguments),
        }
    }
}

/// Returns whether a participant could acquire the lock at once.
fn is_free(survey: &Survey, arguments: &WaitArguments) -> bool {
    if arguments.shared {
        return survey.entries.iter().all(|entry| entry.is_shared);
    }
    match arguments.semaphore {
        Some(_) if survey.kind.is_none_or(|kind| kind == Kind::Semaphore) => {
            survey.waiting() == 0 && has_free_leases(survey, arguments)
        }
        _ => survey.entries.is_empty(),
    }
}

/// Returns whether enough leases of a semaphore are free.
fn has_free_leases(survey: &Survey, arguments: &WaitArguments) -> bool {
    let max_leases = usize::try_from(arguments.semaphore.unwrap_or_default()).unwrap_or_default();
    max_leases.saturating_sub(survey.count(Role::Holds)) >= usize::try_from(arguments.qty).unwrap_or(usize::MAX)
}

/// Returns the directory in which a node must be deleted before the lock is free. The leases of a semaphore and its
/// waiters are in two directories.
fn directory_to_watch(survey: &Survey, arguments: &WaitArguments) -> String {
    let waits_for_queue = survey.kind == Some(Kind::Semaphore) && has_free_leases(survey, arguments);
    let is_obstacle = |entry: &&Entry| !waits_for_queue || entry.role == Role::Waits;
    let obstacle = survey.entries.iter().find(is_obstacle).or_else(|| survey.entries.first());
    let directory = obstacle.and_then(|entry| entry.node.rsplit_once('/'));
    directory.map_or_else(|| survey.path.clone(), |(directory, _)| directory.to_owned())
}

/// Explains why the lock is not free.
fn busy(survey: &Survey, arguments: &WaitArguments) -> Failure {
    let limit = arguments.timeout.map(duration::show).unwrap_or_default();
    let holder =
        survey.entries.first().and_then(Entry::describe).map(|holder| format!("; {holder}")).unwrap_or_default();
    let message = format!("{}: not free within {limit}{holder}", survey.path);
    Failure::new(Exit::Busy, message)
}
