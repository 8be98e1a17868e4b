//! The I/O thread. One I/O thread serves all clients of the process. The I/O thread starts with the first client and
//! ends with the last client. The code in this file does not depend on engines or connections. Each client is an
//! [`IoClient`] with a token.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use mio::Token;
use zklock_core::error::{Result, Status};
use zklock_core::time::Time;
use zklock_process::{ForkEpoch, PerProcess, resource_error};

use super::clock;
use super::poller::{CheckedPoll, Poller, WAKER};
use super::sync::{JoinHandle, Monitor, Mutex, join_limit, lock, spawn};

static IO_THREAD: PerProcess<Mutex<Option<RunningThread>>> = PerProcess::new(|| Mutex::new(None));

thread_local! {
    /// The fork epoch of the process in which this thread drives I/O, or `None`. A thread drives I/O if it reads
    /// sockets for other threads. The I/O thread drives I/O, and so does a calling thread while it is the reader.
    static DRIVES_IO: Cell<Option<ForkEpoch>> = const { Cell::new(None) };
}

/// A client that the I/O thread serves. Each method returns the time at which the next timer of the client is due, and
/// whether the socket may have more data.
pub(super) trait IoClient: Send + Sync {
    /// Handles a socket event: data has arrived, there is room to send data, or an attempt to connect has ended.
    fn on_ready(&self) -> (Option<Time>, bool);

    /// Handles the timers that are due.
    fn on_timer(&self) -> (Option<Time>, bool);
}

/// The data that the I/O thread shares with its clients.
pub(super) struct IoThread {
    /// The current poller. If the poller stops working, the I/O thread replaces the poller.
    poller: Mutex<Arc<Poller>>,
    pending_changes: Mutex<PendingChanges>,
    progress: Monitor<Progress>,
}

/// The progress of the I/O thread.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The thread does not run yet. It cannot start while another thread holds the lock of the dynamic loader.
    #[default]
    Starting,
    Running,
    Ended,
}

#[derive(Default)]
struct PendingChanges {
    registered: Vec<(Token, Arc<dyn IoClient>)>,
    deregistered: Vec<Token>,
    /// Clients that the I/O thread must serve earlier than it has planned.
    rescheduled: Vec<Token>,
    stop: bool,
}

struct RunningThread {
    io: Arc<IoThread>,
    thread: JoinHandle<()>,
    clients: usize,
    last_token: usize,
}

impl IoThread {
    /// Registers a client with the I/O thread. The registration of the first client starts the thread.
    pub(super) fn register<C: IoClient + 'static>(make: impl FnOnce(Arc<Self>, Token) -> Arc<C>) -> Result<Arc<C>> {
        let mut place = lock(IO_THREAD.get());
        if place.is_none() {
            *place = Some(start().map_err(|cause| resource_error("starting the I/O thread", &cause))?);
        }
        let Some(running) = place.as_mut() else { return Err(Status::Internal.into()) };
        running.clients += 1;
        running.last_token += 1;
        let token = Token(running.last_token);
        let client = make(Arc::clone(&running.io), token);
        lock(&running.io.pending_changes).registered.push((token, Arc::clone(&client) as Arc<dyn IoClient>));
        running.io.wake();
        Ok(client)
    }

    /// Removes a client from the I/O thread. After the last client is removed, this method waits until the thread has
    /// ended.
    pub(super) fn deregister(&self, token: Token) {
        let mut place = lock(IO_THREAD.get());
        lock(&self.pending_changes).deregistered.push(token);
        let ending = match place.as_mut() {
            Some(running) => {
                running.clients -= 1;
                (running.clients == 0).then(|| place.take()).flatten()
            }
            None => None,
        };
        if ending.is_some() {
            lock(&self.pending_changes).stop = true;
        }
        self.wake();
        // The I/O thread that is ending may still run a hook that registers a new client. This thread therefore unlocks
        // the mutex before it waits. The new client starts a new I/O thread.
        drop(place);
        if let Some(RunningThread { io, thread, .. }) = ending
            && io.wait_until_ended()
            && thread.join().is_err()
        {
            tracing::error!("the I/O thread has panicked");
        }
    }

    /// Waits until the thread has ended, for a limited time. Returns false if the thread cannot run. It then ends as soon
    /// as it can.
    fn wait_until_ended(&self) -> bool {
        let progress = self.progress.lock();
        let limit = join_limit(*progress != Progress::Starting);
        *self.progress.wait_while(progress, limit, |progress| *progress != Progress::Ended) == Progress::Ended
    }

    /// Returns whether the thread has begun to run.
    pub(super) fn has_started(&self) -> bool {
        *self.progress.lock() != Progress::Starting
    }

    fn set_progress(&self, progress: Progress) {
        *self.progress.lock() = progress;
        self.progress.notify();
    }

    /// Notifies the thread that the next timeout of a client is earlier than before.
    pub(super) fn reschedule(&self, token: Token) {
        lock(&self.pending_changes).rescheduled.push(token);
        self.wake();
    }

    /// Returns the poller with which the I/O thread currently waits.
    pub(super) fn poller(&self) -> Arc<Poller> {
        Arc::clone(&lock(&self.poller))
    }

    fn wake(&self) {
        self.poller().wake();
    }
}

