//! The I/O thread: one for all clients of the process. It starts with the first client and ends with the last.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use mio::Token;

use super::fork::{Epoch, PerProcess};
use super::poller::{Poller, WAKER, Waiting};
use super::shell::Shell;
use super::sync::{Builder, JoinHandle, Mutex, lock};
use super::{clock, resource, signals};
use crate::error::{Result, Status};
use crate::time::Time;

static THREAD: PerProcess<Mutex<Option<Running>>> = PerProcess::new(|| Mutex::new(None));

thread_local! {
    /// In which process this thread reads for others: the I/O thread, or one that does so in its place.
    static SERVING: Cell<Option<Epoch>> = const { Cell::new(None) };
}

/// What the thread and its clients share.
pub(super) struct Io {
    /// The thread makes another one if this is lost.
    poller: Mutex<Arc<Poller>>,
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
            *place = Some(start().map_err(|cause| resource::refused("starting the I/O thread", &cause))?);
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

    /// Where the thread waits now.
    pub(super) fn poller(&self) -> Arc<Poller> {
        Arc::clone(&lock(&self.poller))
    }

    fn wake(&self) {
        self.poller().wake();
    }
}

/// Whether the calling thread reads for others, and must not wait for what it would read.
pub(crate) fn is_serving() -> bool {
    SERVING.try_with(Cell::get).unwrap_or_default() == Some(Epoch::current())
}

