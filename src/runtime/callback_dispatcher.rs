//! Selects the thread that calls the callbacks of a client or of the log. This thread is the event thread, a program
//! thread that polls a descriptor, or a program thread that a notifier wakes. A program thread calls the
//! callbacks through an [`EventSource`]. The code in this file does not depend on the kinds of events and callbacks.

use std::fmt;
use std::sync::Arc;

use zklock_core::error::Result;

use super::callback;
use super::event_thread::{self, Dispatch, Registration};
use super::wake_socket::WakeSocket;

/// Selects the thread that calls the program's handlers.
#[derive(Clone)]
pub(crate) enum DispatchMode {
    /// The library's event thread.
    EventThread,
    /// A program thread that polls a descriptor.
    Polling,
    /// A program thread that this notifier wakes.
    Notifier(Arc<Notifier>),
}

/// A closure that the library calls when the first event is queued. A program thread then dispatches the events from
/// the event source.
pub(crate) type Notifier = dyn Fn(EventSource) + Send + Sync;

/// The callback dispatcher, which makes the selected thread call the handlers.
#[derive(Default)]
pub(super) enum CallbackDispatcher {
    /// No handler has been registered yet.
    #[default]
    None,
    EventThread(Registration),
    Polling(WakeSocket),
    Notifier(Arc<Notifier>),
}

impl CallbackDispatcher {
    /// Creates a callback dispatcher. Errors: EXHAUSTED.
    pub(super) fn open(mode: &DispatchMode) -> Result<Self> {
        Ok(match mode {
            DispatchMode::EventThread => Self::EventThread(Registration::new()?),
            DispatchMode::Polling => Self::Polling(WakeSocket::new()?),
            DispatchMode::Notifier(notifier) => Self::Notifier(Arc::clone(notifier)),
        })
    }

    /// Returns whether the calling thread dispatches events. If this thread waited for the handlers, it would wait for
    /// itself.
    pub(super) fn is_current_thread(&self) -> bool {
        match self {
            Self::EventThread(_) => event_thread::is_event_thread(),
            Self::Notifier(_) => callback::is_in_callback(),
            Self::None | Self::Polling(_) => false,
        }
    }
}

/// The queued events of a client, or the queued lines of the log. A program thread uses this value to call the
/// handlers. The client can be closed while this value exists.
#[derive(Clone)]
pub struct EventSource {
    source: Arc<dyn Dispatch>,
    has_loss: bool,
}

impl fmt::Debug for EventSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventSource").finish_non_exhaustive()
    }
}

impl EventSource {
    pub(super) fn new(source: Arc<dyn Dispatch>, has_loss: bool) -> Self {
        Self { source, has_loss }
    }

    /// Returns whether the loss of a hold was queued when the library notified the program. If the first loss arrives
    /// later, the library notifies the program again.
    pub const fn has_loss(&self) -> bool {
        self.has_loss
    }

    /// Calls the handlers for the next event. The handlers run on the calling thread. Returns false if no event is
    /// queued. If further events are queued, the library notifies the program again.
    pub fn dispatch_next(&self) -> bool {
        Arc::clone(&self.source).dispatch_next()
    }
}

/// Two event sources are equal if both belong to the same client, or if both belong to the log.
impl PartialEq for EventSource {
    fn eq(&self, other: &Self) -> bool {
        self.source.identity() == other.source.identity()
    }
}
