//! A client: one ZooKeeper session, shared by any number of locks and threads.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tracing::Span;

use crate::call::Call;
use crate::config::{Config, EventHandler};
use crate::engine::{Answer, CLOSE_LIMIT, Engine, Metrics, OpId, Recipe};
use crate::error::{Error, Result, Status};
use crate::lock::{Lock, Part};
use crate::operation::{Entrance, Notices};
use crate::path;
use crate::recipe::{Mode, Task};
use crate::runtime::{Handlers, Pending, Shell, in_background, is_serving, now};
use crate::semaphore::Semaphore;
use crate::session::{ClientState, ConnectString};
use crate::span;
use crate::time::Time;

/// A client. Clones share one session, which ends when [`close`](Self::close) is called, or with the last clone and the
/// last lock made from it. All methods may be called from any thread.
#[derive(Clone)]
pub struct Client {
    pub(crate) session: Arc<OpenSession>,
}

/// A session that ends with its last user.
pub(crate) struct OpenSession {
    pub(crate) shell: Arc<Shell>,
    servers: String,
    closed: AtomicBool,
    ends_in_background: bool,
    /// The multi-locks that are acquired in several steps, of which one is here.
    multis: Mutex<Vec<Multi>>,
}

/// The steps of a multi-lock, for as long as anybody may take them, and where those who do are told of its end.
struct Multi {
    steps: Weak<[Entrance]>,
    notices: Arc<Notices>,
}

impl Client {
    /// Connects to one of the servers in a connect string like `host:2181,host:2181/chroot`, and waits for the session.
    ///
    /// Blocks for the connect timeout at most. Errors: INVALID names the piece of the string that is wrong, CONNECTION the
    /// servers tried and why each failed, AUTH says that the credentials were refused. SERVER names a chroot that does not exist
    /// ([`Config::set_create_chroot`]).
    pub fn connect(servers: &str, config: &Config) -> Result<Self> {
        Self::start_connect(servers, config)?.wait()
    }

    /// The same without waiting.
    pub fn start_connect(servers: &str, config: &Config) -> Result<Connecting> {
        let target = ConnectString::parse(servers)?;
        let (started, span) = (now(), span::connect(servers));
        let entropy = Box::new(|| uuid::Uuid::new_v4().as_u128());
        let mut engine = Engine::new(target, config.session(), started, entropy);
        engine.set_max_path_bytes(config.max_path_bytes());
        if config.waits_for_kazoo() {
            engine.wait_for_kazoo();
        }
        if config.creates_chroot() {
            engine.create_chroot();
        }
        let shell = Shell::start(engine, config)?;
        let session = OpenSession {
            shell,
            servers: servers.to_owned(),
            closed: AtomicBool::new(false),
            ends_in_background: config.ends_in_background(),
            multis: Mutex::default(),
        };
        let client = Self { session: Arc::new(session) };
        let deadline = started + config.connect_timeout();
        let call = client.session.shell.call(Some(deadline), |engine, now| engine.connect(now, deadline))?;
        Ok(Connecting { client, call, span })
    }

    /// A re-entrant lock on a path: Curator's `InterProcessMutex`. Nothing is sent yet.
    pub fn mutex(&self, path: &str) -> Result<Lock> {
        self.lock(path, Recipe::Queue(Mode::Mutex))
    }

    /// A lock on a path that anybody may release and nobody may enter twice: Curator's `InterProcessSemaphoreMutex`, a semaphore of
    /// one lease. Nothing is sent yet.
    pub fn semaphore_mutex(&self, path: &str) -> Result<Lock> {
        self.lock(path, Recipe::SemaphoreMutex)
    }

    /// The two halves, for reading and for writing, of a lock on a path: Curator's `InterProcessReadWriteLock`, as of 5.5. Each is
    /// re-entrant. Who writes may also read, and keep reading when he has stopped to write: no writer gets in between. Who
    /// reads may not write: DEADLOCK. Nothing is sent yet.
    pub fn rwlock(&self, path: &str) -> Result<RwLock> {
        let lock = |mode| self.lock(path, Recipe::Queue(mode));
        Ok(RwLock { read: lock(Mode::Read)?, write: lock(Mode::Write)? })
    }