/// Does what is to be done for others by a thread that goes on to read for them.
pub(super) fn serving(work: impl FnOnce()) {
    let before = SERVING.replace(Some(Epoch::current()));
    let outcome = catch_unwind(AssertUnwindSafe(work));
    SERVING.set(before);
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

/// Does what a thread that serves others must not, since it waits for that thread. What comes of it is logged.
pub(crate) fn in_background(work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let run = || {
        if let Err(error) = work() {
            tracing::debug!("in the background: {error}");
        }
    };
    let started = signals::blocked(|| Builder::new().name("zkl-close".into()).spawn(run));
    started.map(drop).map_err(|cause| resource::refused("starting a thread", &cause))
}

fn start() -> io::Result<Running> {
    let waiting = Waiting::new()?;
    let io = Arc::new(Io { poller: Mutex::new(Arc::clone(waiting.poller())), todo: Mutex::default() });
    let looping = Loop {
        io: Arc::clone(&io),
        clients: HashMap::new(),
        timers: BTreeSet::new(),
        planned: HashMap::new(),
        unfinished: Vec::new(),
        serving: None,
    };
    let thread = signals::blocked(|| Builder::new().name("zkl-io".into()).spawn(move || looping.run(waiting)))?;
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
    /// Whose turn it is.
    serving: Option<Token>,
}

/// How long the thread pauses when it has no poller: timers go on, and no processor time is wasted.
const WITHOUT_POLLER: Duration = Duration::from_millis(50);

impl Loop {
    fn run(mut self, mut waiting: Waiting) {
        SERVING.set(Some(Epoch::current()));
        // A panic can leave the work for one client half done: that client fails, and the others go on.
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.round(&mut waiting))) {
                Ok(true) => return,
                Ok(false) => {}
                Err(_) => drop(catch_unwind(AssertUnwindSafe(|| self.fail()))),
            }
        }
    }

    /// True if the thread is to end.
    fn round(&mut self, waiting: &mut Waiting) -> bool {
        let can_wait = waiting.is_ours() || self.replace(waiting);
        // What has come in is read before any timer is looked at: a process that stood still finds its answers there.
        // Nobody says twice that a socket has something; where there was too much at once, it is the next round's turn.
        let mut ready = match if can_wait { waiting.wait(self.pause()) } else { Ok(Vec::new()) } {
            Ok(ready) => ready,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => Vec::new(),
            Err(cause) => {
                tracing::error!("polling failed: {cause}");
                thread::sleep(WITHOUT_POLLER);
                Vec::new()
            }
        };
        ready.extend(std::mem::take(&mut self.unfinished));
        for token in ready {
            self.serve(token, Shell::ready);
        }
        if self.take_over() {
            return true;
        }
        self.run_timers();
        false
    }

    /// Another part of the program has closed the poller's descriptors. No client can have a connection there any more. False if there
    /// is no new poller: the old one may be a stranger's by now.
    fn replace(&self, waiting: &mut Waiting) -> bool {
        match Waiting::new() {
            Ok(fresh) => {
                tracing::warn!(
                    "another part of the program has closed the I/O thread's descriptors: it makes new ones"
                );
                *lock(&self.io.poller) = Arc::clone(fresh.poller());
                *waiting = fresh;
                self.look_at_all();
                true
            }
            Err(cause) => {
                tracing::error!("the I/O thread has lost its descriptors, and can't have new ones: {cause}");
                thread::sleep(WITHOUT_POLLER);
                false
            }
        }
    }

    /// Gives each client a turn in the next round.
    fn look_at_all(&self) {
        lock(&self.io.todo).changed.extend(self.clients.keys());
        self.io.wake();
    }

    /// The client whose turn it was has panicked. Other clients may have lost a turn of that round.
    fn fail(&mut self) {
        self.look_at_all();
        let Some(token) = self.serving.take() else { return thread::sleep(WITHOUT_POLLER) };
        self.plan(token, None);
        if let Some(shell) = self.clients.remove(&token) {
            shell.fail();
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
        self.serving = Some(token);
        let (next, more) = work(&shell);
        self.serving = None;
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

#[cfg(all(test, not(feature = "loom")))]
#[allow(clippy::unwrap_used, reason = "a test that fails is a test that fails")]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;
    use crate::config::Config;
    use crate::engine::{Engine, Event};
    use crate::session::{ClientState, ConnectString};

    fn client(servers: &str, config: &Config, entropy: fn() -> u128) -> Arc<Shell> {
        let target = ConnectString::parse(servers).unwrap();
        let engine = Engine::new(target, config.session(), clock::now(), Box::new(entropy));
        Shell::start(engine, config).unwrap()
    }

    fn panics_on_the_io_thread() -> u128 {
        assert_ne!(thread::current().name(), Some("zkl-io"), "on purpose");
        7
    }

    #[test]
    fn a_panic_on_the_io_thread_fails_its_client_and_no_other() {
        let heard: Arc<Mutex<Vec<Event>>> = Arc::default();
        let mut config = Config::new();
        let events = Arc::clone(&heard);
        config.set_event_handler(move |event| events.lock().unwrap().push(event.clone()));
        let end = clock::now() + Duration::from_secs(60);
        // The server refuses the connection, and the pause before the next attempt is drawn by lot.
        let failing = client("127.0.0.1:1", &config, panics_on_the_io_thread);
        // The thread may be quicker than the call.
        let call = failing.call(Some(end), |engine, now| engine.connect(now, end));
        let error = call.and_then(|call| call.wait()).unwrap_err();
        assert_eq!(error.status(), Status::Internal);
        assert!(error.message().contains("panic on the I/O thread"), "{error}");
        assert_eq!(failing.ask(|engine, _| engine.state()).unwrap_err().status(), Status::Internal);
        assert_eq!(failing.call(None, Engine::close).err().unwrap().status(), Status::Internal);
        failing.tell(|engine, now| engine.cancel_op(now, 1)).unwrap();

        // One that comes later has the thread.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let other = client(&address, &config, || 7);
        let _call = other.call(Some(end), |engine, now| engine.connect(now, end)).unwrap();
        let (mut connection, _) = listener.accept().unwrap();
        connection.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert!(connection.read(&mut [0; 64]).unwrap() > 0, "no handshake");
        for shell in [failing, other] {
            shell.stop(clock::now() + Duration::from_secs(10));
        }
        let closed = Event::Client { state: ClientState::Closed, previous: ClientState::Connecting };
        assert!(heard.lock().unwrap().contains(&closed));
    }
}
