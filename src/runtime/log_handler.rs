//! The library's log, for programs that do not use `tracing`. One handler serves the whole process. The event thread
//! calls the handler. Alternatively, a notifier of the program wakes a program thread, and that thread calls the
//! handler. The handler receives the lines in order, one line at a time, and the library holds no lock during a call.
//! If a client logs a line while the handler is running, the log queues the line. If the queue is full, the log drops
//! the line. The log reports the number of dropped lines in a separate line.
//!
//! The code in this file does not depend on clients, because it receives all lines through `tracing`. A Rust program
//! can use `tracing` directly, so the library installs no subscriber until the program sets a handler.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, SystemTime};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Metadata, Subscriber, callsite, span, subscriber};
use zklock_core::error::{Error, Result, Status};
use zklock_core::log_record::Level;
use zklock_process::{ForkEpoch, PerProcess};

use super::callback;
use super::callback_dispatcher::{CallbackDispatcher, EventSource, Notifier};
use super::event_thread::{Dispatch, HandlerWait, Registration, is_event_thread};
use super::sync::{Monitor, MutexGuard, ThreadId, current_thread, thread_local};

/// The largest number of lines in the queue.
const MAX_QUEUED_LINES: usize = 4096;
/// The longest time that removing a handler waits for the delivery of the queued lines.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// A line of the log.
#[derive(Debug, Clone, PartialEq)]
pub struct LogLine {
    /// The importance of the line.
    pub level: Level,
    /// The wall-clock time at which the line was written.
    pub time: SystemTime,
    /// The subject of the line: `zklock::session`, `zklock::lock`, `zklock::request`, or `zklock::log` for the log
    /// itself. If the target is the name of a module, the line reports a problem that should not occur.
    pub target: &'static str,
    /// The message without the fields. All lines of one kind have the same message.
    pub message: String,
    /// The fields: names and values.
    pub fields: Vec<(&'static str, LogValue)>,
}

/// The value of a field.
#[derive(Debug, Clone, PartialEq)]
pub enum LogValue {
    /// A number.
    Number(i64),
    /// True or false.
    Flag(bool),
    /// Any other value, as text.
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

/// Formats the message and the fields as printable text. Values that contain spaces or quotes are quoted.
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

/// A handler for log lines.
pub type LogHandler = dyn Fn(&LogLine) + Send + Sync;

/// Selects the thread that calls the handler.
pub enum LogDispatch {
    /// The event thread. The event thread runs as long as a log handler is set.
    EventThread,
    /// A program thread. The library calls this notifier when the first line is queued.
    Notifier(Arc<Notifier>),
}

impl fmt::Debug for LogDispatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogDispatch").finish_non_exhaustive()
    }
}

/// Sets the handler for log lines. The library calls `handler` for each line up to this level from any client of this
/// process. A later call replaces the handler. When the call returns, the previous handler is no longer running, unless
/// the previous handler itself has called this function. The argument `None` turns logging off. In this case, the
/// function first waits for up to two seconds until the previous handler has received the queued lines.
///
/// This function is for languages without `tracing`. The function installs the library's subscriber as the global
/// subscriber of the process. A Rust program may need a different global subscriber. A handler may call every function
/// of the library, but the handler must not wait for other participants. If the handler calls the library and the call
/// logs lines, the log delivers only the warnings and errors of that call.
///
/// Errors: UNSUPPORTED if `tracing` already has a subscriber; EXHAUSTED, INTERNAL.
pub fn set_log_handler(level: Level, dispatch: LogDispatch, handler: Option<Arc<LogHandler>>) -> Result<()> {
    let sink = LOG_SINK.get();
    let Some(handler) = handler else {
        sink.replace(0, None);
        return Ok(());
    };
    install_subscriber()?;
    let dispatcher = match dispatch {
        LogDispatch::EventThread => CallbackDispatcher::EventThread(Registration::new()?),
        LogDispatch::Notifier(notifier) => CallbackDispatcher::Notifier(notifier),
    };
    sink.replace(level as i32, Some((dispatcher, handler)));
    Ok(())
}

/// Changes the highest log level that the handler receives, or turns logging off until the next call. Without a
/// handler, this function has no effect. If the handler is running, this function does not wait for it.
pub fn set_log_level(level: Option<Level>) {
    let sink = LOG_SINK.get();
    let state = sink.state.lock();
    if state.handler.is_some() {
        sink.max_level.store(level.map_or(0, |level| level as i32), Ordering::Relaxed);
        drop(state);
        callsite::rebuild_interest_cache();
    }
}

