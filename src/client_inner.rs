//! The data that the clones, locks, semaphores and leases of one client share. This module also contains the code that
//! closes the client. The code in this file does not create locks, and refers to a lock only through a [`LockTarget`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};

use zklock_core::engine::{CLOSE_LIMIT, Engine, OpId};
use zklock_core::error::{Result, Status};
use zklock_core::time::Time;

use crate::acquire::{Cancellation, LockTarget};
use crate::listener::ReplaceableListener;
use crate::runtime::{PendingOp, Shell, is_driving_io, now, spawn_in_background};

/// The data of a client. The clones of the client, its locks, its semaphores and its leases share this value. When the
/// program has dropped all of these objects, the library closes the client.
pub(crate) struct ClientInner {
    pub(crate) shell: Arc<Shell>,
    servers: String,
    closed: AtomicBool,
    ends_in_background: bool,
    /// The stepwise multi-locks that have at least one step in this client.
    stepwise_multis: Mutex<Vec<StepwiseMulti>>,
    pub(crate) on_event: ReplaceableListener,
}

/// A multi-lock that is acquired in several steps. Between two steps, the acquire call has no operation in any engine.
/// If the multi-lock is closed between two steps, the acquire call learns this from `notices`.
struct StepwiseMulti {
    steps: Weak<[LockTarget]>,
    notices: Arc<Cancellation>,
}

impl ClientInner {
    pub(crate) fn new(shell: Arc<Shell>, servers: &str, ends_in_background: bool) -> Self {
        Self {
            shell,
            servers: servers.to_owned(),
            closed: AtomicBool::new(false),
            ends_in_background,
            stepwise_multis: Mutex::default(),
            on_event: ReplaceableListener::default(),
        }
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        self.shell.check_process()?;
        if self.closed.load(Ordering::Acquire) { Err(Status::Closed.into()) } else { Ok(()) }
    }

    /// The server list that the program passed.
    pub(crate) fn servers(&self) -> &str {
        &self.servers
    }

    /// Starts an operation that ends within the session timeout.
    pub(crate) fn start_op(&self, submit: impl FnOnce(&mut Engine, Time) -> OpId) -> Result<PendingOp> {
        let mut deadline = Time::default();
        let pending = PendingOp::start(&self.shell, None, |engine, now| {
            deadline = now + engine.session_timeout();
            submit(engine, now)
        })?;
        Ok(pending.with_deadline(deadline))
    }

    pub(crate) fn close(&self) -> Result<()> {
        match self.start_close()? {
            // This thread reads the answers of the servers, so it must not wait for an answer.
            end @ PendingClose::Own(_) if is_driving_io() => spawn_in_background(|| end.finish_in_background()),
            end => {
                let closed = end.finish();
                self.shell.event_delivery()?.drop_closed_handlers();
                closed
            }
        }
    }

    /// Closes the client on a new thread. If the library cannot start a thread, this method ends the session, but does
    /// not free the other resources of the client.
    pub(crate) fn close_nowait(&self) -> Result<()> {
        self.close_in_background(drop).or_else(|_| self.start_close().map(drop))
    }

    /// Closes the client on a new thread, which then calls `hook` with the result. If the thread cannot start, the
    /// client stays open.
    pub(crate) fn close_in_background(&self, hook: impl FnOnce(Result<()>) + Send + 'static) -> Result<()> {
        self.shell.check_process()?;
        let (sender, receiver) = mpsc::sync_channel::<PendingClose>(1);
        spawn_in_background(move || {
            if let Ok(end) = receiver.recv() {
                hook(end.finish_in_background());
            }
            Ok(())
        })?;
        // The new thread waits until it receives this value, so `send` succeeds.
        sender.send(self.start_close()?).map_err(|_| Status::Internal.into())
    }

