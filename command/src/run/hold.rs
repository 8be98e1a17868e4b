//! The lock of one call: how it is made from the arguments, acquired, observed and released. A semaphore has the same
//! methods as a lock.

use std::ffi::OsString;
use std::time::Duration;

use zklock::{
    Client, Error, Lock, LockState, Operation, Owner, Participant, Period, Result, RunStart, Semaphore, Status, Waiting,
};

use crate::cli::LockArguments;
use crate::exit::Failure;

/// The kind of lock that the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Mutex,
    Read,
    Write,
    Semaphore { max_leases: i32, quantity: i32 },
}

impl Mode {
    /// Returns the mode that the user has chosen.
    pub(crate) const fn of(arguments: &LockArguments) -> Self {
        match *arguments {
            LockArguments { shared: true, .. } => Self::Read,
            LockArguments { exclusive: true, .. } => Self::Write,
            LockArguments { semaphore: Some(max_leases), qty, .. } => Self::Semaphore { max_leases, quantity: qty },
            LockArguments { .. } => Self::Mutex,
        }
    }

    /// The value of `ZKLOCK_MODE`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Read => "read",
            Self::Write => "write",
            Self::Semaphore { .. } => "semaphore",
        }
    }

    /// The number of leases of a semaphore.
    pub(crate) const fn max_leases(self) -> Option<i32> {
        if let Self::Semaphore { max_leases, .. } = self { Some(max_leases) } else { None }
    }

    /// Returns whether only one participant can hold the lock.
    pub(crate) const fn is_exclusive(self) -> bool {
        matches!(self, Self::Mutex | Self::Write | Self::Semaphore { max_leases: 1, .. })
    }
}

/// Returns the paths of the locks.
pub(crate) fn paths(first: &OsString, lock: &LockArguments) -> std::result::Result<Vec<String>, Failure> {
    if lock.semaphore.is_some() && !lock.others.is_empty() {
        return Err(Failure::usage("--semaphore allows only one path"));
    }
    let text = |path: &OsString| {
        let refusal = || Failure::usage(format!("the path {} is not UTF-8 text", path.to_string_lossy()));
        path.to_str().map(str::to_owned).ok_or_else(refusal)
    };
    std::iter::once(first).chain(&lock.others).map(text).collect()
}

/// A lock or a semaphore that can be acquired.
#[derive(Debug)]
pub(crate) enum Target {
    Lock(Lock),
    Semaphore(Semaphore, i32),
}

/// An acquire in progress.
#[derive(Debug)]
pub(crate) struct Pending {
    acquiring: Operation<zklock::Hold>,
    members: Vec<Lock>,
}

/// A lock that was acquired.
#[derive(Debug)]
pub(crate) struct Hold {
    hold: zklock::Hold,
    /// The member locks of a multi-lock. The list is empty for other locks.
    members: Vec<Lock>,
}

impl Target {
    /// Makes the lock. Several paths become a multi-lock.
    pub(crate) fn new(client: &Client, mode: Mode, paths: &[String]) -> Result<Self> {
        let lock = |path: &String| match mode {
            Mode::Read => client.rwlock(path).map(|lock| lock.read),
            Mode::Write => client.rwlock(path).map(|lock| lock.write),
            Mode::Mutex | Mode::Semaphore { .. } => client.mutex(path),
        };
        match (mode, paths) {
            (Mode::Semaphore { max_leases, quantity }, [path]) => {
                Ok(Self::Semaphore(client.semaphore(path, max_leases)?, quantity))
            }
            (_, [path]) => Ok(Self::Lock(lock(path)?)),
            _ => {
                let members = paths.iter().map(lock).collect::<Result<Vec<_>>>()?;
                Ok(Self::Lock(Lock::multi(&members.iter().collect::<Vec<_>>())?))
            }
        }
    }

