//! The programs that take part: built, started with wires to the servers and a clock of their own, stopped, woken and killed.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use zklock_rig::{Direction, Proxy, Verdict, pause, resume};

use crate::clock;
use crate::story::{Absence, End, Process};
use crate::trace::{self, Nanos};

/// What a program is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// On the header and the shared library.
    C,
    /// On the package in `target/venv`.
    Python,
    /// On the crate.
    Rust,
}

/// What a program is started with.
pub struct Setup<'a> {
    /// Where traces go.
    pub directory: &'a Path,
    /// What the servers are called.
    pub servers: &'a [String],
    /// Whether the program's connections go through proxies.
    pub is_wired: bool,
    /// Where the store is.
    pub store: &'a str,
    /// What is taken: see `programs/worker.c`.
    pub locks: &'a str,
    /// Its dice.
    pub seed: u64,
    /// The timeout of its session.
    pub session_timeout: Duration,
    /// How many threads take locks.
    pub threads: usize,
    /// Whether it takes what it once got for held until it gives it up.
    pub believes: bool,
}

/// A program that runs, or has run. Dropping it kills it; it ends with this process, however that ends.
pub struct Program {
    name: String,
    language: Language,
    child: Child,
    stdin: ChildStdin,
    words: Receiver<String>,
    trace: PathBuf,
    clock: File,
    wires: Vec<Proxy>,
    loses_reply: Arc<AtomicBool>,
    stopped: Option<Nanos>,
    absences: Vec<Absence>,
    jumps: Vec<Nanos>,
    end: Option<End>,
}

impl Language {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::C, Self::Python, Self::Rust];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::C => "C",
            Self::Python => "Python",
            Self::Rust => "Rust",
        }
    }
}