    /// Ends all operations of this client with an error. Also asks the engine to end the session, unless the library
    /// must first call handlers for losses.
    fn start_close(&self) -> Result<PendingClose> {
        self.shell.check_process()?;
        let shell = Arc::clone(&self.shell);
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(PendingClose::ByOther(shell));
        }
        let deadline = now() + CLOSE_LIMIT;
        let mut closing = SessionClose { shell, deadline, is_begun: false, call: None };
        if self.shell.has_loss_handlers() {
            // This call fails if the client has failed. `PendingClose` then reports the failure when it waits for the
            // end of the session.
            let _ = self.shell.update_engine(|engine, now| engine.begin_close(now));
        } else {
            closing.begin();
        }
        self.close_stepwise_multis(|_| true);
        Ok(PendingClose::Own(closing))
    }

    /// Closes the client after the program has dropped the last object that uses the client.
    fn close_on_drop(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            // If another thread is still closing the client, the drop of the last object does not wait for it.
            return Ok(());
        }
        if !self.ends_in_background {
            return self.close();
        }
        self.shell.event_delivery()?.discard_handlers();
        let end = self.start_close()?;
        spawn_in_background(|| end.finish_in_background())
    }

    pub(crate) fn add_stepwise_multi(&self, steps: &Arc<[LockTarget]>, notices: &Arc<Cancellation>) {
        let mut multis = self.stepwise_multis();
        multis.retain(|multi| multi.steps.strong_count() > 0);
        multis.push(StepwiseMulti { steps: Arc::downgrade(steps), notices: Arc::clone(notices) });
    }

    /// Closes the multi-locks that `which` selects. An acquire of a closed multi-lock then fails, because one of its
    /// member locks is no longer usable.
    pub(crate) fn close_stepwise_multis(&self, which: impl Fn(&[LockTarget]) -> bool) {
        let closed = |multi: &StepwiseMulti| {
            let steps = multi.steps.upgrade().filter(|steps| which(steps))?;
            multi.notices.close();
            Some(steps)
        };
        let closed: Vec<Arc<[LockTarget]>> = self.stepwise_multis().iter().filter_map(closed).collect();
        closed.iter().flat_map(|steps| steps.iter()).for_each(LockTarget::close_waits);
    }

    fn stepwise_multis(&self) -> MutexGuard<'_, Vec<StepwiseMulti>> {
        self.stepwise_multis.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The potentially blocking steps of closing a client.
enum PendingClose {
    Own(SessionClose),
    /// Another thread is closing the client.
    ByOther(Arc<Shell>),
}

/// Ends the session of one client. Dropping this value calls `begin`.
struct SessionClose {
    shell: Arc<Shell>,
    deadline: Time,
    is_begun: bool,
    call: Option<Result<PendingOp>>,
}

impl SessionClose {
    /// Asks the engine to end the session. Only the first call of this method has an effect.
    fn begin(&mut self) {
        if !std::mem::replace(&mut self.is_begun, true) {
            self.call = Some(PendingOp::start(&self.shell, None, |engine, now| engine.close(now, self.deadline)));
        }
    }

    /// Waits until the server has confirmed the end of the session.
    fn wait(&mut self) -> Result<()> {
        self.begin();
        self.call.take().map_or(Ok(()), |call| call.and_then(|call| call.wait()).map(drop))
    }
}

impl Drop for SessionClose {
    fn drop(&mut self) {
        self.begin();
    }
}

impl PendingClose {
    /// Finishes the close on a library thread.
    fn finish_in_background(self) -> Result<()> {
        if let Self::Own(closing) = &self {
            closing.shell.event_delivery()?.leave_to_program();
        }
        self.finish()
    }

    fn finish(self) -> Result<()> {
        match self {
            Self::ByOther(shell) => shell.wait_until_closed(CLOSE_LIMIT),
            Self::Own(mut closing) => {
                let (shell, deadline) = (Arc::clone(&closing.shell), closing.deadline);
                if !closing.is_begun {
                    // The handlers may use half of the time limit, and the server may use the other half.
                    shell.deliver_losses(now() + CLOSE_LIMIT / 2);
                    // A handler may have forked the process. In the forked child, this check fails, and the child does
                    // not continue.
                    shell.check_process()?;
                    closing.begin();
                }
                // No further events of this client can occur. The client delivers the last events before it waits for
                // the server, because this wait may take the whole remaining time.
                shell.deliver_remaining(deadline);
                shell.check_process()?;
                let closed = closing.wait();
                shell.stop(deadline);
                closed
            }
        }
    }
}

impl Drop for ClientInner {
    fn drop(&mut self) {
        if self.shell.check_process().is_err() {
            // In a forked child, threads of the parent may have left locks held or data incomplete. The child therefore
            // leaks the shell instead of dropping it.
            std::mem::forget(Arc::clone(&self.shell));
            return;
        }
        if let Err(error) = self.close_on_drop() {
            tracing::debug!("closing a client failed: {error}");
        }
    }
}
