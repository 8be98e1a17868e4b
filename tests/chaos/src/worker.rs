//! The Rust version of `programs/worker.c`.
//!
//! With the `ignores_lease` option, it ignores losses and relies on every hold until it releases the lock, like a
//! program whose lock has no lease.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::Args;
use fastrand::Rng;
use zklock::{Client, Config, Event, Lock, LockState, Semaphore};

use crate::checker::FINAL_LIMIT_MS;
use crate::clock;
use crate::trace::{Exclusion, Nanos};

const LIMITS: [i64; 6] = [0, 100, 500, 2000, 5000, -1];

/// The command line arguments.
#[derive(Debug, Args)]
pub struct Arguments {
    servers: String,
    store: String,
    locks: String,
    seed: u64,
    session_timeout_ms: u64,
    trace: PathBuf,
    threads: u32,
    options: PathBuf,
    #[arg(long)]
    ignores_lease: bool,
}

/// Runs until the input contains the command to end.
pub fn run(arguments: &Arguments) -> zklock::Result<()> {
    let trace = OpenOptions::new().append(true).create(true).open(&arguments.trace).map(Trace).map(Arc::new);
    let trace = trace.unwrap_or_else(|error| panic!("{}: {error}", arguments.trace.display()));
    let config = Config::new()
        .session_timeout(Duration::from_millis(arguments.session_timeout_ms))
        .connect_timeout(Duration::from_secs(60));
    let of_handler = Arc::clone(&trace);
    let mut config = config.on_event(move |event| on_event(&of_handler, event));
    trace.note(clock::now(), 0, &format!("begin {} 1", arguments.session_timeout_ms));
    config.load(&arguments.options)?;
    let client = Client::connect(&arguments.servers, &config)?;
    drop(config);
    let mut choices = Vec::new();
    for lock in arguments.locks.split(',') {
        let (kind, path) = lock.split_once(':').expect("a kind and a path");
        add_lock_choices(&client, kind, path, &mut choices)?;
    }
    report("ready");
    let is_final = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 1..=arguments.threads {
            let worker = Worker {
                number,
                dice: Rng::with_seed(arguments.seed * 1000 + u64::from(number)),
                store: TcpStream::connect(&arguments.store).expect("the store is there"),
                client: &client,
                choices: &choices,
                trace: &trace,
                ignores_lease: arguments.ignores_lease,
            };
            let is_final = &is_final;
            thread::Builder::new().spawn_scoped(scope, move || worker.work(is_final)).expect("start a thread");
        }
        expect("final", &client);
        is_final.store(true, Ordering::SeqCst);
    });
    report("idle");
    expect("end", &client);
    drop(choices);
    client.close()?;
    drop(client);
    trace.note(clock::now(), 0, &format!("end {}", library_threads()));
    Ok(())
}

/// A lock or semaphore, and how to acquire it.
struct LockChoice {
    path: String,
    stance: Exclusion,
    handle: Handle,
    /// Whether a new lock handle may be used as well.
    allows_new_handle: bool,
}

enum Handle {
    Lock(Lock),
    Semaphore(Semaphore),
}

enum Hold<'a> {
    Shared(&'a Lock),
    Own(Lock),
    /// A hold of a lock or of a lease, which any thread may release.
    Exact(zklock::Hold),
}

struct Worker<'a> {
    number: u32,
    dice: Rng,
    store: TcpStream,
    client: &'a Client,
    choices: &'a [LockChoice],
    trace: &'a Trace,
    ignores_lease: bool,
}

impl<'a> Worker<'a> {
    fn work(mut self, is_final: &AtomicBool) {
        while !is_final.load(Ordering::SeqCst) {
            let choice = &self.choices[self.dice.usize(..self.choices.len())];
            let limit_ms = LIMITS[self.dice.usize(..LIMITS.len())];
            if let Some((hold, token)) = self.acquire(choice, limit_ms) {
                self.use_hold(choice, &hold, token);
                self.release_hold(hold, token);
            }
            self.sleep_ms(20);
        }
        for index in 0..self.choices.len() {
            let choice = &self.choices[(index + self.number as usize) % self.choices.len()];
            if let Some((hold, token)) = self.acquire(choice, FINAL_LIMIT_MS) {
                self.check_hold(&hold, token);
                self.write(choice, token);
                self.release_hold(hold, token);
            }
        }
    }

