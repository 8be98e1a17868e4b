//! The same as `programs/worker.c`, in Rust.
//!
//! It can be told to believe: then it takes what it once got for held until it gives it up, as programs do whose lock has no lease.

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
use zklock::{Client, Config, Event, Leases, Lock, LockState, Semaphore};

use crate::clock;
use crate::judge::PATIENT_MS;
use crate::trace::{Nanos, Stance};

const LIMITS: [i64; 6] = [0, 100, 500, 2000, 5000, -1];

/// What it is told on its command line.
#[derive(Debug, Args)]
pub struct Arguments {
    servers: String,
    store: String,
    locks: String,
    seed: u64,
    session_timeout_ms: u64,
    trace: PathBuf,
    threads: u32,
    #[arg(long)]
    believes: bool,
}

/// Runs until its input says that it is to end.
pub fn run(arguments: &Arguments) -> zklock::Result<()> {
    let trace = OpenOptions::new().append(true).create(true).open(&arguments.trace).map(Trace).map(Arc::new);
    let trace = trace.unwrap_or_else(|error| panic!("{}: {error}", arguments.trace.display()));
    let mut config = Config::new();
    config.set_session_timeout(Duration::from_millis(arguments.session_timeout_ms))?;
    config.set_connect_timeout(Duration::from_secs(60))?;
    let of_handler = Arc::clone(&trace);
    config.set_event_handler(move |event| told(&of_handler, event));
    trace.note(clock::now(), 0, &format!("begin {} 1", arguments.session_timeout_ms));
    let client = Client::connect(&arguments.servers, &config)?;
    drop(config);
    let mut ways = Vec::new();
    for lock in arguments.locks.split(',') {
        let (kind, path) = lock.split_once(':').expect("a kind and a path");
        add_ways(&client, kind, path, &mut ways)?;
    }
    say("ready");
    let is_final = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 1..=arguments.threads {
            let worker = Worker {
                number,
                dice: Rng::with_seed(arguments.seed * 1000 + u64::from(number)),
                store: TcpStream::connect(&arguments.store).expect("the store is there"),
                client: &client,
                ways: &ways,
                trace: &trace,
                believes: arguments.believes,
            };
            let is_final = &is_final;
            thread::Builder::new().spawn_scoped(scope, move || worker.work(is_final)).expect("start a thread");
        }
        expect("final");
        is_final.store(true, Ordering::SeqCst);
    });
    say("idle");
    expect("end");
    drop(ways);
    client.close()?;
    drop(client);
    trace.note(clock::now(), 0, &format!("end {}", library_threads()));
    Ok(())
}

/// One way to take something.
struct Way {
    path: String,
    stance: Stance,
    what: Takeable,
    /// It may be taken by a handle of its own as well.
    may_be_fresh: bool,
}

enum Takeable {
    Lock(Lock),
    Semaphore(Semaphore),
}

enum Hold<'a> {
    Shared(&'a Lock),
    Own(Lock),
    Leases(Leases),
}

struct Worker<'a> {
    number: u32,
    dice: Rng,
    store: TcpStream,
    client: &'a Client,
    ways: &'a [Way],
    trace: &'a Trace,
    believes: bool,
}

impl<'a> Worker<'a> {
    fn work(mut self, is_final: &AtomicBool) {
        while !is_final.load(Ordering::SeqCst) {
            let way = &self.ways[self.dice.usize(..self.ways.len())];
            let limit_ms = LIMITS[self.dice.usize(..LIMITS.len())];
            if let Some((hold, token)) = self.acquire(way, limit_ms) {
                self.hold_for_a_while(way, &hold, token);
                self.leave(hold, token);
            }
            self.sleep_ms(20);
        }
        for index in 0..self.ways.len() {
            let way = &self.ways[(index + self.number as usize) % self.ways.len()];
            if let Some((hold, token)) = self.acquire(way, PATIENT_MS) {
                self.look(&hold, token);
                self.write(way, token);
                self.leave(hold, token);
            }
        }
    }

    fn acquire(&mut self, way: &'a Way, limit_ms: i64) -> Option<(Hold<'a>, i64)> {
        let limit = u64::try_from(limit_ms).ok().map(Duration::from_millis);
        let is_fresh = way.may_be_fresh && self.dice.u8(..8) == 0;
        let fresh = is_fresh.then(|| self.client.mutex(&way.path).expect("another handle"));
        self.note(&format!("call {} {} {limit_ms}", way.path, way.stance));
        let got = match (&way.what, fresh) {
            (_, Some(lock)) => lock.acquire(limit).map(|()| Hold::Own(lock)),
            (Takeable::Lock(lock), None) => lock.acquire(limit).map(|()| Hold::Shared(lock)),
            (Takeable::Semaphore(semaphore), None) => semaphore.acquire(1, limit).map(Hold::Leases),
        };
        let returned = clock::now();
        let named = got.and_then(|hold| match hold.token() {
            Ok(token) => Ok((hold, token)),
            // Lost before it could be named.
            Err(error) => hold.release().and(Err(error)),
        });
        let outcome = match &named {
            Ok((_, token)) => format!("got {} {token}", way.path),
            Err(error) => format!("failed {} {}", way.path, error.status().number()),
        };
        self.trace.note(returned, self.number, &outcome);
        named.ok()
    }

