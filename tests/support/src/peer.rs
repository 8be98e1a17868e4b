//! Processes that use the locks of other libraries (Curator and kazoo) and execute the commands of a test line by line.
//!
//! The opening comments of `tests/interop/curator/Peer.java` and `tests/interop/kazoo/peer.py` describe the commands.

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

use crate::certificates::Certificates;
use crate::process;
use crate::zookeeper::JVM_OPTIONS;

/// The time limit of [`PeerProcess::query`]. It includes the start of the process on a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The number of lines of standard error that failure messages contain.
const LOG_LINES: usize = 40;

/// A version of Curator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CuratorVersion {
    /// The version in Debian's package.
    Debian,
    /// The newest release. `tests/interop/curator/pom.xml` names it.
    Newest,
}

/// A process that uses Curator.
pub struct CuratorPeer(PeerProcess);

/// A process that uses kazoo.
pub struct KazooPeer(PeerProcess);

/// A process that uses another lock library. Dropping the value kills the process. The process also ends when the test
/// process ends, for whatever reason.
///
/// All methods take `&self`, so that a test can pause or kill the process while other threads wait for its answers.
pub struct PeerProcess {
    child: Mutex<Child>,
    stdin: Mutex<ChildStdin>,
    next: AtomicU64,
    heard: Arc<PeerOutput>,
}

/// A command that the process may not have answered yet.
pub struct PendingAnswer {
    command_number: u64,
    command: String,
    heard: Arc<PeerOutput>,
}

impl CuratorVersion {
    /// All versions.
    pub const ALL: [Self; 2] = [Self::Debian, Self::Newest];

    /// The class path, for Java's option `-cp`, to compile and run a program with this version. The directory `first`
    /// comes before the jars.
    pub fn class_path(self, first: &Path) -> String {
        CuratorBuild::of(self).class_path(first)
    }
}

impl CuratorPeer {
    /// Starts a process with a client `main` of this server. Does not wait for the process or the client, so that
    /// several processes can start at the same time.
    pub fn start(version: CuratorVersion, address: &str, session_timeout: Duration) -> Self {
        Self::start_jvm(version, address, session_timeout, &[])
    }

    /// Like [`start`](Self::start), with TLS and the identity `client` of these certificates.
    pub fn start_with_tls(
        version: CuratorVersion,
        address: &str,
        session_timeout: Duration,
        certificates: &Certificates,
    ) -> Self {
        let (identity, authorities) = (certificates.file("client.both.pem"), certificates.file("ca.pem"));
        let properties = [
            "-Dzookeeper.client.secure=true".to_owned(),
            "-Dzookeeper.clientCnxnSocket=org.apache.zookeeper.ClientCnxnSocketNetty".to_owned(),
            format!("-Dzookeeper.ssl.keyStore.location={identity}"),
            "-Dzookeeper.ssl.keyStore.type=PEM".to_owned(),
            format!("-Dzookeeper.ssl.trustStore.location={authorities}"),
            "-Dzookeeper.ssl.trustStore.type=PEM".to_owned(),
        ];
        Self::start_jvm(version, address, session_timeout, &properties)
    }

    /// Like [`start`](Self::start), with SASL, the section `Client` of a JAAS file, and more arguments of the JVM.
    pub fn start_with_jaas(
        version: CuratorVersion,
        address: &str,
        session_timeout: Duration,
        jaas: &Path,
        arguments: &[&str],
    ) -> Self {
        let file = format!("-Djava.security.auth.login.config={}", jaas.display());
        let arguments = arguments.iter().map(|argument| (*argument).to_owned());
        Self::start_jvm(version, address, session_timeout, &arguments.chain([file]).collect::<Vec<_>>())
    }

    fn start_jvm(version: CuratorVersion, address: &str, session_timeout: Duration, properties: &[String]) -> Self {
        let java = CuratorBuild::of(version);
        let mut command = Command::new("java");
        command.args(JVM_OPTIONS).arg("-Xmx128m");
        command.args(properties);
        command.args([
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            &java.class_path(&java.compiled()),
            "Peer",
        ]);
        Self(PeerProcess::start(command, address, session_timeout))
    }
}

impl KazooPeer {
    /// Starts a process with a client `main` of this server. Does not wait for the process or the client.
    pub fn start(address: &str, session_timeout: Duration) -> Self {
        Self(PeerProcess::start(Self::command(), address, session_timeout))
    }

    /// Like [`start`](Self::start), with TLS and the identity `client` of these certificates.
    pub fn start_with_tls(address: &str, session_timeout: Duration, certificates: &Certificates) -> Self {
        let mut command = Self::command();
        command.env("CERTIFICATES", certificates.path(""));
        Self(PeerProcess::start(command, address, session_timeout))
    }