    fn acquire(&mut self, choice: &'a LockChoice, limit_ms: i64) -> Option<(Hold<'a>, i64)> {
        let limit = u64::try_from(limit_ms).ok().map(Duration::from_millis);
        let uses_new_handle = choice.allows_new_handle && self.dice.u8(..8) == 0;
        let fresh = uses_new_handle.then(|| self.client.mutex(&choice.path).expect("another handle"));
        self.note(&format!("call {} {} {limit_ms}", choice.path, choice.stance));
        let got = match (&choice.handle, fresh) {
            (_, Some(lock)) => lock.acquire(limit).map(|()| Hold::Own(lock)),
            (Handle::Lock(lock), None) if self.dice.bool() => lock.hold(limit).map(Hold::Exact),
            (Handle::Lock(lock), None) => lock.acquire(limit).map(|()| Hold::Shared(lock)),
            (Handle::Semaphore(semaphore), None) => semaphore.acquire(1, limit).map(Hold::Exact),
        };
        let returned = clock::now();
        let named = got.and_then(|hold| match hold.token() {
            Ok(token) => Ok((hold, token)),
            // The hold was lost before its token could be read.
            Err(error) => hold.release().and(Err(error)),
        });
        let outcome = match &named {
            Ok((_, token)) => format!("got {} {token}", choice.path),
            Err(error) => format!("failed {} {}", choice.path, error.status().number()),
        };
        self.trace.note(returned, self.number, &outcome);
        named.ok()
    }

    fn use_hold(&mut self, choice: &LockChoice, hold: &Hold<'_>, token: i64) {
        let longest = if self.dice.u8(..12) == 0 { 400 } else { 15 };
        for _ in 0..=self.dice.u8(..6) {
            // Some programs continue although they must not. The store rejects their writes.
            let is_careless = self.dice.bool();
            let is_held = self.check_hold(hold, token);
            if self.dice.u8(..4) == 0 {
                self.sleep_ms(30);
            }
            if is_held || is_careless {
                self.write(choice, token);
            }
            self.sleep_ms(longest);
        }
        self.check_hold(hold, token);
    }

    fn check_hold(&self, hold: &Hold<'_>, token: i64) -> bool {
        let at = clock::now();
        let is_held = self.ignores_lease || hold.is_held();
        let left_at = clock::now();
        let left_ms = hold.left().as_millis();
        let state = hold.state();
        let done = clock::now();
        let line = format!("look {token} {} {left_at} {left_ms} {} {done}", u8::from(is_held), state as i32);
        self.trace.note(at, self.number, &line);
        is_held
    }

    /// Writes to the store. For a multi-lock, writes once for each of its paths.
    fn write(&mut self, choice: &LockChoice, token: i64) {
        if choice.stance != Exclusion::Exclusive {
            return;
        }
        for path in choice.path.split('+') {
            let asked = self.store.write_all(format!("{path} {token}\n").as_bytes());
            if asked.and_then(|()| self.store.read_exact(&mut [0])).is_err() {
                process::exit(0);
            }
        }
    }

    fn release_hold(&mut self, hold: Hold<'_>, token: i64) {
        let how = self.dice.u8(..4);
        let waits = how > 1 || (how == 1 && !matches!(hold, Hold::Own(_)));
        self.note(&format!("leave {token} {}", u8::from(waits)));
        let result = match (&hold, how) {
            (Hold::Own(lock), 1) => lock.close(),
            _ if waits => hold.release(),
            _ => hold.release_nowait(),
        };
        let status = result.err().map_or(0, |error| error.status().number());
        self.note(&format!("left {token} {status}"));
    }

    fn note(&self, what: &str) {
        self.trace.note(clock::now(), self.number, what);
    }

    fn sleep_ms(&mut self, longest: u64) {
        thread::sleep(Duration::from_millis(self.dice.u64(..longest)));
    }
}