    fn hold_for_a_while(&mut self, way: &Way, hold: &Hold<'_>, token: i64) {
        let longest = if self.dice.u8(..12) == 0 { 400 } else { 15 };
        for _ in 0..=self.dice.u8(..6) {
            // Some go on when they should not; the store is there for them.
            let is_careless = self.dice.bool();
            let is_held = self.look(hold, token);
            if self.dice.u8(..4) == 0 {
                self.sleep_ms(30);
            }
            if is_held || is_careless {
                self.write(way, token);
            }
            self.sleep_ms(longest);
        }
        self.look(hold, token);
    }

    fn look(&self, hold: &Hold<'_>, token: i64) -> bool {
        let at = clock::now();
        let is_held = self.believes || hold.is_held();
        let left_at = clock::now();
        let left_ms = hold.left().as_millis();
        let state = hold.state();
        let done = clock::now();
        let line = format!("look {token} {} {left_at} {left_ms} {} {done}", u8::from(is_held), state as i32);
        self.trace.note(at, self.number, &line);
        is_held
    }

    /// What is guarded by several mutexes as one is written for each.
    fn write(&mut self, way: &Way, token: i64) {
        if way.stance != Stance::Exclusive {
            return;
        }
        for path in way.path.split('+') {
            let asked = self.store.write_all(format!("{path} {token}\n").as_bytes());
            if asked.and_then(|()| self.store.read_exact(&mut [0])).is_err() {
                process::exit(0);
            }
        }
    }

    fn leave(&mut self, hold: Hold<'_>, token: i64) {
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
            Self::Leases(leases) => leases.fencing_token(),
        }
    }

    fn is_held(&self) -> bool {
        match self {
            Self::Shared(lock) => lock.is_held(),
            Self::Own(lock) => lock.is_held(),
            Self::Leases(leases) => leases.is_held(),
        }
        .unwrap_or_default()
    }

    fn left(&self) -> Duration {
        match self {
            Self::Shared(lock) => lock.remaining(),
            Self::Own(lock) => lock.remaining(),
            Self::Leases(leases) => leases.remaining(),
        }
        .unwrap_or_default()
    }

    fn state(&self) -> LockState {
        match self {
            Self::Shared(lock) => lock.state(),
            Self::Own(lock) => lock.state(),
            Self::Leases(leases) => leases.state(),
        }
        .unwrap_or(LockState::Free)
    }

    fn release(&self) -> zklock::Result<()> {
        match self {
            Self::Shared(lock) => lock.release(),
            Self::Own(lock) => lock.release(),
            Self::Leases(leases) => leases.release(),
        }
    }

    fn release_nowait(&self) -> zklock::Result<()> {
        match self {
            Self::Shared(lock) => lock.release_nowait(),
            Self::Own(lock) => lock.release_nowait(),
            Self::Leases(leases) => leases.start_release(false).map(drop),
        }
    }
}

struct Trace(File);

impl Trace {
    /// One write: a line is whole, or the last.
    fn note(&self, at: Nanos, thread: u32, what: &str) {
        (&self.0).write_all(format!("{at} {thread} {what}\n").as_bytes()).expect("write to the trace");
    }
}

fn told(trace: &Trace, event: &Event) {
    let line = match event {
        Event::Client { state, previous } => format!("client {} {}", *previous as i32, *state as i32),
        Event::Lock { path, token, state, previous, .. } => {
            format!("lock {path} {token} {} {}", *previous as i32, *state as i32)
        }
    };
    trace.note(clock::now(), 0, &line);
}

fn add_ways(client: &Client, kind: &str, path: &str, ways: &mut Vec<Way>) -> zklock::Result<()> {
    let may_be_fresh = kind == "mutex";
    let mut add = |stance, what| ways.push(Way { path: path.to_owned(), stance, what, may_be_fresh });
    match kind {
        "mutex" => add(Stance::Exclusive, Takeable::Lock(client.mutex(path)?)),
        "rw" => {
            let both = client.rwlock(path)?;
            add(Stance::Shared, Takeable::Lock(both.read));
            add(Stance::Exclusive, Takeable::Lock(both.write));
        }
        "multi" => {
            let locks: Vec<Lock> = path.split('+').map(|path| client.mutex(path)).collect::<Result<_, _>>()?;
            let locks: Vec<&Lock> = locks.iter().collect();
            add(Stance::Exclusive, Takeable::Lock(Lock::multi(&locks)?));
        }
        _ => {
            let most = kind.strip_prefix("semaphore").and_then(|most| most.parse().ok());
            let most: i32 = most.unwrap_or_else(|| panic!("no kind of lock: {kind}"));
            let semaphore = client.semaphore(path, most)?;
            add(Stance::Leases(most.unsigned_abs() as usize), Takeable::Semaphore(semaphore));
        }
    }
    Ok(())
}

fn library_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc");
    let names = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("zkl-")).count()
}

fn say(word: &str) {
    println!("{word}");
}

fn expect(word: &str) {
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line);
    if read.is_err() || line.trim() != word {
        process::exit(0);
    }
}
