//! Processes that use other libraries' locks, Curator's and kazoo's, and do line by line what a test tells them.
//!
//! What they understand stands at the head of `tests/curator/Peer.java` and of `tests/kazoo/peer.py`.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Deref;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::process;

/// How long [`Peer::ask`] waits: for the start of a process as well, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many lines of complaints are kept for failure messages.
const LOG_LINES: usize = 40;

/// Which Curator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CuratorVersion {
    /// The one of Debian's package.
    Debian,
    /// The newest release, named in `tests/curator/pom.xml`.
    Newest,
}

/// A process with Curator.
pub struct CuratorPeer(Peer);

/// A process with kazoo.
pub struct KazooPeer(Peer);

/// A process with another library. It is killed when it is dropped, and ends with the test process however that ends.
///
/// All methods take `&self`, so that a test can pause or kill it while other threads wait for its answers.
pub struct Peer {
    child: Mutex<Child>,
    stdin: Mutex<ChildStdin>,
    next: AtomicU64,
    heard: Arc<Heard>,
}

/// A command under way.
pub struct Ticket {
    number: u64,
    command: String,
    heard: Arc<Heard>,
}

impl CuratorVersion {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Debian, Self::Newest];

    /// The jars that a program with it is compiled and run with, as Java's option `-cp` wants them: a directory of its own is before
    /// them.
    pub fn class_path(self, first: &Path) -> String {
        Java::of(self).class_path(first)
    }
}

impl CuratorPeer {
    /// Starts one with a client `main` for this server, without waiting for either: several that are started together start
    /// at the same time.
    pub fn start(version: CuratorVersion, address: &str, session_timeout: Duration) -> Self {
        let java = Java::of(version);
        let mut command = Command::new("java");
        command.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]);
        command.args([
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            &java.class_path(&java.compiled()),
            "Peer",
        ]);
        Self(Peer::start(command, address, session_timeout))
    }
}

impl KazooPeer {
    /// Starts one with a client `main` for this server, without waiting for either.
    pub fn start(address: &str, session_timeout: Duration) -> Self {
        let python = repository("target/venv/bin/python");
        assert!(python.exists(), "{} is missing: make setup", python.display());
        let mut command = Command::new(python);
        command.arg(repository("tests/kazoo/peer.py"));
        Self(Peer::start(command, address, session_timeout))
    }
}

