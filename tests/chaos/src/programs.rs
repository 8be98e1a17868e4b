//! The programs that take part: how they are built, started with proxies and a fake clock, paused, resumed and killed.

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

use zklock_test_support::{Direction, Proxy, Verdict, pause, resume};

use crate::clock;
use crate::history::{Pause, Process, ProcessEnd};
use crate::trace::{self, Nanos};

/// The language of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// C, with the header and the shared library.
    C,
    /// Python, with the package in `target/venv`.
    Python,
    /// Rust, with the crate.
    Rust,
}

/// The parameters of a program.
pub struct ProgramOptions<'a> {
    /// The directory of the traces.
    pub directory: &'a Path,
    /// The addresses of the servers.
    pub servers: &'a [String],
    /// Whether the connections of the program go through proxies.
    pub uses_proxies: bool,
    /// The address of the store.
    pub store: &'a str,
    /// The locks that the program acquires. `programs/worker.c` describes the format.
    pub locks: &'a str,
    /// The seed of its random choices.
    pub seed: u64,
    /// The session timeout.
    pub session_timeout: Duration,
    /// The number of threads that acquire locks.
    pub threads: usize,
    /// Whether the program ignores losses and relies on every hold until it releases the lock.
    pub ignores_lease: bool,
    /// The file with the options of the client.
    pub options: &'a Path,
    /// Whether the connections of the program use TLS.
    pub is_encrypted: bool,
}

/// A program that runs or has run. Dropping the value kills the program. The program also ends with this process, for
/// whatever reason.
pub struct Program {
    name: String,
    language: Language,
    child: Child,
    stdin: ChildStdin,
    stdout_lines: Receiver<String>,
    trace: PathBuf,
    clock: File,
    /// The addresses at which the program reaches the servers.
    servers: Vec<String>,
    proxies: Vec<Proxy>,
    is_encrypted: bool,
    has_connected: bool,
    reply_loss_armed: Arc<AtomicBool>,
    paused_at: Option<Nanos>,
    absences: Vec<Pause>,
    jumps: Vec<Nanos>,
    end: Option<ProcessEnd>,
}

impl Language {
    /// All languages.
    pub const ALL: [Self; 3] = [Self::C, Self::Python, Self::Rust];

    /// The name of the language.
    pub const fn name(self) -> &'static str {
        match self {
            Self::C => "C",
            Self::Python => "Python",
            Self::Rust => "Rust",
        }
    }
}

