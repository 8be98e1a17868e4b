//! What the library logs, for programs that have no `tracing`: a handler of the process, called as those of events are, on the dispatcher
//! thread or by whom a bell tells, one line at a time and in order. No lock of ours is held meanwhile, and lines that came while it was
//! called wait, up to a limit; what is dropped is counted, and told.
//!
//! A Rust program listens to `tracing` itself, and this sets nothing up before it is asked to.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, SystemTime};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Metadata, Subscriber, callsite, span, subscriber};

use super::dispatcher::{Place, Served};
use super::fork::{Epoch, PerProcess};
use super::outlet::Caller;
use super::sync::{Monitor, MutexGuard, ThreadId, current_thread, thread_local};
use super::{Handlers, callback};
use crate::config::Bell;
use crate::error::{Error, Result, Status};
use crate::note::Level;

/// So many lines wait for the handler.
const LIMIT: usize = 4096;
/// How long the end of a handler waits for the lines that are left.
const PATIENCE: Duration = Duration::from_secs(2);

/// A line of the log.
#[derive(Debug, Clone, PartialEq)]
pub struct LogLine {
    /// How much it matters.
    pub level: Level,
    /// When it was written.
    pub time: SystemTime,
    /// What it is about: `zklock::session`, `zklock::lock`, `zklock::request`; `zklock::log` for the log itself, and modules for what should not happen.
    pub target: &'static str,
    /// What happened, without the fields.
    pub message: String,
    /// To what, and how.
    pub fields: Vec<(&'static str, LogValue)>,
}

/// The value of a field.
#[derive(Debug, Clone, PartialEq)]
pub enum LogValue {
    /// A number.
    Number(i64),
    /// Yes or no.
    Flag(bool),
    /// All others.
    Text(String),
}

impl fmt::Display for LogValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Flag(flag) => flag.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// The message and the fields, ready to be printed: what has spaces or quotes in it is quoted.
impl fmt::Display for LogLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.fields.iter().try_for_each(|(name, value)| match value {
            LogValue::Text(text) if text.is_empty() || text.contains([' ', '"', '=', '\n', '\\']) => {
                write!(f, " {name}={text:?}")
            }
            value => write!(f, " {name}={value}"),
        })
    }
}

/// What a program wants to be called with for each line.
pub type LogHandler = dyn Fn(&LogLine) + Send + Sync;

/// Who calls it.
pub enum LogCalls {
    /// The dispatcher thread, which goes on as long as there is a handler.
    OnThread,
    /// The program, when this was called, as [`Config::set_event_bell`](crate::Config::set_event_bell).
    Rung(Arc<Bell>),
}

/// Has `handler` called with each line up to this level that the library logs in this process, in the place of the handler before, whose
/// last call is over when this returns, unless it is that which asks. With `None` nothing is logged any more; what waits is told
/// before, as far as two seconds allow.
///
/// For languages that have no `tracing`: this makes the library's subscriber the process's, which a Rust program may want to have for itself.
/// A handler may call everything but what waits for other contenders; what is logged on its own thread meanwhile is told only if it is a warning
/// or an error.
///
/// Errors: UNSUPPORTED where `tracing` has a subscriber already; INTERNAL.
pub fn set_log_handler(level: Level, calls: LogCalls, handler: Option<Arc<LogHandler>>) -> Result<()> {
    let sink = SINK.get();
    let Some(handler) = handler else {
        sink.replace(0, None);
        return Ok(());
    };
    subscribe()?;
    let caller = match calls {
        LogCalls::OnThread => Caller::Dispatcher(Place::open()?),
        LogCalls::Rung(bell) => Caller::Bell(bell),
    };
    sink.replace(level as i32, Some((caller, handler)));
    Ok(())
}

/// Has the handler, if there is one, called with lines up to another level, or with none for the time being. It waits for nobody.
pub fn set_log_level(level: Option<Level>) {
    let sink = SINK.get();
    let state = sink.state.lock();
    if state.handler.is_some() {
        sink.level.store(level.map_or(0, |level| level as i32), Ordering::Relaxed);
        drop(state);
        callsite::rebuild_interest_cache();
    }
}

