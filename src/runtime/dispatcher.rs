//! The dispatcher thread: it calls the program's event handlers, in order, with no lock of ours held. One for all clients
//! of the process that have a handler; it starts with the first of them and ends with the last.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use super::fork::PerProcess;
use super::io::lock;
use super::signals;
use crate::config::Handler;
use crate::engine::Event;
use crate::error::{Error, Result, Status};

static THREAD: PerProcess<Mutex<Option<Running>>> = PerProcess::new(|| Mutex::new(None));

/// One client's way to its handler. Dropped, it waits until the handler has returned for the last time, unless it is
/// dropped by the handler itself.
pub(super) struct Outlet {
    handler: Handler,
    queue: Arc<Queue>,
}

struct Running {
    queue: Arc<Queue>,
    thread: JoinHandle<()>,
    clients: usize,
}

#[derive(Default)]
struct Queue {
    jobs: Mutex<VecDeque<Job>>,
    changed: Condvar,
}

enum Job {
    Deliver(Handler, Event),
    /// Tells somebody that all before it is delivered.
    Reached(Arc<Milestone>),
    Stop,
}

#[derive(Default)]
struct Milestone {
    reached: Mutex<bool>,
    changed: Condvar,
}

impl Outlet {
    /// A place on the dispatcher thread, which is started if this is the first.
    pub(super) fn open(handler: Handler) -> Result<Self> {
        let mut place = lock(THREAD.get());
        if place.is_none() {
            let queue = Arc::new(Queue::default());
            let jobs = Arc::clone(&queue);
            let thread =
                signals::blocked(|| thread::Builder::new().name("zkl-events".into()).spawn(move || jobs.run()))
                    .map_err(|cause| {
                        Error::new(Status::Internal, format!("the event thread can't be started: {cause}"))
                    })?;
            *place = Some(Running { queue, thread, clients: 0 });
        }
        let Some(running) = place.as_mut() else { return Err(Status::Internal.into()) };
        running.clients += 1;
        Ok(Self { handler, queue: Arc::clone(&running.queue) })
    }

    /// Leaves an event for the thread.
    pub(super) fn send(&self, event: Event) {
        self.queue.push(Job::Deliver(self.handler.clone(), event));
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        let mut place = lock(THREAD.get());
        let Some(running) = place.as_mut() else { return };
        running.clients -= 1;
        if running.clients > 0 {
            // Under the lock, so that it comes before the job that stops the thread.
            let milestone = self.queue.milestone();
            drop(place);
            return milestone.wait();
        }
        let Some(Running { thread, .. }) = place.take() else { return };
        self.queue.push(Job::Stop);
        drop(place);
        if !DISPATCHING.get() && thread.join().is_err() {
            tracing::error!("the event thread had panicked");
        }
    }
}

impl Queue {
    fn push(&self, job: Job) {
        lock(&self.jobs).push_back(job);
        self.changed.notify_all();
    }

    fn run(&self) {
        DISPATCHING.set(true);
        loop {
            match self.next() {
                Job::Deliver(handler, event) => deliver(&handler, &event),
                Job::Reached(milestone) => {
                    *lock(&milestone.reached) = true;
                    milestone.changed.notify_all();
                }
                Job::Stop => return,
            }
        }
    }

    fn next(&self) -> Job {
        let mut jobs = lock(&self.jobs);
        loop {
            if let Some(job) = jobs.pop_front() {
                return job;
            }
            jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn milestone(&self) -> Arc<Milestone> {
        let milestone = Arc::new(Milestone::default());
        self.push(Job::Reached(Arc::clone(&milestone)));
        milestone
    }
}

impl Milestone {
    fn wait(&self) {
        if DISPATCHING.get() {
            return;
        }
        let reached = lock(&self.reached);
        drop(self.changed.wait_while(reached, |reached| !*reached));
    }
}

thread_local! {
    /// Whether this is the dispatcher thread, which must not wait for itself.
    static DISPATCHING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

fn deliver(handler: &Handler, event: &Event) {
    if catch_unwind(AssertUnwindSafe(|| handler.call(event))).is_err() {
        tracing::error!(?event, "an event handler panicked");
    }
}