    /// A semaphore on a path, with so many leases: Curator's `InterProcessSemaphoreV2`. That all its users agree on the
    /// number is up to them. Nothing is sent yet.
    ///
    /// Errors: INVALID for a maximum below 1.
    pub fn semaphore(&self, path: &str, max_leases: i32) -> Result<Semaphore> {
        path::validate(path)?;
        if max_leases < 1 {
            return Err(Error::invalid(format!("a semaphore of {max_leases} leases; expected 1 or more")));
        }
        Ok(Semaphore::new(Part::new(Arc::clone(&self.session), path, Recipe::Semaphore(max_leases))?))
    }

    /// A semaphore with as many leases as a count says (Curator's `SharedCount`), now and whenever it changes. Where the count has no
    /// node yet, it is made with `initial`. Who holds leases keeps them when it is lowered.
    ///
    /// Blocks for the session timeout at most. Errors: INVALID for a negative initial count; CONNECTION, DENIED, SERVER.
    pub fn counted_semaphore(&self, path: &str, count_path: &str, initial: i32) -> Result<Semaphore> {
        self.start_counted_semaphore(path, count_path, initial)?.wait()
    }

    /// The same without waiting.
    pub fn start_counted_semaphore(&self, path: &str, count_path: &str, initial: i32) -> Result<Call<Semaphore>> {
        path::validate(path)?;
        path::validate(count_path)?;
        validate_initial(initial)?;
        let (client, path, count) = (self.clone(), path.to_owned(), Box::<str>::from(count_path));
        self.errand(Task::SeedCount { path: count_path.to_owned(), value: initial }, move |_| {
            let recipe = Recipe::CountedSemaphore { count_path: count.clone(), initial };
            Ok(Semaphore::new(Part::new(Arc::clone(&client.session), &path, recipe)?))
        })
    }

    /// The same at once: the count is made, where it has no node yet, before whoever acquires is let in.
    pub fn counted_semaphore_at_once(&self, path: &str, count_path: &str, initial: i32) -> Result<Semaphore> {
        path::validate(path)?;
        path::validate(count_path)?;
        validate_initial(initial)?;
        // It goes on by itself; where it fails, an acquire makes the count.
        drop(self.errand(Task::SeedCount { path: count_path.to_owned(), value: initial }, |_| Ok(()))?);
        let recipe = Recipe::CountedSemaphore { count_path: count_path.into(), initial };
        Ok(Semaphore::new(Part::new(Arc::clone(&self.session), path, recipe)?))
    }

    /// Reads a count (Curator's `SharedCount`). Errors: SERVER where it has no node, INVALID where its node holds something else.
    pub fn start_get_count(&self, path: &str) -> Result<Call<i32>> {
        path::validate(path)?;
        self.errand(Task::GetCount { path: path.to_owned() }, |answer| match answer {
            Answer::Count(value) => Ok(value),
            _ => Err(Status::Internal.into()),
        })
    }

    /// Sets a count, and makes its node where there is none.
    pub fn start_set_count(&self, path: &str, value: i32) -> Result<Call<()>> {
        path::validate(path)?;
        self.errand(Task::SetCount { path: path.to_owned(), value }, |_| Ok(()))
    }

    /// Asks the owner of a lock's node, as participants show it, to give it up (Curator's `Revoker`). It is a request, which the
    /// owner hears of if he wants to ([`Lock::set_revocable`]); a node that is gone by now was given up.
    pub fn start_revoke(&self, node_path: &str) -> Result<Call<()>> {
        path::validate(node_path)?;
        self.errand(Task::Revoke { path: node_path.to_owned() }, |_| Ok(()))
    }