static SINK: PerProcess<Sink> = PerProcess::new(Sink::default);

/// What waits to be told, and to whom.
#[derive(Default)]
struct Sink {
    /// 0: nothing is.
    level: AtomicI32,
    state: Monitor<State>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<LogLine>,
    /// Lines that came when that was full.
    dropped: u64,
    handler: Option<Arc<LogHandler>>,
    caller: Caller,
    /// The caller knows that something waits.
    is_rung: bool,
    /// Which thread is calling now.
    serving: Option<ThreadId>,
    /// How many calls have begun, and how many of them are over.
    begun: u64,
    ended: u64,
}

thread_local! {
    /// In which process the thread is calling the handler: what that has logged would never end.
    #[allow(clippy::missing_const_for_thread_local, reason = "loom's macro takes no such block")]
    static TELLING: std::cell::Cell<Option<Epoch>> = std::cell::Cell::new(None);
}

impl Sink {
    fn replace(&'static self, level: i32, by: Option<(Caller, Arc<LogHandler>)>) {
        let mut state = self.state.lock();
        let is_own = state.is_own();
        if by.is_none() && !is_own {
            // What comes meanwhile is not waited for: it might go on for ever.
            let left = state.begun + state.waiting.len() as u64 + u64::from(state.dropped > 0);
            let has_more = |state: &mut State| state.handler.is_some() && state.ended < left;
            state = self.state.wait_while(state, Some(PATIENCE), has_more);
        }
        self.level.store(level, Ordering::Relaxed);
        let (caller, handler) = by.map_or((Caller::None, None), |(caller, handler)| (caller, Some(handler)));
        if handler.is_none() {
            state.waiting.clear();
            state.dropped = 0;
        }
        let before = (std::mem::replace(&mut state.handler, handler), std::mem::replace(&mut state.caller, caller));
        if !is_own {
            let begun = state.begun;
            state = self.state.wait_while(state, None, |state| state.ended < begun);
        }
        // Who was told before may have gone.
        state.is_rung = false;
        if !state.is_told() {
            self.ring(&mut state);
        }
        drop(state);
        // Not under the lock: what is the program's may take anything with it, and the thread is seen off where this was the last place.
        drop(before);
        callsite::rebuild_interest_cache();
    }

    fn add(&'static self, line: LogLine) {
        let mut state = self.state.lock();
        if state.handler.is_none() {
            return;
        }
        if state.waiting.len() >= LIMIT {
            state.dropped += 1;
            return;
        }
        let gap = state.take_gap();
        state.waiting.extend(gap);
        state.waiting.push_back(line);
        self.ring(&mut state);
    }

    fn ring(&'static self, state: &mut State) {
        if state.is_rung || state.serving.is_some() {
            return;
        }
        state.is_rung = true;
        match &state.caller {
            Caller::None | Caller::Polling(_) => {}
            Caller::Dispatcher(place) => place.serve(Arc::new(self)),
            Caller::Bell(bell) => bell(Handlers::of(Arc::new(self))),
        }
    }

    /// Calls the handler, with the lock free meanwhile. None in a child that it forked.
    fn call(
        &'static self,
        state: MutexGuard<'static, State>,
        handler: Arc<LogHandler>,
        line: &LogLine,
    ) -> Option<MutexGuard<'static, State>> {
        let epoch = Epoch::current();
        drop(state);
        TELLING.with(|telling| telling.set(Some(epoch)));
        callback::during(|| {
            // There is no log to be told of it but this one.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                handler(line);
                if epoch == Epoch::current() {
                    drop(handler);
                } else {
                    // The parent drops it.
                    std::mem::forget(handler);
                }
            }));
        });
        if epoch != Epoch::current() {
            return None;
        }
        TELLING.with(|telling| telling.set(None));
        Some(self.state.lock())
    }
}