impl Program {
    /// Starts a program.
    pub fn start(language: Language, number: usize, setup: &ProgramOptions<'_>) -> io::Result<Self> {
        let built = Built::get();
        let name = format!("{number:02}-{}", language.name());
        let file = |ending: &str| setup.directory.join(format!("{name}.{ending}"));
        let clock = File::options().write(true).create_new(true).open(file("clock"))?;
        clock.write_all_at(&[0; 16], 0)?;
        let start_proxy = if setup.is_encrypted { Proxy::start_opaque } else { Proxy::start };
        let proxies: Vec<Proxy> =
            setup.servers.iter().filter(|_| setup.uses_proxies).map(|to| start_proxy(to)).collect();
        let servers: Vec<String> = match setup.uses_proxies {
            true => proxies.iter().map(Proxy::address).collect(),
            false => setup.servers.to_vec(),
        };
        let mut command = built.command(language);
        command
            .args([&servers.join(","), setup.store, setup.locks])
            .args([setup.seed.to_string(), setup.session_timeout.as_millis().to_string()])
            .arg(file("trace"))
            .arg(setup.threads.to_string())
            .arg(setup.options)
            .args(setup.ignores_lease.then_some("--ignores-lease"))
            .env("LD_PRELOAD", &built.clock)
            .env("CHAOS_CLOCK", file("clock"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(file("stderr"))?)
            // Ctrl-C ends only this process. The end of this process then ends the program.
            .process_group(0);
        // SAFETY: prctl is only a system call. The thread that starts the programs is the last to end.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command.spawn()?;
        let stdin = child.stdin.take().ok_or_else(|| io::Error::other("no input"))?;
        let stdout = child.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
        let (said, stdout_lines) = mpsc::channel();
        thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|word| said.send(word))
        });
        Ok(Self {
            name: name.clone(),
            language,
            child,
            stdin,
            stdout_lines,
            trace: file("trace"),
            clock,
            servers,
            proxies,
            is_encrypted: setup.is_encrypted,
            has_connected: false,
            reply_loss_armed: Arc::default(),
            paused_at: None,
            absences: Vec::new(),
            jumps: Vec::new(),
            end: None,
        })
    }

    /// The name of the program.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The language of the program.
    pub fn language(&self) -> Language {
        self.language
    }

    /// Whether the program has neither ended nor been killed.
    pub fn is_alive(&self) -> bool {
        self.end.is_none()
    }

    /// Whether the program has not ended and is not paused.
    pub fn is_running(&self) -> bool {
        self.is_alive() && self.paused_at.is_none()
    }

    /// Whether the connections of the program go through proxies.
    pub fn uses_proxies(&self) -> bool {
        !self.proxies.is_empty()
    }

    /// Whether the program holds a lock now, according to its trace.
    pub fn is_holding(&self) -> bool {
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

    /// Whether the program has connected at least once.
    pub fn has_connected(&mut self) -> bool {
        self.has_connected = self.has_connected || self.has_reported("ready");
        self.has_connected
    }

    /// Sends a command to the program.
    pub fn send_command(&mut self, word: &str) {
        // If the program has ended, its exit status is checked later.
        let _ = writeln!(self.stdin, "{word}");
    }

    /// Makes the program replace its server list with the servers whose numbers `is_selected` accepts.
    pub fn use_servers(&mut self, is_selected: impl Fn(usize) -> bool) {
        let selected = self.servers.iter().enumerate().filter(|&(number, _)| is_selected(number));
        let list: Vec<&str> = selected.map(|(_, address)| address.as_str()).collect();
        self.send_command(&format!("servers {}", list.join(",")));
    }

    /// Whether the program has printed this word since the last call.
    pub fn has_reported(&self, word: &str) -> bool {
        self.stdout_lines.try_iter().any(|said| said == word)
    }

    /// Pauses the program.
    pub fn pause(&mut self) {
        self.paused_at = Some(clock::now());
        pause(self.pid());
    }

    /// Pauses the program if it holds a lock. If it released the lock before the pause took effect, resumes it.
    pub fn pause_while_holding(&mut self) -> bool {
        if self.is_holding() {
            self.pause();
        }
        if self.paused_at.is_some() && !self.is_holding() {
            self.resume();
        }
        self.paused_at.is_some()
    }

    /// Resumes the program if it is paused.
    pub fn resume(&mut self) {
        if let Some(from) = self.paused_at.take() {
            self.absences.push(Pause { from, until: clock::now() });
            resume(self.pid());
        }
    }

    /// Kills the program.
    pub fn kill(&mut self) {
        self.end = Some(ProcessEnd::Killed(clock::now()));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sets the offset, in nanoseconds, between CLOCK_REALTIME in the program and on the host.
    pub fn set_wall_clock(&self, nanos: i64) {
        self.clock.write_all_at(&nanos.to_ne_bytes(), 0).expect("write the clock");
    }

    /// Simulates that the machine was suspended, if the program holds a lock: pauses the program briefly and
    /// advances its clocks by `nanos`.
    pub fn suspend_while_holding(&mut self, nanos: i64) -> bool {
        if !self.pause_while_holding() {
            return false;
        }
        self.jumps.push(clock::now());
        let since_begin = i64::try_from(self.jumps.len()).unwrap_or(i64::MAX).saturating_mul(nanos);
        self.set_wall_clock(since_begin);
        self.clock.write_all_at(&since_begin.to_ne_bytes(), 8).expect("write the clock");
        self.resume();
        true
    }

    /// Resets the connections of the program.
    pub fn reset_connections(&self) {
        self.proxies.iter().for_each(Proxy::cut);
    }

    /// Swallows everything on the connections of the program while `on` is true.
    pub fn black_hole(&self, on: bool) {
        self.proxies.iter().for_each(|wire| wire.black_hole(on));
        if !on {
            // The swallowed bytes are missing from the streams, so the connections cannot continue.
            self.reset_connections();
        }
    }

    /// Refuses new connections of the program while `on` is true.
    pub fn refuse(&self, on: bool) {
        self.proxies.iter().for_each(|wire| wire.refuse(on));
    }

    /// Delays everything on the connections of the program, in both directions.
    pub fn delay(&self, delay: Duration) {
        for wire in &self.proxies {
            wire.delay(Direction::ToServer, delay);
            wire.delay(Direction::ToClient, delay);
        }
    }

    /// Drops the reply to the next transaction of the program and resets the connection.
    pub fn lose_reply(&self) {
        self.reply_loss_armed.store(true, Ordering::SeqCst);
        let is_transaction = if self.is_encrypted { is_probably_transaction } else { is_transaction };
        for wire in &self.proxies {
            let armed = Arc::clone(&self.reply_loss_armed);
            wire.hook(move |choice, frame: &mut Vec<u8>| {
                let hits =
                    choice == Direction::ToServer && is_transaction(frame) && armed.swap(false, Ordering::SeqCst);
                if hits { Verdict::CutAfter } else { Verdict::Forward }
            });
        }
    }

    /// Whether a reply has been dropped since the last call of [`lose_reply`](Self::lose_reply).
    pub fn has_lost_reply(&self) -> bool {
        !self.reply_loss_armed.load(Ordering::SeqCst)
    }

    /// Ends the fault of [`lose_reply`](Self::lose_reply).
    pub fn disarm_reply_loss(&self) {
        self.proxies.iter().for_each(Proxy::unhook);
    }

    /// Whether the program has ended. Records how it ended.
    pub fn has_ended(&mut self) -> bool {
        if self.end.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.end =
                Some(if status.success() { ProcessEnd::Success } else { ProcessEnd::Failure(status.into_raw()) });
        }
        self.end.is_some()
    }

    /// The name of the program, if it has ended and was not killed.
    pub fn unexpectedly_ended(&mut self) -> Option<&str> {
        (self.is_alive() && self.has_ended()).then_some(&self.name)
    }

    /// Returns the trace of the program and how it ended, for the checker.
    pub fn finish(mut self) -> Result<Process, String> {
        self.resume();
        if !self.has_ended() {
            self.end = Some(ProcessEnd::Failure(-1));
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let text = match fs::read_to_string(&self.trace) {
            // The fault "program killed" can end a program before it has created its trace.
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read.map_err(|error| format!("{}: {error}", self.trace.display()))?,
        };
        Ok(Process {
            name: self.name.clone(),
            language: self.language.name(),
            lines: trace::parse(&text).map_err(|error| format!("{}: {error}", self.trace.display()))?,
            pauses: std::mem::take(&mut self.absences),
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

/// Guesses from the length of an encrypted record whether it contains a transaction. Heartbeats and most reads are
/// shorter, and handshakes with a certificate are longer.
fn is_probably_transaction(records: &[u8]) -> bool {
    const APPLICATION_DATA: u8 = 23;
    records.first() == Some(&APPLICATION_DATA) && (130..600).contains(&records.len())
}

fn is_transaction(frame: &[u8]) -> bool {
    const CREATE: i32 = 1;
    const DELETE: i32 = 2;
    const MULTI: i32 = 14;
    const CREATE2: i32 = 15;
    let kind = frame.get(4..8).and_then(|bytes| bytes.try_into().ok()).map(i32::from_be_bytes);
    kind.is_some_and(|kind| [CREATE, DELETE, MULTI, CREATE2].contains(&kind))
}

/// The executables and libraries of the programs.
struct Built {
    /// The build directory of this process and of the library.
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
        // Cargo does not build a shared library for packages that do not link it.
        let mut cargo = zklock_test_support::cargo();
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

/// The directory `target/debug` or `target/release`.
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
