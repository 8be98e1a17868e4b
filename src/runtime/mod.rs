//! The shell around the engine: the I/O thread, sockets, the clock, the event thread and the log. The shell transfers
//! bytes and makes no decisions about locks.

mod attempt_inputs;
mod callback;
mod callback_dispatcher;
mod clock;
mod completion;
mod completion_queue;
#[cfg(not(zklock_loom))]
mod connection;
mod credentials;
mod event_delivery;
mod event_thread;
mod file;
mod io_thread;
mod log_handler;
#[cfg(zklock_loom)]
mod model_socket;
mod pending_op;
#[cfg_attr(zklock_loom, allow(dead_code, reason = "the models use simulated connections instead of sockets"))]
mod poller;
mod report;
mod resolve;
mod sasl;
mod shell;
#[cfg_attr(zklock_loom, allow(dead_code, reason = "the models use simulated connections instead of sockets"))]
mod socket;
#[cfg(not(zklock_loom))]
mod socket_waiter;
mod sync;
#[cfg_attr(zklock_loom, allow(dead_code, reason = "the models use simulated connections instead of sockets"))]
mod tls;
mod wake_socket;

#[cfg(zklock_loom)]
use model_socket as connection;
#[cfg(zklock_loom)]
use model_socket as socket_waiter;

pub(crate) use attempt_inputs::AttemptInputs;
pub(crate) use callback::{Hook, run_hook};
pub use callback::{mark_callback_thread, refuse_in_callback};
pub(crate) use callback_dispatcher::DispatchMode;
pub use callback_dispatcher::EventSource;
pub(crate) use clock::now;
pub(crate) use completion::{Completion, Guarded, Outcome};
pub use completion_queue::CompletionQueue;
pub(crate) use credentials::{CredentialSource, MAX_CREDENTIALS, is_digest};
pub use event_delivery::Listen;
pub(crate) use event_delivery::{EventDelivery, EventHandler, HandlerId, RevocationHandler, Scope};
pub(crate) use file::{quote_file, read_regular_file, warn_if_exposed};
pub(crate) use io_thread::{is_driving_io, spawn_in_background};
pub use log_handler::{LogDispatch, LogHandler, LogLine, LogValue, set_log_handler, set_log_level};
pub(crate) use pending_op::PendingOp;
pub(crate) use report::{LOCK, SESSION};
pub(crate) use sasl::{JAAS_FILE, Mechanism, SaslSettings, SaslSource, is_name, is_password};
#[cfg(all(test, zklock_loom))]
pub(crate) use shell::models;
pub(crate) use shell::{AnswerHandler, Shell};
pub(crate) use sync::MutexGuard;
pub(crate) use tls::{TlsSettings, TlsSource, Verification};
pub use wake_socket::{OnceWakeSocket, WakeSocket};