/// Returns whether the calling thread drives I/O, which means that the thread reads sockets for other threads. Such a
/// thread must not wait for an answer, because only this thread may be able to read the answer from the socket.
pub(crate) fn is_driving_io() -> bool {
    DRIVES_IO.try_with(Cell::get).unwrap_or_default() == Some(ForkEpoch::current())
}

/// Runs `work` on a thread that will read sockets for other threads afterwards. During `work`, `is_driving_io` returns
/// true on this thread.
pub(super) fn while_driving_io(work: impl FnOnce()) {
    let before = DRIVES_IO.replace(Some(ForkEpoch::current()));
    let outcome = catch_unwind(AssertUnwindSafe(work));
    DRIVES_IO.set(before);
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

/// Runs `work` on a new thread. Use this function for work that waits for the I/O thread. A thread that serves clients
/// must start such work with this function, because the work could block the thread. If the work fails, this function
/// logs the error.
pub(crate) fn spawn_in_background(work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let run = || {
        if let Err(error) = work() {
            tracing::debug!("work in the background failed: {error}");
        }
    };
    spawn("zkl-close", run).map(drop).map_err(|cause| resource_error("starting a thread", &cause))
}

fn start() -> io::Result<RunningThread> {
    let poll = CheckedPoll::new()?;
    let poller = Mutex::new(Arc::clone(poll.poller()));
    let io = Arc::new(IoThread { poller, pending_changes: Mutex::default(), progress: Monitor::default() });
    let looping = IoLoop {
        io: Arc::clone(&io),
        clients: HashMap::new(),
        timers: BTreeSet::new(),
        planned: HashMap::new(),
        unread: Vec::new(),
    };
    let of_thread = Arc::clone(&io);
    let run = move || {
        of_thread.set_progress(Progress::Running);
        looping.run(poll);
        of_thread.set_progress(Progress::Ended);
    };
    let thread = spawn("zkl-io", run)?;
    Ok(RunningThread { io, thread, clients: 0, last_token: WAKER.0 })
}

/// The data that only the I/O thread uses.
struct IoLoop {
    io: Arc<IoThread>,
    clients: HashMap<Token, Arc<dyn IoClient>>,
    timers: BTreeSet<(Time, Token)>,
    planned: HashMap<Token, Time>,
    /// Clients whose sockets still had unread data at the end of the last round.
    unread: Vec<Token>,
}

/// How long the I/O thread pauses after a panic, or while it has no poller. The pause limits how much processor time
/// the thread uses. The I/O thread continues to run the timers.
const PAUSE: Duration = Duration::from_millis(50);

impl IoLoop {
    fn run(mut self, mut poll: CheckedPoll) {
        DRIVES_IO.set(Some(ForkEpoch::current()));
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.turn(&mut poll))) {
                Ok(true) => return,
                Ok(false) => {}
                // If the work for one client panics, only this client fails, and the panic does not reach this code.
                // Any other panic can make the I/O thread miss events for any client, so the thread serves all clients
                // again.
                Err(_) => {
                    self.schedule_all();
                    thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Does one round of the I/O thread's work. Returns true if the I/O thread must end.
    fn turn(&mut self, poll: &mut CheckedPoll) -> bool {
        let can_wait = poll.is_ours() || self.replace_poll(poll);
        // The thread reads received data before it checks the timers. If the process was stopped for a long time, the
        // thread therefore handles the received answers before it handles timeouts. The poller reports each change of a
        // socket only once. If a socket has too much data for this round, the next round reads the rest.
        let mut ready = match if can_wait { poll.wait(self.poll_timeout()) } else { Ok(Vec::new()) } {
            Ok(ready) => ready,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => Vec::new(),
            Err(cause) => {
                tracing::error!("polling failed: {cause}");
                thread::sleep(PAUSE);
                Vec::new()
            }
        };
        ready.extend(std::mem::take(&mut self.unread));
        for token in ready {
            self.serve(token, |client| client.on_ready());
        }
        if self.apply_pending_changes() {
            return true;
        }
        self.run_timers();
        false
    }

    /// Replaces the poller after another part of the program has closed the descriptors of the poller. All connections
    /// that were registered with the old poller are lost. Returns false if the system refuses a new poller. In this
    /// case, the thread must not use the old descriptors, because they may already name other files.
    fn replace_poll(&self, poll: &mut CheckedPoll) -> bool {
        match CheckedPoll::new() {
            Ok(fresh) => {
                tracing::warn!(
                    "another part of the program has closed the descriptors of the I/O thread; the thread creates new descriptors"
                );
                *lock(&self.io.poller) = Arc::clone(fresh.poller());
                *poll = fresh;
                self.schedule_all();
                true
            }
            Err(cause) => {
                tracing::error!("the I/O thread has lost its descriptors and cannot create new descriptors: {cause}");
                thread::sleep(PAUSE);
                false
            }
        }
    }

    /// Makes the thread serve every client in the next round.
    fn schedule_all(&self) {
        lock(&self.io.pending_changes).rescheduled.extend(self.clients.keys());
        self.io.wake();
    }

    fn poll_timeout(&self) -> Option<Duration> {
        if !self.unread.is_empty() {
            return Some(Duration::ZERO);
        }
        let &(at, _) = self.timers.first()?;
        Some(at - clock::now())
    }

    /// Applies the changes that other threads have queued for this thread. Returns true if the thread must end.
    fn apply_pending_changes(&mut self) -> bool {
        let PendingChanges { registered, deregistered, rescheduled, stop } =
            std::mem::take(&mut *lock(&self.io.pending_changes));
        let mut touched = rescheduled;
        for (token, client) in registered {
            self.clients.insert(token, client);
            touched.push(token);
        }
        for token in deregistered {
            self.clients.remove(&token);
            self.plan(token, None);
        }
        for token in touched {
            self.serve(token, |client| client.on_timer());
        }
        stop
    }

    fn run_timers(&mut self) {
        let now = clock::now();
        while let Some(&(at, token)) = self.timers.first() {
            if at > now {
                return;
            }
            self.serve(token, |client| {
                let (next, more) = client.on_timer();
                // The thread must serve the other clients, even if a timer of this client is due again at once.
                (next.map(|next| next.max(now + Duration::from_nanos(1))), more)
            });
        }
    }

    fn serve(&mut self, token: Token, work: impl FnOnce(&dyn IoClient) -> (Option<Time>, bool)) {
        let Some(client) = self.clients.get(&token).map(Arc::clone) else { return self.plan(token, None) };
        let (next, more) = work(&*client);
        self.plan(token, next);
        self.unread.extend(more.then_some(token));
    }

    fn plan(&mut self, token: Token, at: Option<Time>) {
        let before = match at {
            Some(at) => self.planned.insert(token, at),
            None => self.planned.remove(&token),
        };
        if let Some(before) = before {
            self.timers.remove(&(before, token));
        }
        if let Some(at) = at {
            self.timers.insert((at, token));
        }
    }
}