impl Served for &'static Sink {
    fn call_next(self: Arc<Self>) -> bool {
        let sink: &'static Sink = *self;
        let mut state = sink.state.lock();
        if state.serving.is_some() {
            return false;
        }
        state.is_rung = false;
        let Some((handler, line)) = state.next() else { return false };
        state.serving = Some(current_thread());
        state.begun += 1;
        let Some(mut state) = sink.call(state, handler, &line) else { return true };
        state.ended += 1;
        state.serving = None;
        sink.state.notify();
        if !state.is_told() {
            sink.ring(&mut state);
        }
        true
    }

    fn address(&self) -> usize {
        std::ptr::from_ref::<Sink>(self).addr()
    }
}

impl State {
    fn is_told(&self) -> bool {
        self.waiting.is_empty() && self.dropped == 0 && self.serving.is_none()
    }

    fn next(&mut self) -> Option<(Arc<LogHandler>, LogLine)> {
        let handler = self.handler.clone()?;
        let line = self.waiting.pop_front().or_else(|| self.take_gap())?;
        Some((handler, line))
    }

    /// That lines are missing here.
    fn take_gap(&mut self) -> Option<LogLine> {
        let count = std::mem::take(&mut self.dropped);
        (count > 0).then(|| LogLine {
            level: Level::Warn,
            time: SystemTime::now(),
            target: "zklock::log",
            message: "lines dropped: the log is slower than they came".to_owned(),
            fields: vec![("count", LogValue::Number(i64::try_from(count).unwrap_or(i64::MAX)))],
        })
    }

    /// Whether the calling thread would wait for itself.
    fn is_own(&self) -> bool {
        self.caller.is_this_thread() || self.serving == Some(current_thread())
    }
}

/// Makes the subscriber that of the process, once: from the second one on that anybody makes, `tracing` takes a lock to register what it
/// traces, and a child that is forked meanwhile would wait for it for ever.
fn subscribe() -> Result<()> {
    let is_ours = || tracing::dispatcher::get_default(|dispatch| dispatch.is::<Listener>());
    if is_ours() || subscriber::set_global_default(Listener).is_ok() || is_ours() {
        return Ok(());
    }
    let message = "tracing has a subscriber in this process already, and what zklock logs goes there";
    Err(Error::new(Status::Unsupported, message))
}

/// Listens to what the library traces, but for spans.
struct Listener;

impl Subscriber for Listener {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> subscriber::Interest {
        if is_ours(metadata) { subscriber::Interest::sometimes() } else { subscriber::Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        is_ours(metadata) && level_of(metadata) as i32 <= SINK.get().level.load(Ordering::Relaxed)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match SINK.get().level.load(Ordering::Relaxed) {
            0 => LevelFilter::OFF,
            1 => LevelFilter::ERROR,
            2 => LevelFilter::WARN,
            3 => LevelFilter::INFO,
            4 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        // Warnings are told: the thread that calls the handler may be the one that finds out what has become of others.
        let is_told = TELLING.try_with(std::cell::Cell::get).unwrap_or_default() != Some(Epoch::current());
        if !is_told && level_of(metadata) > Level::Warn {
            return;
        }
        let mut line = LogLine {
            level: level_of(metadata),
            time: SystemTime::now(),
            target: metadata.target(),
            message: String::new(),
            fields: Vec::new(),
        };
        event.record(&mut line);
        SINK.get().add(line);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.is_event() && metadata.target().starts_with("zklock")
}

fn level_of(metadata: &Metadata<'_>) -> Level {
    match *metadata.level() {
        tracing::Level::ERROR => Level::Error,
        tracing::Level::WARN => Level::Warn,
        tracing::Level::INFO => Level::Info,
        tracing::Level::DEBUG => Level::Debug,
        tracing::Level::TRACE => Level::Trace,
    }
}

impl Visit for LogLine {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.fields.push((field.name(), LogValue::Number(value)));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.record_i64(field, i64::try_from(value).unwrap_or(i64::MAX));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.fields.push((field.name(), LogValue::Flag(value)));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            name => self.fields.push((name, LogValue::Text(value.to_owned()))),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        // To a string it does not fail.
        let _ = write!(text, "{value:?}");
        self.record_str(field, &text);
    }
}

#[cfg(all(test, feature = "loom"))]
mod models;