    /// Sets the data of the nodes.
    pub(crate) fn set_data(&self, data: &[u8]) -> Result<()> {
        match self {
            Self::Lock(lock) => lock.set_data(Some(data)),
            Self::Semaphore(semaphore, _) => semaphore.set_data(Some(data)),
        }
    }

    /// Sets the handler for requests to release the lock.
    pub(crate) fn set_revocable(&self, handler: impl Fn() + Send + Sync + 'static) -> Result<()> {
        let handler = Some(move |_: &str| handler());
        match self {
            Self::Lock(lock) => lock.set_revocable(handler),
            Self::Semaphore(semaphore, _) => semaphore.set_revocable(handler),
        }
    }

    /// Starts acquiring the lock. The acquire ends within `timeout`, or waits without a limit.
    pub(crate) fn start(&self, timeout: Option<Duration>, on_end: impl FnOnce() + Send + 'static) -> Result<Pending> {
        let (acquiring, members) = match self {
            Self::Lock(lock) => (lock.start_acquire(Owner::unique(), timeout)?, lock.members().to_vec()),
            Self::Semaphore(semaphore, quantity) => (semaphore.start_acquire(*quantity, timeout)?, Vec::new()),
        };
        acquiring.on_done(on_end)?;
        Ok(Pending { acquiring, members })
    }

    /// Returns what the acquire waits for. A multi-lock can wait for several reasons; the first one is enough for a
    /// person.
    pub(crate) fn waiting(&self) -> Option<Waiting> {
        let waiting = match self {
            Self::Lock(lock) => lock.waiting(),
            Self::Semaphore(semaphore, _) => semaphore.waiting(),
        };
        waiting.ok()?.into_iter().next()
    }

    /// Starts asking for the holders and waiters.
    pub(crate) fn participants(&self) -> Result<Operation<Vec<Participant>>> {
        match self {
            Self::Lock(lock) => lock.start_queue(),
            Self::Semaphore(semaphore, _) => semaphore.start_participants(),
        }
    }
}

impl Pending {
    /// Returns the hold if the acquire has succeeded, and `None` if the acquire still runs.
    pub(crate) fn poll(&self) -> Option<Result<Hold>> {
        let result = self.acquiring.wait_for(Duration::ZERO)?;
        Some(result.map(|hold| Hold { hold, members: self.members.clone() }))
    }
}

impl Hold {
    pub(crate) fn state(&self) -> LockState {
        // A closed client has no holds.
        self.hold.state().unwrap_or(LockState::Lost)
    }

    /// Returns how long the hold is certainly safe.
    pub(crate) fn remaining(&self) -> Duration {
        self.hold.remaining().unwrap_or(Duration::ZERO)
    }

    /// Returns the fencing token of each path, in the order of the paths.
    pub(crate) fn tokens(&self) -> Result<Vec<i64>> {
        if self.members.is_empty() {
            return Ok(vec![self.hold.token()]);
        }
        self.members.iter().map(|member| Ok(member.live_view(self.hold.owner())?.token)).collect()
    }

    /// Returns the nodes of the hold, in the order of the paths.
    pub(crate) fn nodes(&self) -> Result<Vec<String>> {
        if self.members.is_empty() {
            return self.hold.node_paths();
        }
        let nodes = self.members.iter().map(|member| member.node_paths_of(self.hold.owner()));
        Ok(nodes.collect::<Result<Vec<_>>>()?.concat())
    }

    /// Returns the first node of the hold.
    pub(crate) fn node(&self) -> Result<String> {
        self.nodes()?.into_iter().next().ok_or_else(|| Error::from(Status::Internal))
    }

    /// Starts to begin a run of the job of the first path.
    pub(crate) fn start_begin_run(&self, period: &Period, retry_failed: bool) -> Result<Operation<RunStart>> {
        self.hold.start_begin_run(period, retry_failed)
    }

    /// Starts releasing the lock.
    pub(crate) fn start_release(&self) -> Result<Operation<()>> {
        self.hold.start_release(true)
    }
}