impl Peer {
    /// Starts a program that is told the server's address and a session timeout in milliseconds, and talks as the peers do: for
    /// a test that needs a process to kill with a library that is none of theirs.
    pub fn start(mut command: Command, address: &str, session_timeout: Duration) -> Self {
        let mut child = command
            .args([address, &session_timeout.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C ends the test process alone; then its input ends, and so does the peer. One that is paused gets SIGHUP and
            // SIGCONT from the kernel, which leaves no process group stopped when the last who could wake it is gone.
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("start {}: {error}; make setup", command.get_program().display()));
        let heard = Arc::new(Heard::default());
        heard.listen(child.stdout.take().unwrap(), Said::take);
        heard.listen(child.stderr.take().unwrap(), Said::complain);
        let stdin = Mutex::new(child.stdin.take().unwrap());
        Self { child: Mutex::new(child), stdin, next: AtomicU64::new(1), heard }
    }

    /// Has it do something, and returns its answer.
    #[track_caller]
    pub fn ask(&self, command: &str) -> String {
        self.send(command).wait(PATIENCE)
    }

    /// Has it do something that it answers with `ok`.
    #[track_caller]
    pub fn tell(&self, command: &str) {
        assert_eq!(self.ask(command), "ok", "{command}");
    }

    /// Has it do something that may take its time.
    pub fn send(&self, command: &str) -> Ticket {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // If it has ended, whoever waits for the answer is told.
        let _ = writeln!(lock(&self.stdin), "{number} {command}");
        Ticket { number, command: command.to_owned(), heard: Arc::clone(&self.heard) }
    }

    /// Waits for an event that begins like this, and takes it: of those that nobody has taken yet the first.
    #[track_caller]
    pub fn event(&self, beginning: &str, limit: Duration) -> String {
        self.heard.wait(&format!("event {beginning}"), limit, |said| {
            let found = said.events.iter().position(|event| event.starts_with(beginning))?;
            said.events.remove(found)
        })
    }

    /// The id and the password of a client's session.
    #[track_caller]
    pub fn session(&self, client: &str) -> (i64, Vec<u8>) {
        let answer = self.ask(&format!("session {client}"));
        let (id, password) = answer.split_once(' ').unwrap();
        let pairs = (0..password.len()).step_by(2).map(|at| &password[at..at + 2]);
        let password = pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
        (u64::from_str_radix(id, 16).unwrap().cast_signed(), password)
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        lock(&self.child).id().cast_signed()
    }

    /// Whether its process has ended.
    pub fn has_ended(&self) -> bool {
        lock(&self.child).try_wait().unwrap().is_some()
    }

    /// Freezes it with SIGSTOP and waits until all its threads stand still.
    pub fn pause(&self) {
        process::pause(Self::running(&mut lock(&self.child)));
    }

    /// Lets it go on.
    pub fn resume(&self) {
        process::signal(Self::running(&mut lock(&self.child)), libc::SIGCONT);
    }

    /// Kills it with SIGKILL and waits until it is gone: its sessions stay until they expire.
    pub fn kill(&self) {
        let mut child = lock(&self.child);
        child.kill().and_then(|()| child.wait()).expect("kill a child");
    }

    /// The pid of one that has not ended.
    #[track_caller]
    fn running(child: &mut Child) -> i32 {
        assert!(child.try_wait().unwrap().is_none(), "the peer has ended");
        child.id().cast_signed()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Deref for CuratorPeer {
    type Target = Peer;

    fn deref(&self) -> &Peer {
        &self.0
    }
}

impl Deref for KazooPeer {
    type Target = Peer;

    fn deref(&self) -> &Peer {
        &self.0
    }
}

impl Ticket {
    /// The answer. It may be asked for again.
    #[track_caller]
    pub fn wait(&self, limit: Duration) -> String {
        self.heard.wait(&self.command, limit, |said| said.answers.get(&self.number).cloned())
    }

    /// Whether the answer is there.
    pub fn is_done(&self) -> bool {
        lock(&self.heard.said).answers.contains_key(&self.number)
    }
}

/// What a peer has said, and who waits for more.
#[derive(Default)]
struct Heard {
    said: Mutex<Said>,
    more: Condvar,
}

#[derive(Default)]
struct Said {
    answers: HashMap<u64, String>,
    events: VecDeque<String>,
    complaints: VecDeque<String>,
    /// How many of its streams are open.
    open: usize,
}

impl Heard {
    fn listen(self: &Arc<Self>, stream: impl Read + Send + 'static, take: fn(&mut Said, String)) {
        lock(&self.said).open += 1;
        let heard = Arc::clone(self);
        thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                take(&mut lock(&heard.said), line);
                heard.more.notify_all();
            }
            lock(&heard.said).open -= 1;
            heard.more.notify_all();
        });
    }