    /// Whether the hold with this fencing token is the holder's on this path, as the ensemble knows it: of a mutex, a read/write lock
    /// (also of one of several readers), a semaphore or a semaphore mutex, or one path of a multi-lock; made by zklock or by Curator.
    ///
    /// The answer was true at a moment since the call began, also where the server lags behind the others. By the time it is read it may be
    /// old: it does not take the place of the store's own comparison. [`Lock::is_held`] is the answer for an own hold that costs nothing.
    ///
    /// A waiter's token is not a holder's. A hold counts for as long as its node is there: also while its session is about to end. Leases of a
    /// semaphore count once whoever got them has left its inner mutex.
    ///
    /// Blocks for the session timeout at most. Errors: INVALID for a token below 1; CONNECTION, DENIED.
    pub fn fence_check(&self, path: &str, token: i64) -> Result<bool> {
        self.start_fence_check(path, token)?.wait()
    }

    /// The same without waiting. Dropped unfinished, it asks no more.
    pub fn start_fence_check(&self, path: &str, token: i64) -> Result<Call<bool>> {
        path::validate(path)?;
        if token < 1 {
            return Err(Error::invalid(format!("token {token}: fencing tokens are 1 or more")));
        }
        self.session.check_open()?;
        let pending = self.session.call(|engine, now| engine.fence_check(now, path, token))?;
        Ok(Call::new(vec![pending], |answers| match answers.into_iter().next() {
            Some(Answer::Holds(holds)) => Ok(holds),
            _ => Err(Status::Internal.into()),
        }))
    }

    /// [`start_get_count`](Self::start_get_count), and waits: for the session timeout at most.
    pub fn get_count(&self, path: &str) -> Result<i32> {
        self.start_get_count(path)?.wait()
    }

    /// [`start_set_count`](Self::start_set_count), and waits: for the session timeout at most.
    pub fn set_count(&self, path: &str, value: i32) -> Result<()> {
        self.start_set_count(path, value)?.wait()
    }

    /// [`start_revoke`](Self::start_revoke), and waits: for the session timeout at most.
    pub fn revoke(&self, node_path: &str) -> Result<()> {
        self.start_revoke(node_path)?.wait()
    }

    fn lock(&self, path: &str, recipe: Recipe) -> Result<Lock> {
        path::validate(path)?;
        Lock::new(Arc::clone(&self.session), path, recipe)
    }

    fn errand<T>(&self, task: Task, take: impl Fn(Answer) -> Result<T> + Send + 'static) -> Result<Call<T>> {
        self.session.check_open()?;
        let pending = self.session.call(|engine, now| engine.errand(now, task))?;
        Ok(Call::new(vec![pending], move |answers| take(answers.into_iter().next().unwrap_or(Answer::Done))))
    }

    /// How the session stands.
    pub fn state(&self) -> Result<ClientState> {
        self.session.shell.ask(|engine, _| engine.state())
    }

    /// The session's id; 0 while there is none.
    pub fn session_id(&self) -> Result<i64> {
        self.session.shell.ask(|engine, _| engine.session_id())
    }

    /// Calls `handler` with every change from now on, and with what still waits to be told, as [`Config::set_event_handler`] has it, beside
    /// the handler of the config: for what is given a client, and did not make it. It takes the place of the one that was set before; with
    /// `None` there is none any more.
    ///
    /// Errors: CLOSED.
    pub fn set_event_handler(&self, handler: Option<Box<EventHandler>>) -> Result<()> {
        let outlet = self.session.shell.outlet()?;
        self.session.check_open()?;
        drop(outlet.set_event_handler(handler.map(Arc::from))?);
        Ok(())
    }

    /// What this client has done so far, and how it stands: counters, histograms and gauges, of one moment. Does not block, asks no server,
    /// and goes on to work when the session was lost, or the client closed. [`Metrics::prometheus`] makes a text of it.
    ///
    /// Errors: FORKED.
    pub fn metrics(&self) -> Result<Metrics> {
        self.session.shell.ask(|engine, _| engine.metrics())
    }