static LOG_SINK: PerProcess<LogSink> = PerProcess::new(LogSink::default);

/// The queued lines and the handler.
#[derive(Default)]
struct LogSink {
    /// The log accepts lines up to this level. The value 0 turns logging off.
    max_level: AtomicI32,
    state: Monitor<State>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<LogLine>,
    /// The number of lines that the log dropped because the queue was full.
    dropped: u64,
    handler: Option<Arc<LogHandler>>,
    dispatcher: CallbackDispatcher,
    /// True if the callback dispatcher was notified that lines are queued.
    is_dispatch_scheduled: bool,
    /// The thread that is running the handler.
    dispatching_thread: Option<ThreadId>,
    /// The number of calls that have started, and the number of calls that have ended.
    calls_started: u64,
    calls_finished: u64,
}

thread_local! {
    /// The fork epoch of this process while this thread runs the log handler, otherwise `None`. Without this value, a
    /// handler that logs a line would trigger itself endlessly.
    #[allow(clippy::missing_const_for_thread_local, reason = "the macro of loom does not support this block")]
    static IN_LOG_HANDLER: std::cell::Cell<Option<ForkEpoch>> = std::cell::Cell::new(None);
}

impl LogSink {
    fn replace(&'static self, level: i32, by: Option<(CallbackDispatcher, Arc<LogHandler>)>) {
        let mut state = self.state.lock();
        let is_own = state.is_dispatching_thread();
        if by.is_none() && !is_own {
            // This method waits only for lines that were logged before the wait. The wait therefore ends even if
            // clients continue to log lines.
            let left = state.calls_started + state.queue.len() as u64 + u64::from(state.dropped > 0);
            let has_more = |state: &mut State| state.handler.is_some() && state.calls_finished < left;
            state = self.state.wait_while(state, Some(DRAIN_TIMEOUT), has_more);
        }
        self.max_level.store(level, Ordering::Relaxed);
        let (dispatcher, handler) =
            by.map_or((CallbackDispatcher::None, None), |(dispatcher, handler)| (dispatcher, Some(handler)));
        if handler.is_none() {
            state.queue.clear();
            state.dropped = 0;
            // Another thread that removes the handler no longer needs to wait for the queued lines.
            self.state.notify();
        }
        let before =
            (std::mem::replace(&mut state.handler, handler), std::mem::replace(&mut state.dispatcher, dispatcher));
        let is_running_elsewhere = state.dispatching_thread.is_some_and(|thread| thread != current_thread());
        // The handler may run on the event thread while the loss thread calls this method, or the other way round.
        let waiting = if !is_own || is_event_thread() && is_running_elsewhere { HandlerWait::begin() } else { None };
        if waiting.is_some() {
            let begun = state.calls_started;
            state = self.state.wait_while(state, None, |state| state.calls_finished < begun);
        }
        drop(waiting);
        // The replaced dispatcher may have been notified of queued lines. The new dispatcher has not been notified yet.
        state.is_dispatch_scheduled = false;
        if !state.is_idle() {
            self.schedule_dispatch(&mut state);
        }
        drop(state);
        // This thread drops the old handler and the old dispatcher after it has released the lock. Dropping them may
        // run program code. If only the old dispatcher still uses the event thread, the drop waits until the event
        // thread has ended.
        drop(before);
        callsite::rebuild_interest_cache();
    }

    fn add(&'static self, line: LogLine) {
        let mut state = self.state.lock();
        if state.handler.is_none() {
            return;
        }
        if state.queue.len() >= MAX_QUEUED_LINES {
            state.dropped += 1;
            return;
        }
        let dropped_line = state.take_dropped_line();
        state.queue.extend(dropped_line);
        state.queue.push_back(line);
        self.schedule_dispatch(&mut state);
    }

    fn schedule_dispatch(&'static self, state: &mut State) {
        if state.is_dispatch_scheduled || state.dispatching_thread.is_some() {
            return;
        }
        state.is_dispatch_scheduled = true;
        match &state.dispatcher {
            CallbackDispatcher::None | CallbackDispatcher::Polling(_) => {}
            CallbackDispatcher::EventThread(place) => place.schedule(Arc::new(self), false),
            CallbackDispatcher::Notifier(notifier) => {
                // If the notifier panicked, Rust has already printed the panic. The library calls the notifier again
                // after the next line.
                let notified = catch_unwind(AssertUnwindSafe(|| notifier(EventSource::new(Arc::new(self), false))));
                state.is_dispatch_scheduled = notified.is_ok();
            }
        }
    }