impl Program {
    /// Starts one.
    pub fn start(language: Language, number: usize, setup: &Setup<'_>) -> io::Result<Self> {
        let built = Built::get();
        let name = format!("{number:02}-{}", language.name());
        let file = |ending: &str| setup.directory.join(format!("{name}.{ending}"));
        let clock = File::options().write(true).create_new(true).open(file("clock"))?;
        clock.write_all_at(&[0; 16], 0)?;
        let wires: Vec<Proxy> = setup.servers.iter().filter(|_| setup.is_wired).map(|to| Proxy::start(to)).collect();
        let servers: Vec<String> = match setup.is_wired {
            true => wires.iter().map(Proxy::address).collect(),
            false => setup.servers.to_vec(),
        };
        let mut command = built.command(language);
        command
            .args([&servers.join(","), setup.store, setup.locks])
            .args([setup.seed.to_string(), setup.session_timeout.as_millis().to_string()])
            .arg(file("trace"))
            .arg(setup.threads.to_string())
            .args(setup.believes.then_some("--believes"))
            .env("LD_PRELOAD", &built.clock)
            .env("CHAOS_CLOCK", file("clock"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(file("stderr"))?)
            // Ctrl-C ends us alone, and with us the program.
            .process_group(0);
        // SAFETY: prctl is a system call and nothing else. The thread that starts programs is the one that ends last.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command.spawn()?;
        let stdin = child.stdin.take().ok_or_else(|| io::Error::other("no input"))?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
        let (said, words) = mpsc::channel();
        thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|word| said.send(word))
        });
        Ok(Self {
            name: name.clone(),
            language,
            child,
            stdin,
            words,
            trace: file("trace"),
            clock,
            wires,
            loses_reply: Arc::default(),
            stopped: None,
            absences: Vec::new(),
            jumps: Vec::new(),
            end: None,
        })
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its language.
    pub fn language(&self) -> Language {
        self.language
    }

    /// Whether it was not killed.
    pub fn lives(&self) -> bool {
        self.end.is_none()
    }

    /// Whether it was neither killed nor stopped.
    pub fn runs(&self) -> bool {
        self.lives() && self.stopped.is_none()
    }

    /// Whether its connections go through proxies.
    pub fn is_wired(&self) -> bool {
        !self.wires.is_empty()
    }

    /// Whether it has something now, as far as its trace says.
    pub fn holds(&self) -> bool {
        let Ok(mut file) = File::open(&self.trace) else { return false };
        let length = file.metadata().map_or(0, |data| data.len());
        let mut text = String::new();
        let read = file.seek(SeekFrom::Start(length.saturating_sub(4000))).and_then(|_| file.read_to_string(&mut text));
        let mut holding = BTreeMap::new();
        for line in text.lines().filter(|_| read.is_ok()) {
            let mut words = line.split(' ').skip(1);
            match (words.next(), words.next()) {
                (Some(thread), Some("got" | "look")) => holding.insert(thread, true),
                (Some(thread), Some("leave")) => holding.insert(thread, false),
                _ => None,
            };
        }
        holding.into_values().any(|holds| holds)
    }

    /// Tells it to go on with the next part of its work.
    pub fn tell(&mut self, word: &str) {
        // Where it has ended, its end tells more.
        let _ = writeln!(self.stdin, "{word}");
    }

    /// Whether it has said so by now.
    pub fn has_said(&self, word: &str) -> bool {
        self.words.try_iter().any(|said| said == word)
    }

    /// Stops it.
    pub fn stop(&mut self) {
        self.stopped = Some(clock::now());
        pause(self.pid());
    }

    /// Stops it if it has something, so that it is known to have it while it is stopped.
    pub fn stop_holding(&mut self) -> bool {
        if self.holds() {
            self.stop();
        }
        if self.stopped.is_some() && !self.holds() {
            self.wake();
        }
        self.stopped.is_some()
    }

    /// Wakes it, if it is stopped.
    pub fn wake(&mut self) {
        if let Some(from) = self.stopped.take() {
            self.absences.push(Absence { from, until: clock::now() });
            resume(self.pid());
        }
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.end = Some(End::Killed(clock::now()));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Has its CLOCK_REALTIME differ by so many nanoseconds from the host's.
    pub fn set_wall_clock(&self, nanos: i64) {
        self.clock.write_all_at(&nanos.to_ne_bytes(), 0).expect("write the clock");
    }

    /// Suspends it, as far as its clocks go, if it has something: it is stopped for a moment, in which they go on by `nanos`.
    pub fn suspend_holding(&mut self, nanos: i64) -> bool {
        if !self.stop_holding() {
            return false;
        }
        self.jumps.push(clock::now());
        let since_begin = i64::try_from(self.jumps.len()).unwrap_or(i64::MAX).saturating_mul(nanos);
        self.set_wall_clock(since_begin);
        self.clock.write_all_at(&since_begin.to_ne_bytes(), 8).expect("write the clock");
        self.wake();
        true
    }

    /// Resets its connections.
    pub fn cut(&self) {
        self.wires.iter().for_each(Proxy::cut);
    }

    /// Swallows what it sends and is sent, or no longer.
    pub fn black_hole(&self, on: bool) {
        self.wires.iter().for_each(|wire| wire.black_hole(on));
        if !on {
            // What was swallowed is missing from the streams.
            self.cut();
        }
    }

    /// Refuses its connections, or no longer.
    pub fn refuse(&self, on: bool) {
        self.wires.iter().for_each(|wire| wire.refuse(on));
    }

    /// Delays what it sends and is sent.
    pub fn delay(&self, delay: Duration) {
        for wire in &self.wires {
            wire.delay(Direction::ToServer, delay);
            wire.delay(Direction::ToClient, delay);
        }
    }

    /// Loses the reply to its next transaction, and the connection with it.
    pub fn lose_reply(&self) {
        self.loses_reply.store(true, Ordering::SeqCst);
        for wire in &self.wires {
            let armed = Arc::clone(&self.loses_reply);
            wire.hook(move |way, frame: &mut Vec<u8>| {
                let hits = way == Direction::ToServer && is_transaction(frame) && armed.swap(false, Ordering::SeqCst);
                if hits { Verdict::CutAfter } else { Verdict::Forward }
            });
        }
    }

    /// Whether a reply was lost since then.
    pub fn has_lost_reply(&self) -> bool {
        !self.loses_reply.load(Ordering::SeqCst)
    }

    /// Loses no replies any more.
    pub fn lose_none(&self) {
        self.wires.iter().for_each(Proxy::unhook);
    }

    /// How it has ended, if it has.
    pub fn has_ended(&mut self) -> bool {
        if self.end.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.end = Some(if status.success() { End::Well } else { End::Badly(status.into_raw()) });
        }
        self.end.is_some()
    }

    /// Its name, if it has ended and was not killed.
    pub fn ended_by_itself(&mut self) -> Option<&str> {
        (self.lives() && self.has_ended()).then_some(&self.name)
    }

    /// What it did, for the judge.
    pub fn finish(mut self) -> Result<Process, String> {
        self.wake();
        if !self.has_ended() {
            self.end = Some(End::Badly(-1));
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let text = fs::read_to_string(&self.trace).map_err(|error| format!("{}: {error}", self.trace.display()))?;
        Ok(Process {
            name: self.name.clone(),
            language: self.language.name(),
            lines: trace::parse(&text).map_err(|error| format!("{}: {error}", self.trace.display()))?,
            absences: std::mem::take(&mut self.absences),
            jumps: std::mem::take(&mut self.jumps),
            end: self.end.unwrap_or_default(),
        })
    }

    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_transaction(frame: &[u8]) -> bool {
    const CREATE: i32 = 1;
    const DELETE: i32 = 2;
    const MULTI: i32 = 14;
    const CREATE2: i32 = 15;
    let kind = frame.get(4..8).and_then(|bytes| bytes.try_into().ok()).map(i32::from_be_bytes);
    kind.is_some_and(|kind| [CREATE, DELETE, MULTI, CREATE2].contains(&kind))
}

/// What programs are made of.
struct Built {
    /// Where this process was built, and the library.
    profile: PathBuf,
    worker: PathBuf,
    clock: PathBuf,
    python: PathBuf,
}

impl Built {
    fn get() -> &'static Self {
        static BUILT: OnceLock<Built> = OnceLock::new();
        BUILT.get_or_init(Self::make)
    }

    fn make() -> Self {
        let profile = profile_directory();
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
        let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/venv/bin/python");
        assert!(python.exists(), "{} is missing: make build", python.display());
        let name = match profile.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "dev",
            Some(name) => name,
        };
        let target = profile.parent().expect("it is below target/");
        // Cargo does not build a shared library for those who do not link it.
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args([
            "build",
            "--quiet",
            "--locked",
            "--package",
            "zklock-c",
            "--lib",
            "--profile",
            name,
            "--target-dir",
        ]);
        succeed(cargo.arg(target).current_dir(env!("CARGO_MANIFEST_DIR")));
        let (worker, clock) = (profile.join("chaos-worker"), profile.join("chaos-clock.so"));
        let strict = ["-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-g"];
        let gcc = || Command::new("gcc");
        succeed(
            gcc().args(strict).args(["-shared", "-fPIC", "-o"]).arg(&clock).arg(sources.join("clock.c")).arg("-ldl"),
        );
        let mut link = gcc();
        link.args(strict).arg("-I").arg(include).arg("-o").arg(&worker).arg(sources.join("worker.c"));
        link.arg("-L").arg(&profile).args(["-lzklock", "-lpthread"]).arg(format!("-Wl,-rpath,{}", profile.display()));
        succeed(&mut link);
        Self { profile, worker, clock, python }
    }

    fn command(&self, language: Language) -> Command {
        match language {
            Language::C => Command::new(&self.worker),
            Language::Python => {
                let mut command = Command::new(&self.python);
                command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/worker.py"));
                command
            }
            Language::Rust => {
                let mut command = Command::new(self.profile.join("zklock-chaos"));
                command.arg("worker");
                command
            }
        }
    }
}

/// `target/debug` or `target/release`.
pub fn profile_directory() -> PathBuf {
    let own = env::current_exe().expect("the name of this program");
    let directory = own.parent().expect("a directory");
    let is_test = directory.ends_with("deps");
    if is_test { directory.parent().expect("a directory").to_owned() } else { directory.to_owned() }
}

fn succeed(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}
