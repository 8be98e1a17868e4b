//! Connects and acquires a lock for `run`, `try` and `hold`, in a process that reads its signals from a descriptor.

use std::sync::mpsc;
use std::time::Duration;

use zklock::{Client, WaitsFor};

use super::hold::{Hold, Target};
use super::inbox::Inbox;
use super::progress::{Progress, TICK};
use crate::clock::BootTime;
use crate::console::Console;
use crate::exit::{Exit, Failure};
use crate::settings::Settings;

/// Connects. `wait` waits until something happens, and fails if the attempt must end. Later changes of the session also wake the process.
pub(crate) fn connect(
    settings: &Settings,
    inbox: &Inbox,
    wait: impl Fn() -> Result<(), Failure>,
) -> Result<Client, Failure> {
    let waker = inbox.waker();
    let config = settings.config.clone().on_event(move |_| waker.wake());
    let connecting = Client::start_connect(&settings.servers, &config)?;
    let waker = inbox.waker();
    connecting.on_done(move || waker.wake())?;
    while !connecting.is_over() {
        wait()?;
    }
    Ok(connecting.wait()?)
}

/// How long a call that has failed waits for the server before it exits.
pub(crate) const LEAVE_LIMIT: Duration = Duration::from_millis(500);

/// Ends the session of a process that has failed, and that exits after this call. A server that is silent must not delay the exit:
/// the kernel sends the request for the end of the session even after the exit.
pub(crate) fn leave(client: Client) {
    let (sender, closed) = mpsc::channel();
    let closing = client.close_in_background(move |result| drop(sender.send(result)));
    if closing.is_ok() {
        let _ = closed.recv_timeout(LEAVE_LIMIT);
        // The drop of the client would wait for the server too.
        std::mem::forget(client);
    }
}

/// How long an acquire may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AcquireLimit {
    pub(crate) timeout: Option<Duration>,
    /// The largest number of participants that may be ahead.
    pub(crate) queue: Option<u64>,
}

/// Acquires the lock at `path` and shows the progress. Returns the hold and the time waited. `wait` waits until something happens, for at most
/// the given time, and fails if the acquire must end.
pub(crate) fn acquire(
    target: &Target,
    path: &str,
    limit: AcquireLimit,
    console: &Console,
    inbox: &Inbox,
    wait: impl Fn(Option<Duration>) -> Result<(), Failure>,
) -> Result<(Hold, Duration), Failure> {
    let (started, waker) = (BootTime::now(), inbox.waker());
    let pending = target.start(limit.timeout, move || waker.wake())?;
    let mut progress = Progress::new(console, path);
    let tick = (console.shows_progress() || limit.queue.is_some()).then_some(TICK);
    loop {
        if let Some(result) = pending.poll() {
            console.clear();
            return Ok((result?, BootTime::now() - started));
        }
        wait(tick)?;
        check_queue(target, limit.queue)?;
        progress.show(target);
    }
}

/// Gives up if too many participants are ahead.
fn check_queue(target: &Target, limit: Option<u64>) -> Result<(), Failure> {
    let (Some(limit), Some(waiting)) = (limit, target.waiting()) else { return Ok(()) };
    if waiting.waits_for == WaitsFor::Node && waiting.count > limit {
        let ahead = if waiting.count == 1 { "participant is" } else { "participants are" };
        let message = format!("{} {ahead} ahead; --queue-limit is {limit}", waiting.count);
        return Err(Failure::new(Exit::Busy, message));
    }
    Ok(())
}