    /// Calls the handler without holding the lock. Returns `None` if the process is a child that the handler has
    /// forked.
    fn call(
        &'static self,
        state: MutexGuard<'static, State>,
        handler: Arc<LogHandler>,
        line: &LogLine,
    ) -> Option<MutexGuard<'static, State>> {
        let epoch = ForkEpoch::current();
        drop(state);
        IN_LOG_HANDLER.with(|telling| telling.set(Some(epoch)));
        // The library does not log a panic in the log handler, because no other handler could receive the line.
        callback::call_catching_panic(|| {
            handler(line);
            if epoch == ForkEpoch::current() {
                drop(handler);
            } else {
                // The parent process drops the handler, so the child must not drop it.
                std::mem::forget(handler);
            }
        });
        if epoch != ForkEpoch::current() {
            return None;
        }
        IN_LOG_HANDLER.with(|telling| telling.set(None));
        Some(self.state.lock())
    }
}

impl Dispatch for &'static LogSink {
    fn dispatch_next(self: Arc<Self>) -> bool {
        let sink: &'static LogSink = *self;
        let mut state = sink.state.lock();
        if state.dispatching_thread.is_some() {
            return false;
        }
        state.is_dispatch_scheduled = false;
        let Some((handler, line)) = state.next() else { return false };
        state.dispatching_thread = Some(current_thread());
        state.calls_started += 1;
        let Some(mut state) = sink.call(state, handler, &line) else { return true };
        state.calls_finished += 1;
        state.dispatching_thread = None;
        sink.state.notify();
        if !state.is_idle() {
            sink.schedule_dispatch(&mut state);
        }
        true
    }

    fn identity(&self) -> usize {
        std::ptr::from_ref::<LogSink>(self).addr()
    }
}

impl State {
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.dropped == 0 && self.dispatching_thread.is_none()
    }

    fn next(&mut self) -> Option<(Arc<LogHandler>, LogLine)> {
        let handler = self.handler.clone()?;
        let line = self.queue.pop_front().or_else(|| self.take_dropped_line())?;
        Some((handler, line))
    }

    /// Returns a line that reports the number of dropped lines.
    fn take_dropped_line(&mut self) -> Option<LogLine> {
        let count = std::mem::take(&mut self.dropped);
        (count > 0).then(|| LogLine {
            level: Level::Warn,
            time: SystemTime::now(),
            target: "zklock::log",
            message: "lines dropped: the log was too slow".to_owned(),
            fields: vec![("count", LogValue::Number(i64::try_from(count).unwrap_or(i64::MAX)))],
        })
    }

    /// Returns whether the calling thread runs the handler. If this thread waited for the handler, it would wait for
    /// itself.
    fn is_dispatching_thread(&self) -> bool {
        self.dispatcher.is_current_thread() || self.dispatching_thread == Some(current_thread())
    }
}

/// Installs the subscriber as the global subscriber of the process. Only the first call installs the subscriber. To
/// register a second subscriber, `tracing` would take one of its locks. If another thread forked at that moment, the
/// child would wait for this lock forever.
fn install_subscriber() -> Result<()> {
    let is_ours = || tracing::dispatcher::get_default(|dispatch| dispatch.is::<LogSubscriber>());
    if is_ours() || subscriber::set_global_default(LogSubscriber).is_ok() || is_ours() {
        return Ok(());
    }
    let message = "this process already has a tracing subscriber, which receives the log lines of zklock";
    Err(Error::new(Status::Unsupported, message))
}

/// A subscriber that receives the events of the library but no spans.
struct LogSubscriber;

impl Subscriber for LogSubscriber {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> subscriber::Interest {
        if is_from_zklock(metadata) { subscriber::Interest::sometimes() } else { subscriber::Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        is_from_zklock(metadata) && level_of(metadata) as i32 <= LOG_SINK.get().max_level.load(Ordering::Relaxed)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match LOG_SINK.get().max_level.load(Ordering::Relaxed) {
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
        // While a thread runs the log handler, the log ignores the lines of this thread, except warnings and errors. A
        // warning or an error may concern another client, so the log must accept it.
        let is_outside_handler =
            IN_LOG_HANDLER.try_with(std::cell::Cell::get).unwrap_or_default() != Some(ForkEpoch::current());
        if !is_outside_handler && level_of(metadata) > Level::Warn {
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
        LOG_SINK.get().add(line);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

fn is_from_zklock(metadata: &Metadata<'_>) -> bool {
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
        // Writing to a string does not fail.
        let _ = write!(text, "{value:?}");
        self.record_str(field, &text);
    }
}

#[cfg(all(test, zklock_loom))]
mod models;