    /// Calls the handlers that wait, one after the other, in the order in which things happened, on the calling thread; those that
    /// come to wait meanwhile are left for the next time. Gives how many were called: none where another thread is calling them now, or
    /// the calling one is, further up: that one goes on, and the descriptor is readable again when it leaves something.
    ///
    /// Errors: INVALID where the config did not say [`Config::set_poll_events`]; CLOSED.
    pub fn dispatch_events(&self) -> Result<usize> {
        let outlet = self.session.shell.outlet()?;
        self.session.check_open()?;
        outlet.check_polling()?;
        Ok(outlet.dispatch(usize::MAX))
    }

    /// A descriptor that is readable while handlers wait to be called, for `poll` and its likes. It is not to be read or closed, and is closed
    /// with the client, after it has become readable once more. epoll forgets what is closed: who waits while another thread closes the
    /// client is to wait for a duplicate.
    ///
    /// Errors: as [`dispatch_events`](Self::dispatch_events).
    pub fn event_fd(&self) -> Result<RawFd> {
        self.session.check_open()?;
        self.session.shell.outlet()?.fd()
    }

    /// The client's handlers, as they are given to the bell of [`Config::set_event_bell`].
    pub fn handlers(&self) -> Result<Handlers> {
        Ok(self.session.shell.outlet()?.handlers())
    }

    /// From now on none of the client's handlers is called, and its end waits for none: for a program that can't listen any more.
    pub fn silence(&self) -> Result<()> {
        self.session.shell.outlet()?.silence();
        Ok(())
    }

    /// The client, for those who do not want to keep it.
    pub fn downgrade(&self) -> WeakClient {
        WeakClient { session: Arc::downgrade(&self.session) }
    }

    /// Wakes all waiters with CLOSED and ends the session, and with it every hold. Waits for the server's confirmation, but
    /// two seconds at most, also where another thread closes it already. Later calls on the client and its locks give CLOSED.
    pub fn close(&self) -> Result<()> {
        self.session.close()
    }

    /// The same without waiting: the session is told to end before this returns, and a thread that ends with it waits for the rest,
    /// and calls `hook` then, with what `close` would have given.
    pub fn close_in_background(&self, hook: impl FnOnce(Result<()>) + Send + 'static) -> Result<()> {
        let end = self.session.start_close()?;
        in_background(move || {
            hook(end.finish());
            Ok(())
        })
    }
}

/// A count of leases may be lowered to any number, but a semaphore must not begin with less than none.
fn validate_initial(initial: i32) -> Result<()> {
    if initial < 0 {
        return Err(Error::invalid(format!("initial count of {initial} leases; expected 0 or more")));
    }
    Ok(())
}

/// A read/write lock.
#[derive(Clone)]
pub struct RwLock {
    /// Shared with other readers.
    pub read: Lock,
    /// Excludes everybody else.
    pub write: Lock,
}

/// A client that lives as long as others use it.
#[derive(Clone)]
pub struct WeakClient {
    session: Weak<OpenSession>,
}

impl WeakClient {
    /// Whether anybody still uses it. Unlike an upgrade, the question can't make the one who asks its last user.
    pub fn is_used(&self) -> bool {
        self.session.strong_count() > 0
    }

    /// The client, if anybody still uses it.
    pub fn upgrade(&self) -> Option<Client> {
        self.session.upgrade().map(|session| Client { session })
    }
}

/// A client that looks for its first server. Dropped, it gives up.
pub struct Connecting {
    client: Client,
    call: Pending,
    /// For those who trace.
    span: Span,
}

impl Connecting {
    /// Waits for the session.
    pub fn wait(self) -> Result<Client> {
        let answer = self.call.wait();
        span::ended(&self.span, &answer);
        answer.map(|_| self.client)
    }

    /// Waits `slice` at most; `None` if it is not decided by then. Not to be called again after it was.
    pub fn wait_for(&self, slice: Duration) -> Option<Result<Client>> {
        let answer = self.call.wait_for(slice)?;
        span::ended(&self.span, &answer);
        Some(answer.map(|_| self.client.clone()))
    }

    /// Whether it is decided: the next [`wait_for`](Self::wait_for) does not wait.
    pub fn is_over(&self) -> bool {
        self.call.is_over()
    }