    #[track_caller]
    fn wait(&self, what: &str, limit: Duration, mut find: impl FnMut(&mut Said) -> Option<String>) -> String {
        let deadline = Instant::now() + limit;
        let mut said = lock(&self.said);
        loop {
            if let Some(found) = find(&mut said) {
                return found;
            }
            assert!(said.open > 0, "{what}: the peer has ended; {}", said.story());
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what}: not within {limit:?}; {}", said.story());
            said = self.more.wait_timeout(said, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Said {
    fn take(&mut self, line: String) {
        let (number, words) = line.split_once(' ').unwrap_or((&line, ""));
        match number.parse() {
            Ok(number) => drop(self.answers.insert(number, words.to_owned())),
            Err(_) => self.events.push_back(words.to_owned()),
        }
    }

    fn complain(&mut self, line: String) {
        self.complaints.push_back(line);
        if self.complaints.len() > LOG_LINES {
            self.complaints.pop_front();
        }
    }

    fn story(&self) -> String {
        let complaints: Vec<&str> = self.complaints.iter().map(String::as_str).collect();
        format!("events not taken: {:?}; its log ends with:\n{}", self.events, complaints.join("\n"))
    }
}

/// What a version of Curator's peer is compiled with and runs with.
struct Java {
    /// A directory below `target`.
    name: &'static str,
    jars: Vec<PathBuf>,
}

impl Java {
    fn of(version: CuratorVersion) -> Self {
        match version {
            CuratorVersion::Debian => Self { name: "debian", jars: debian_jars() },
            CuratorVersion::Newest => Self { name: "newest", jars: newest_jars() },
        }
    }

    fn class_path(&self, first: &Path) -> String {
        let paths = std::iter::once(first).chain(self.jars.iter().map(PathBuf::as_path));
        paths.map(|path| path.to_str().expect("a path in UTF-8")).collect::<Vec<_>>().join(":")
    }

    /// The directory of the classes. Whoever comes first makes it, of all test processes; the others wait.
    fn compiled(&self) -> PathBuf {
        let source = repository("tests/curator/Peer.java");
        let directory = repository("target/curator-peer").join(self.name);
        fs::create_dir_all(&directory).expect("make a directory below target");
        let stamp =
            File::options().create(true).truncate(false).read(true).write(true).open(directory.join("made-from"));
        let mut stamp = stamp.expect("open the stamp of the compiled peer");
        stamp.lock().expect("lock the stamp of the compiled peer");
        let mut made_from = String::new();
        stamp.read_to_string(&mut made_from).expect("read the stamp of the compiled peer");
        let wanted = self.ingredients(&source);
        if made_from != wanted {
            self.compile(&source, &directory);
            fs::write(directory.join("made-from"), wanted).expect("write the stamp of the compiled peer");
        }
        directory
    }

    fn ingredients(&self, source: &Path) -> String {
        let modified = |jar: &PathBuf| format!("{} {:?}\n", jar.display(), jar.metadata().unwrap().modified().unwrap());
        self.jars.iter().map(modified).collect::<String>() + &fs::read_to_string(source).expect("read Peer.java")
    }

    fn compile(&self, source: &Path, directory: &Path) {
        let mut javac = Command::new("javac");
        javac.args(["-cp", &self.class_path(directory), "-d"]).arg(directory).arg(source);
        let output = javac.output().unwrap_or_else(|error| panic!("start javac: {error}; make setup"));
        assert!(output.status.success(), "javac: {}", String::from_utf8_lossy(&output.stderr));
    }
}

fn debian_jars() -> Vec<PathBuf> {
    let names = ["curator-recipes", "curator-framework", "curator-client", "guava", "zookeeper", "slf4j-simple"];
    let jars: Vec<PathBuf> = names.iter().map(|name| PathBuf::from(format!("/usr/share/java/{name}.jar"))).collect();
    for jar in &jars {
        let help = "apt-get install libcurator-recipes-java (as root), or make setup";
        assert!(jar.exists(), "{} is missing: {help}", jar.display());
    }
    jars
}

fn newest_jars() -> Vec<PathBuf> {
    let directory = repository("target/curator-newest");
    let made_from = fs::read(directory.join("made-from")).unwrap_or_default();
    let wanted = fs::read(repository("tests/curator/pom.xml")).expect("read pom.xml");
    assert!(made_from == wanted, "{} is not the Curator of tests/curator/pom.xml: make setup", directory.display());
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut jars: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|name| name == "jar")).collect();
    jars.sort();
    jars
}

/// A file of this repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A test that panicked while it held the lock must still be able to drop the peer.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