impl Hold<'_> {
    fn token(&self) -> zklock::Result<i64> {
        match self {
            Self::Shared(lock) => lock.fencing_token(),
            Self::Own(lock) => lock.fencing_token(),
            Self::Exact(hold) => Ok(hold.token()),
        }
    }

    fn is_held(&self) -> bool {
        match self {
            Self::Shared(lock) => lock.is_held(),
            Self::Own(lock) => lock.is_held(),
            Self::Exact(hold) => hold.is_held(),
        }
        .unwrap_or_default()
    }

    fn left(&self) -> Duration {
        match self {
            Self::Shared(lock) => lock.remaining(),
            Self::Own(lock) => lock.remaining(),
            Self::Exact(hold) => hold.remaining(),
        }
        .unwrap_or_default()
    }

    fn state(&self) -> LockState {
        match self {
            Self::Shared(lock) => lock.state(),
            Self::Own(lock) => lock.state(),
            Self::Exact(hold) => hold.state(),
        }
        .unwrap_or(LockState::Free)
    }

    fn release(&self) -> zklock::Result<()> {
        match self {
            Self::Shared(lock) => lock.release(),
            Self::Own(lock) => lock.release(),
            Self::Exact(hold) => hold.release(),
        }
    }

    fn release_nowait(&self) -> zklock::Result<()> {
        match self {
            Self::Shared(lock) => lock.release_nowait(),
            Self::Own(lock) => lock.release_nowait(),
            Self::Exact(hold) => hold.release_nowait(),
        }
    }
}

struct Trace(File);

impl Trace {
    /// Writes the line in a single system call, so that only the last line of a trace can be incomplete.
    fn note(&self, at: Nanos, thread: u32, what: &str) {
        (&self.0).write_all(format!("{at} {thread} {what}\n").as_bytes()).expect("write to the trace");
    }
}

fn on_event(trace: &Trace, event: &Event) {
    let line = match event {
        Event::Client { state, previous, .. } => format!("client {} {}", *previous as i32, *state as i32),
        Event::Lock { path, token, state, previous, .. } => {
            format!("lock {path} {token} {} {}", *previous as i32, *state as i32)
        }
        _ => return,
    };
    trace.note(clock::now(), 0, &line);
}

fn add_lock_choices(client: &Client, kind: &str, path: &str, choices: &mut Vec<LockChoice>) -> zklock::Result<()> {
    let allows_new_handle = kind == "mutex";
    let mut add = |exclusion, handle| {
        choices.push(LockChoice { path: path.to_owned(), stance: exclusion, handle, allows_new_handle });
    };
    match kind {
        "mutex" => add(Exclusion::Exclusive, Handle::Lock(client.mutex(path)?)),
        "rw" => {
            let both = client.rwlock(path)?;
            add(Exclusion::Shared, Handle::Lock(both.read));
            add(Exclusion::Exclusive, Handle::Lock(both.write));
        }
        "multi" => {
            let locks: Vec<Lock> = path.split('+').map(|path| client.mutex(path)).collect::<Result<_, _>>()?;
            let locks: Vec<&Lock> = locks.iter().collect();
            add(Exclusion::Exclusive, Handle::Lock(Lock::multi(&locks)?));
        }
        _ => {
            let most = kind.strip_prefix("semaphore").and_then(|most| most.parse().ok());
            let most: i32 = most.unwrap_or_else(|| panic!("no kind of lock: {kind}"));
            let semaphore = client.semaphore(path, most)?;
            add(Exclusion::Leases(most.unsigned_abs() as usize), Handle::Semaphore(semaphore));
        }
    }
    Ok(())
}

fn library_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc");
    let names = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("zkl-")).count()
}

fn report(word: &str) {
    println!("{word}");
}

/// Waits for a command. In the meantime, replaces the server list of the client when a command requires it.
fn expect(word: &str, client: &Client) {
    loop {
        let mut line = String::new();
        let read = io::stdin().lock().read_line(&mut line);
        match line.trim().split_once(' ') {
            Some(("servers", list)) => client.set_servers(list).expect("a list of servers"),
            _ if read.is_err() || line.trim() != word => process::exit(0),
            _ => return,
        }
    }
}
