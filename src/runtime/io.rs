//! The I/O thread: one for all clients of the process. It starts with the first client and ends with the last.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use mio::{Events, Poll, Registry, Token, Waker};

use super::fork::{Epoch, PerProcess};
use super::shell::Shell;
use super::sync::{Builder, JoinHandle, Mutex, lock};
use super::{clock, signals};
use crate::error::{Error, Result, Status};
use crate::time::Time;

/// The waker's token; clients have the numbers above.
const WAKER: Token = Token(0);

static THREAD: PerProcess<Mutex<Option<Running>>> = PerProcess::new(|| Mutex::new(None));

thread_local! {
    /// In which process this thread reads for others: the I/O thread, or one that does so in its place.
    static SERVING: Cell<Option<Epoch>> = const { Cell::new(None) };
}

/// What the thread and its clients share.
pub(super) struct Io {
    registry: Registry,
    waker: Waker,
    todo: Mutex<Todo>,
}

#[derive(Default)]
struct Todo {
    joined: Vec<(Token, Arc<Shell>)>,
    left: Vec<Token>,
    /// Clients whose next timeout has come nearer.
    changed: Vec<Token>,
    stop: bool,
}

struct Running {
    io: Arc<Io>,
    thread: JoinHandle<()>,
    clients: usize,
    last_token: usize,
}

impl Io {
    /// Gives a client a place on the thread, which is started if this is the first.
    pub(super) fn join(make: impl FnOnce(Arc<Self>, Token) -> Arc<Shell>) -> Result<Arc<Shell>> {
        let mut place = lock(THREAD.get());
        if place.is_none() {
            *place =
                Some(start().map_err(|cause| {
                    Error::new(Status::Internal, format!("the I/O thread can't be started: {cause}"))
                })?);
        }
        let Some(running) = place.as_mut() else { return Err(Status::Internal.into()) };
        running.clients += 1;
        running.last_token += 1;
        let token = Token(running.last_token);
        let shell = make(Arc::clone(&running.io), token);
        lock(&running.io.todo).joined.push((token, Arc::clone(&shell)));
        running.io.wake();
        Ok(shell)
    }

    /// Takes a client off the thread, and waits for the thread's end if this was the last.
    pub(super) fn leave(&self, token: Token) {
        let mut place = lock(THREAD.get());
        lock(&self.todo).left.push(token);
        let ending = match place.as_mut() {
            Some(running) => {
                running.clients -= 1;
                (running.clients == 0).then(|| place.take()).flatten()
            }
            None => None,
        };
        if ending.is_some() {
            lock(&self.todo).stop = true;
        }
        self.wake();
        // Kept locked: a client that is made now must not find the old thread, nor run beside it.
        if let Some(Running { thread, .. }) = ending
            && thread.join().is_err()
        {
            tracing::error!("the I/O thread had panicked");
        }
    }

    /// A client's next timeout has come nearer than the thread knows.
    pub(super) fn changed(&self, token: Token) {
        lock(&self.todo).changed.push(token);
        self.wake();
    }

    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    fn wake(&self) {
        if let Err(cause) = self.waker.wake() {
            tracing::error!("the I/O thread can't be woken: {cause}");
        }
    }
}

/// Whether the calling thread reads for others, and must not wait for what it would read.
pub(crate) fn is_serving() -> bool {
    SERVING.try_with(Cell::get).unwrap_or_default() == Some(Epoch::current())
}

/// Does what is to be done for others by a thread that goes on to read for them.
pub(super) fn serving(work: impl FnOnce()) {
    let before = SERVING.replace(Some(Epoch::current()));
    work();
    SERVING.set(before);
}

/// Does what a thread that serves others must not, since it waits for that thread. What comes of it is logged.
pub(crate) fn in_background(work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let run = || {
        if let Err(error) = work() {
            tracing::debug!("in the background: {error}");
        }
    };
    let started = signals::blocked(|| Builder::new().name("zkl-close".into()).spawn(run));
    started.map(drop).map_err(|cause| Error::new(Status::Internal, format!("no thread can be started: {cause}")))
}

fn start() -> io::Result<Running> {
    let poll = Poll::new()?;
    let io = Arc::new(Io {
        registry: poll.registry().try_clone()?,
        waker: Waker::new(poll.registry(), WAKER)?,
        todo: Mutex::default(),
    });
    let looping = Loop {
        io: Arc::clone(&io),
        clients: HashMap::new(),
        timers: BTreeSet::new(),
        planned: HashMap::new(),
        unfinished: Vec::new(),
    };
    let thread = signals::blocked(|| Builder::new().name("zkl-io".into()).spawn(move || looping.run(poll)))?;
    Ok(Running { io, thread, clients: 0, last_token: WAKER.0 })
}

/// The thread's own things.
struct Loop {
    io: Arc<Io>,
    clients: HashMap<Token, Arc<Shell>>,
    timers: BTreeSet<(Time, Token)>,
    planned: HashMap<Token, Time>,
    /// Those whose sockets were not read to the end.
    unfinished: Vec<Token>,
}

impl Loop {
    fn run(mut self, mut poll: Poll) {
        SERVING.set(Some(Epoch::current()));
        let mut events = Events::with_capacity(256);
        loop {
            match poll.poll(&mut events, self.pause()) {
                Ok(()) => {}
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => {
                    // Nothing else can be done with a broken poller; timers go on.
                    tracing::error!("polling failed: {cause}");
                    thread::sleep(Duration::from_millis(10));
                }
            }
            // What has come in is read before any timer is looked at: a process that stood still finds its answers there.
            // Nobody says twice that a socket has something; where there was too much at once, it is the next round's turn.
            let mut ready: Vec<Token> = events.iter().map(|event| event.token()).collect();
            ready.extend(std::mem::take(&mut self.unfinished));
            for token in ready {
                self.serve(token, Shell::ready);
            }
            if self.take_over() {
                return;
            }
            self.run_timers();
        }
    }

    fn pause(&self) -> Option<Duration> {
        if !self.unfinished.is_empty() {
            return Some(Duration::ZERO);
        }
        let &(at, _) = self.timers.first()?;
        Some(at - clock::now())
    }

    /// Takes over what was left for the thread; true if it is to end.
    fn take_over(&mut self) -> bool {
        let Todo { joined, left, changed, stop } = std::mem::take(&mut *lock(&self.io.todo));
        let mut touched = changed;
        for (token, shell) in joined {
            self.clients.insert(token, shell);
            touched.push(token);
        }
        for token in left {
            self.clients.remove(&token);
            self.plan(token, None);
        }
        for token in touched {
            self.serve(token, Shell::tick);
        }
        stop
    }

    fn run_timers(&mut self) {
        let now = clock::now();
        while let Some(&(at, token)) = self.timers.first() {
            if at > now {
                return;
            }
            self.serve(token, |shell| {
                let (next, more) = shell.tick();
                // A timer that is due again at once would keep others from their turn.
                (next.map(|next| next.max(now + Duration::from_nanos(1))), more)
            });
        }
    }

    fn serve(&mut self, token: Token, work: impl FnOnce(&Shell) -> (Option<Time>, bool)) {
        let Some(shell) = self.clients.get(&token).map(Arc::clone) else { return self.plan(token, None) };
        let (next, more) = work(&shell);
        self.plan(token, next);
        self.unfinished.extend(more.then_some(token));
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