    /// Like [`start`](Self::start), with SASL and DIGEST-MD5.
    pub fn start_with_sasl(address: &str, session_timeout: Duration, user: &str, password: &str) -> Self {
        let mut command = Self::command();
        command.env("SASL", format!("{user}:{password}"));
        Self(PeerProcess::start(command, address, session_timeout))
    }

    fn command() -> Command {
        let python = repository("target/venv/bin/python");
        assert!(python.exists(), "{} is missing: make setup", python.display());
        let mut command = Command::new(python);
        command.arg(repository("tests/interop/kazoo/peer.py"));
        command
    }
}

impl PeerProcess {
    /// Starts a program that follows the protocol of the peers. Its arguments are the address of the server and the
    /// session timeout in milliseconds. A test uses this to kill a process of yet another library.
    pub fn start(mut command: Command, address: &str, session_timeout: Duration) -> Self {
        let mut child = command
            .args([address, &session_timeout.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C ends only the test process. The input of the peer then ends, and so does the peer. If the peer is
            // paused, the kernel sends it SIGHUP and SIGCONT, because its process group is orphaned and stopped.
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("start {}: {error}; make setup", command.get_program().display()));
        let heard = Arc::new(PeerOutput::default());
        heard.spawn_reader(child.stdout.take().unwrap(), PeerLines::add_stdout_line);
        heard.spawn_reader(child.stderr.take().unwrap(), PeerLines::add_stderr_line);
        let stdin = Mutex::new(child.stdin.take().unwrap());
        Self { child: Mutex::new(child), stdin, next: AtomicU64::new(1), heard }
    }

    /// Executes a command and returns its answer.
    #[track_caller]
    pub fn query(&self, command: &str) -> String {
        self.send(command).wait(ANSWER_TIMEOUT)
    }

    /// Executes a command and asserts that the answer is `ok`.
    #[track_caller]
    pub fn run(&self, command: &str) {
        assert_eq!(self.query(command), "ok", "{command}");
    }

    /// Sends a command without waiting for its answer.
    pub fn send(&self, command: &str) -> PendingAnswer {
        let command_number = self.next.fetch_add(1, Ordering::Relaxed);
        // If the process has ended, the wait for the answer fails.
        let _ = writeln!(lock(&self.stdin), "{command_number} {command}");
        PendingAnswer { command_number, command: command.to_owned(), heard: Arc::clone(&self.heard) }
    }

    /// Waits for an event that begins with `beginning`, and removes it. If several such events have arrived, takes the
    /// oldest.
    #[track_caller]
    pub fn event(&self, beginning: &str, limit: Duration) -> String {
        self.heard.wait(&format!("event {beginning}"), limit, |said| {
            let found = said.events.iter().position(|event| event.starts_with(beginning))?;
            said.events.remove(found)
        })
    }

    /// The id and the password of the session of a client.
    #[track_caller]
    pub fn session(&self, client: &str) -> (i64, Vec<u8>) {
        let answer = self.query(&format!("session {client}"));
        let (id, password) = answer.split_once(' ').unwrap();
        let pairs = (0..password.len()).step_by(2).map(|at| &password[at..at + 2]);
        let password = pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
        (u64::from_str_radix(id, 16).unwrap().cast_signed(), password)
    }

    /// The process id.
    pub fn pid(&self) -> i32 {
        lock(&self.child).id().cast_signed()
    }

    /// Whether the process has ended.
    pub fn has_ended(&self) -> bool {
        lock(&self.child).try_wait().unwrap().is_some()
    }

    /// Pauses the process with SIGSTOP and waits until all its threads have stopped.
    pub fn pause(&self) {
        process::pause(Self::running(&mut lock(&self.child)));
    }

    /// Resumes a paused process.
    pub fn resume(&self) {
        process::signal(Self::running(&mut lock(&self.child)), libc::SIGCONT);
    }

    /// Kills the process with SIGKILL and waits until it has ended. Its sessions last until they expire.
    pub fn kill(&self) {
        let mut child = lock(&self.child);
        child.kill().and_then(|()| child.wait()).expect("kill a child");
    }

    /// The process id of a process that has not ended.
    #[track_caller]
    fn running(child: &mut Child) -> i32 {
        assert!(child.try_wait().unwrap().is_none(), "the peer has ended");
        child.id().cast_signed()
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Deref for CuratorPeer {
    type Target = PeerProcess;

    fn deref(&self) -> &PeerProcess {
        &self.0
    }
}

impl Deref for KazooPeer {
    type Target = PeerProcess;

    fn deref(&self) -> &PeerProcess {
        &self.0
    }
}

impl PendingAnswer {
    /// Waits for the answer and returns it. May be called again.
    #[track_caller]
    pub fn wait(&self, limit: Duration) -> String {
        self.heard.wait(&self.command, limit, |said| said.answers.get(&self.command_number).cloned())
    }

    /// Whether the answer has arrived.
    pub fn is_done(&self) -> bool {
        lock(&self.heard.lines).answers.contains_key(&self.command_number)
    }
}

/// The output of a peer, shared with the threads that read it and the threads that wait for it.
#[derive(Default)]
struct PeerOutput {
    lines: Mutex<PeerLines>,
    changed: Condvar,
}

#[derive(Default)]
struct PeerLines {
    answers: HashMap<u64, String>,
    events: VecDeque<String>,
    stderr_lines: VecDeque<String>,
    /// The number of output streams that are still open.
    open_streams: usize,
}

impl PeerOutput {
    fn spawn_reader(self: &Arc<Self>, stream: impl Read + Send + 'static, take: fn(&mut PeerLines, String)) {
        lock(&self.lines).open_streams += 1;
        let heard = Arc::clone(self);
        thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                take(&mut lock(&heard.lines), line);
                heard.changed.notify_all();
            }
            lock(&heard.lines).open_streams -= 1;
            heard.changed.notify_all();
        });
    }

