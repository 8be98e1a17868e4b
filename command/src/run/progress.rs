//! The output while the lock is busy: the holder, the place in the queue, and the time waited.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use zklock::{Operation, Participant, Waiting, WaitsFor};

use super::hold::Target;
use crate::clock::{BootTime, wall_time};
use crate::console::Console;
use crate::duration;
use crate::owner::{Described, describe};
use crate::text::shorten_start;

/// The time between two questions for the holder. The question reads all nodes of the queue.
const ASK_INTERVAL: Duration = Duration::from_secs(5);
/// The time between two changes of the progress line.
pub(crate) const TICK: Duration = Duration::from_millis(500);

/// The largest width of the path, so that a terminal of 80 columns shows the whole line.
const LONGEST_PATH: usize = 20;

/// The progress of one wait.
#[derive(Debug)]
pub(crate) struct Progress<'a> {
    console: &'a Console,
    path: &'a str,
    question: Option<Operation<Vec<Participant>>>,
    asked: Option<BootTime>,
    holder: Option<Described>,
    /// The last event, without the time that changes continuously.
    reported: Option<(Option<String>, u64)>,
}

impl<'a> Progress<'a> {
    pub(crate) fn new(console: &'a Console, path: &'a str) -> Self {
        Self { console, path, question: None, asked: None, holder: None, reported: None }
    }

    /// Prints what the acquire waits for.
    pub(crate) fn show(&mut self, target: &Target) {
        if !self.console.shows_progress() {
            return;
        }
        self.ask(target);
        let Some(waiting) = target.waiting() else { return };
        let holder = self.holder.as_ref().map(|holder| holder.text.clone());
        if waiting.waits_for != WaitsFor::Server && self.reported != Some((holder.clone(), waiting.count)) {
            let waited = u64::try_from(waiting.waited.as_millis()).unwrap_or(u64::MAX);
            let fields = json!({"path": self.path, "ahead": waiting.count, "holder": holder, "waited_ms": waited});
            self.console.event("waiting", fields);
            self.reported = Some((holder, waiting.count));
        }
        self.console.progress(&line(self.path, &waiting, self.holder.as_ref(), wall_time()));
    }

    /// Asks for the holder from time to time, and takes the answer when it has arrived.
    fn ask(&mut self, target: &Target) {
        if let Some(question) = self.question.take_if(|question| question.is_over()) {
            let holder = question.wait().ok().and_then(|all| all.into_iter().find(|participant| participant.holds));
            self.holder = holder.map(|holder| describe(&holder.data, holder.session_id));
        }
        let now = BootTime::now();
        if self.question.is_none() && self.asked.is_none_or(|asked| now - asked >= ASK_INTERVAL) {
            (self.question, self.asked) = (target.participants().ok(), Some(now));
        }
    }
}

/// Writes the progress line. The most important parts come first, because a narrow terminal shows only the beginning.
fn line(path: &str, waiting: &Waiting, holder: Option<&Described>, now: Timestamp) -> String {
    let reason = match waiting.waits_for {
        WaitsFor::Connection => "no connection to a server".to_owned(),
        WaitsFor::Leases | WaitsFor::Count => "all leases are in use".to_owned(),
        WaitsFor::Node if waiting.count > 0 => format!("{} ahead", waiting.count),
        _ => "asking the servers".to_owned(),
    };
    let holder = holder.map(|holder| {
        let age = holder.held.and_then(|held| Duration::try_from(now.duration_since(held)).ok());
        let age = age.map(|age| format!(" {}", duration::show_seconds(age))).unwrap_or_default();
        format!("; held{age} by {}", holder.text)
    });
    let waited = duration::show_seconds(waiting.waited);
    format!("waiting {waited} for {}: {reason}{}", shorten_start(path, LONGEST_PATH), holder.unwrap_or_default())
}