    /// Has `hook` called once when it is decided, as [`Acquiring::on_done`](crate::Acquiring::on_done).
    pub fn on_done(&self, hook: impl FnOnce() + Send + 'static) -> Result<()> {
        self.call.on_done(Box::new(hook))
    }
}

impl OpenSession {
    pub(crate) fn check_open(&self) -> Result<()> {
        self.shell.check()?;
        if self.closed.load(Ordering::Acquire) { Err(Status::Closed.into()) } else { Ok(()) }
    }

    /// The servers, as the program named them.
    pub(crate) fn servers(&self) -> &str {
        &self.servers
    }

    /// Starts a call that ends after the session timeout at the latest.
    pub(crate) fn call(&self, submit: impl FnOnce(&mut Engine, Time) -> OpId) -> Result<Pending> {
        let mut deadline = Time::default();
        let pending = self.shell.call(None, |engine, now| {
            deadline = now + engine.session_timeout();
            submit(engine, now)
        })?;
        Ok(pending.until(deadline))
    }

    fn close(&self) -> Result<()> {
        match self.start_close()? {
            // What ends a client is waited for, and half of that is to be done by the thread that reads.
            end @ End::Ours { .. } if is_serving() => in_background(|| end.finish()),
            end => end.finish(),
        }
    }

    /// Wakes all waiters, and tells the session to end.
    fn start_close(&self) -> Result<End> {
        self.shell.check()?;
        let shell = Arc::clone(&self.shell);
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(End::Anothers(shell));
        }
        let patience = now() + CLOSE_LIMIT;
        let closing = self.shell.call(None, |engine, now| engine.close(now));
        self.close_multis(|_| true);
        Ok(End::Ours { shell, closing, patience })
    }

    /// Its last user has gone.
    fn end(&self) -> Result<()> {
        if !self.ends_in_background {
            return self.close();
        }
        if self.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.shell.outlet()?.silence();
        let end = self.start_close()?;
        in_background(|| end.finish())
    }

    pub(crate) fn add_multi(&self, steps: &Arc<[Entrance]>, notices: &Arc<Notices>) {
        let mut multis = self.multis();
        multis.retain(|multi| multi.steps.strong_count() > 0);
        multis.push(Multi { steps: Arc::downgrade(steps), notices: Arc::clone(notices) });
    }

    /// Wakes those that wait for other steps of such multi-locks: they can't get all of it any more.
    pub(crate) fn close_multis(&self, which: impl Fn(&[Entrance]) -> bool) {
        let closed = |multi: &Multi| {
            let steps = multi.steps.upgrade().filter(|steps| which(steps))?;
            multi.notices.close();
            Some(steps)
        };
        let closed: Vec<Arc<[Entrance]>> = self.multis().iter().filter_map(closed).collect();
        closed.iter().flat_map(|steps| steps.iter()).for_each(Entrance::close);
    }

    fn multis(&self) -> MutexGuard<'_, Vec<Multi>> {
        self.multis.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is left to do of a client's end. It may block.
enum End {
    Ours {
        shell: Arc<Shell>,
        closing: Result<Pending>,
        patience: Time,
    },
    /// Another thread is doing it.
    Anothers(Arc<Shell>),
}

impl End {
    fn finish(self) -> Result<()> {
        match self {
            Self::Anothers(shell) => shell.await_end(CLOSE_LIMIT),
            Self::Ours { shell, closing, patience } => {
                // Nothing more happens to the client now. So its last news need not wait for the server, which may take all the time there is.
                shell.tell_rest(patience);
                // A child that a handler has forked leaves the rest alone.
                shell.check()?;
                let closed = closing.and_then(|call| call.wait());
                shell.stop(patience);
                closed.map(drop)
            }
        }
    }
}

impl Drop for OpenSession {
    fn drop(&mut self) {
        if self.shell.check().is_err() {
            // A forked child: the parent's threads, locked or half done, are not ours to take apart.
            std::mem::forget(Arc::clone(&self.shell));
            return;
        }
        if let Err(error) = self.end() {
            tracing::debug!("closing: {error}");
        }
    }
}