    #[track_caller]
    fn wait(&self, what: &str, limit: Duration, mut find: impl FnMut(&mut PeerLines) -> Option<String>) -> String {
        let deadline = Instant::now() + limit;
        let mut said = lock(&self.lines);
        loop {
            if let Some(found) = find(&mut said) {
                return found;
            }
            assert!(said.open_streams > 0, "{what}: the peer has ended; {}", said.diagnostics());
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what}: no result within {limit:?}; {}", said.diagnostics());
            said = self.changed.wait_timeout(said, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl PeerLines {
    fn add_stdout_line(&mut self, line: String) {
        let (number, words) = line.split_once(' ').unwrap_or((&line, ""));
        match number.parse() {
            Ok(number) => drop(self.answers.insert(number, words.to_owned())),
            Err(_) => self.events.push_back(words.to_owned()),
        }
    }

    fn add_stderr_line(&mut self, line: String) {
        self.stderr_lines.push_back(line);
        if self.stderr_lines.len() > LOG_LINES {
            self.stderr_lines.pop_front();
        }
    }

    fn diagnostics(&self) -> String {
        let complaints: Vec<&str> = self.stderr_lines.iter().map(String::as_str).collect();
        format!("events not taken: {:?}; its log ends with:\n{}", self.events, complaints.join("\n"))
    }
}

/// The files to compile and run the peer with one version of Curator.
struct CuratorBuild {
    /// The name of a directory below `target`.
    name: &'static str,
    jars: Vec<PathBuf>,
}

impl CuratorBuild {
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

    /// Returns the directory of the compiled classes. The first test process compiles them; the others wait for it.
    fn compiled(&self) -> PathBuf {
        let source = repository("tests/interop/curator/Peer.java");
        let directory = repository("target/curator-peer").join(self.name);
        fs::create_dir_all(&directory).expect("make a directory below target");
        let stamp =
            File::options().create(true).truncate(false).read(true).write(true).open(directory.join("made-from"));
        let mut stamp = stamp.expect("open the stamp of the compiled peer");
        stamp.lock().expect("lock the stamp of the compiled peer");
        let mut made_from = String::new();
        stamp.read_to_string(&mut made_from).expect("read the stamp of the compiled peer");
        let wanted = self.fingerprint(&source);
        if made_from != wanted {
            self.compile(&source, &directory);
            fs::write(directory.join("made-from"), wanted).expect("write the stamp of the compiled peer");
        }
        directory
    }

    fn fingerprint(&self, source: &Path) -> String {
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
    let curator = ["curator-recipes", "curator-framework", "curator-client", "guava"];
    // TLS needs the jars of netty, which the manifest of zookeeper.jar does not name.
    let names = curator.into_iter().chain(["zookeeper", "netty-codec", "netty-resolver", "slf4j-simple"]);
    let jars: Vec<PathBuf> = names.map(|name| PathBuf::from(format!("/usr/share/java/{name}.jar"))).collect();
    for jar in &jars {
        let help = "apt-get install libcurator-recipes-java (as root), or make setup";
        assert!(jar.exists(), "{} is missing: {help}", jar.display());
    }
    jars
}

fn newest_jars() -> Vec<PathBuf> {
    let directory = repository("target/curator-newest");
    let made_from = fs::read(directory.join("made-from")).unwrap_or_default();
    let wanted = fs::read(repository("tests/interop/curator/pom.xml")).expect("read pom.xml");
    assert!(
        made_from == wanted,
        "{} is not the Curator of tests/interop/curator/pom.xml: make setup",
        directory.display()
    );
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut jars: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|name| name == "jar")).collect();
    jars.sort();
    jars
}

/// The path of a file in this repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A test that panicked while it held the mutex must still be able to drop the peer.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
