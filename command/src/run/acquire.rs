//! Connects and acquires a lock for `run`, `try` and `hold`, in a process that reads its signals from a descriptor.

use std::sync::mpsc;
use std::thread::Builder;
use std::time::Duration;

use zklock::{Client, Error, Result as ZkResult, Status};

use super::hold::{Hold, Target};
use super::inbox::Inbox;
use super::progress::{Progress, TICK};
use crate::clock::BootTime;
use crate::console::Console;
use crate::duration;
use crate::exit::{Exit, Failure};
use crate::settings::Settings;
use crate::survey::{Survey, read_contents};

/// Connects within the time limit of the call, and shows on a terminal that this takes long. `wait` waits until something
/// happens, for at most the given time, and fails if the attempt must end. Later changes of the session also wake the
/// process.
pub(crate) fn connect(
    settings: &Settings,
    timeout: Option<Duration>,
    console: &Console,
    inbox: &Inbox,
    wait: impl Fn(Option<Duration>) -> Result<(), Failure>,
) -> Result<Client, Failure> {
    settings.warn(console);
    let (started, waker) = (BootTime::now(), inbox.waker());
    let config = settings.config_within(timeout).on_event(move |_| waker.wake());
    let connecting = Client::start_connect(&settings.servers, &config)?;
    let waker = inbox.waker();
    connecting.on_done(move || waker.wake())?;
    let tick = console.shows_progress().then_some(TICK);
    while !connecting.is_over() {
        wait(tick)?;
        console.connecting(&settings.servers, BootTime::now() - started);
    }
    console.clear();
    Ok(connecting.wait()?)
}

/// How long a call whose time is over asks the servers who holds the lock.
const HOLDER_LIMIT: Duration = Duration::from_millis(200);

/// How long a call that has failed waits for the end of its session before it exits.
const LEAVE_LIMIT: Duration = Duration::from_millis(300);

/// Ends the session of a process that has failed, and that exits after this call. A server that is silent must not
/// delay the exit: the kernel sends the request for the end of the session even after the exit.
pub(crate) fn leave(client: Client) {
    if let Ok(closing) = client.start_close() {
        let _ = closing.wait_for(LEAVE_LIMIT);
        // The drop of the client would wait for the server too.
        std::mem::forget(client);
    }
}

/// How long an acquire may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AcquireLimit {
    pub(crate) timeout: Option<Duration>,
    /// True if the message of a failure must name the holder of a lock, which takes two more round trips. The message
    /// of a semaphore names no holder, because it can have many.
    pub(crate) names_holder: bool,
}

/// Acquires the lock at `paths` and shows the progress. Returns the hold and the time waited. `wait` waits until
/// something happens, for at most the given time, and fails if the acquire must end.
pub(crate) fn acquire(
    client: &Client,
    target: &Target,
    paths: &[String],
    limit: AcquireLimit,
    console: &Console,
    inbox: &Inbox,
    wait: impl Fn(Option<Duration>) -> Result<(), Failure>,
) -> Result<(Hold, Duration), Failure> {
    let (started, waker) = (BootTime::now(), inbox.waker());
    let pending = target.start(limit.timeout, move || waker.wake())?;
    let mut progress = Progress::new(console, paths.first().map_or("", String::as_str));
    let tick = console.shows_progress().then_some(TICK);
    loop {
        if let Some(result) = pending.poll() {
            console.clear();
            let waited = BootTime::now() - started;
            return match result {
                Err(error)
                    if error.status() == Status::Timeout && limit.names_holder && matches!(target, Target::Lock(_)) =>
                {
                    Err(busy(error, client, paths, waited, limit.timeout))
                }
                result => Ok((result?, waited)),
            };
        }
        wait(tick)?;
        progress.show(target);
    }
}

/// Makes the failure of an acquire whose time is over. If a server answers in time, the message names the holder.
fn busy(error: Error, client: &Client, paths: &[String], waited: Duration, timeout: Option<Duration>) -> Failure {
    let (sender, holder) = mpsc::channel();
    let of_thread = (client.clone(), paths.to_vec());
    // If the server is silent, the thread ends with this process.
    let asking = Builder::new().name("zklock-busy".to_owned()).spawn(move || {
        let (client, paths) = of_thread;
        // The other end may have given up.
        drop(sender.send(find_holder(&client, &paths)));
    });
    let holder = asking.ok().and_then(|_| holder.recv_timeout(HOLDER_LIMIT).ok()?.ok()?);
    let Some((path, holder)) = holder else { return error.into() };
    let limit = match timeout {
        Some(Duration::ZERO) => String::new(),
        _ => format!("not acquired within {}; ", duration::show(waited)),
    };
    Failure::new(Exit::Busy, format!("{path}: {limit}{holder}"))
}

/// Describes the first participant of the first queue that is not empty, and returns it with the path of the queue.
fn find_holder(client: &Client, paths: &[String]) -> ZkResult<Option<(String, String)>> {
    for path in paths {
        let mut survey = Survey::read(client, path)?;
        read_contents(client, survey.entries.iter_mut().take(1))?;
        let Some(first) = survey.entries.first() else { continue };
        if let Some(text) = first.describe() {
            return Ok(Some((path.clone(), format!("{text}, with the node {}", first.node))));
        }
    }
    Ok(None)
}
