//! A real ZooKeeper server for one test: started in milliseconds, stopped, paused and restarted at will, gone with the test.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::network::Host;
use crate::port::Port;
use crate::process;

/// The port on a host of its own.
pub(crate) const CLIENT_PORT: u16 = 2181;

/// A ZooKeeper server on loopback or on a host of its own, with a port and a data directory of its own.
///
/// Dropping it kills the server and removes its data. If the test process dies without dropping it, a supervisor does the
/// same. All methods take `&self`, so a test can stop or pause the server while other threads use it.
pub struct ZooKeeper {
    // Dropped in this order: the server, its data, its port.
    server: Mutex<Option<Server>>,
    directory: Directory,
    place: Place,
    options: Options,
}

/// Where a server listens.
enum Place {
    Loopback(Port),
    Host(Arc<Host>),
}

/// How to start a [`ZooKeeper`].
#[derive(Clone)]
pub struct Options {
    pub(crate) tick_ms: u32,
    container_sweep_ms: u32,
    config_lines: Vec<String>,
    jvm_arguments: Vec<String>,
    /// The server's number in its ensemble.
    id: Option<usize>,
    host: Option<Arc<Host>>,
    /// Those of another ZooKeeper.
    jars: Option<PathBuf>,
    medium: Medium,
}

/// Where a server's files are.
#[derive(Clone, Copy)]
enum Medium {
    /// Where there is a file system for it.
    Memory,
    Disk,
}

impl ZooKeeper {
    /// Starts a server with the default [`Options`] and waits until it serves.
    pub fn start() -> Self {
        Self::options().start()
    }

    /// The default options, to be changed and then started.
    pub fn options() -> Options {
        Options::default()
    }

    /// One server for all tests of a test binary: for tests that keep to their own paths and do not disturb the server.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<ZooKeeper> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// The server's connect string, like `127.0.0.1:port`. It stays the same over [`restart`](Self::restart).
    pub fn address(&self) -> String {
        self.place.address().to_string()
    }

    /// The server's port.
    pub fn port(&self) -> u16 {
        self.place.address().port()
    }

    /// Where its transaction logs and snapshots are, as long as it is not dropped.
    pub fn log_directory(&self) -> PathBuf {
        self.directory.0.join("data/version-2")
    }

    /// The process id of the running server's JVM.
    pub fn pid(&self) -> i32 {
        self.server().as_ref().expect("the server is stopped").pid
    }

    /// Kills the server with SIGKILL and waits until it is gone. Its data stays, its port refuses connections.
    pub fn stop(&self) {
        self.server().take();
    }

    /// Kills the server if it runs, starts it on the same port and data, and waits until it serves.
    pub fn restart(&self) {
        self.launch();
        self.wait_ready();
    }

    /// Kills the server if it runs and starts it, without waiting: a member of an ensemble needs the others to serve.
    pub(crate) fn launch(&self) {
        let mut server = self.server();
        server.take();
        *server = Some(Server::start(&self.directory.0, &self.options));
    }

    /// Freezes the server with SIGSTOP and waits until all its threads stand still. Its connections stay open, silent.
    pub fn pause(&self) {
        process::pause(self.pid());
    }

    /// Lets a paused server go on.
    pub fn resume(&self) {
        process::signal(self.pid(), libc::SIGCONT);
    }

    /// The answer to one of ZooKeeper's four letter words, such as `wchs`, `cons` or `mntr`.
    pub fn four_letter_word(&self, word: &str) -> String {
        ask(self.place.address(), word, Duration::from_secs(10))
            .unwrap_or_else(|error| panic!("{word}: {error}; the server's log ends with:\n{}", self.log()))
    }

    /// How many watches the server keeps, over all sessions.
    pub fn watch_count(&self) -> usize {
        // `wchs` leaves out those on children.
        let answer = self.four_letter_word("mntr");
        let total = answer.lines().find_map(|line| line.strip_prefix("zk_watch_count"));
        total.unwrap_or_else(|| panic!("mntr without a total: {answer}")).trim().parse().unwrap()
    }

    /// How many connections with a session the server has. The one that asks is not among them.
    pub fn connection_count(&self) -> usize {
        self.four_letter_word("cons").lines().filter(|line| line.contains("sid=0x")).count()
    }

    /// The last lines of the server's log, for failure messages.
    pub fn log(&self) -> String {
        tail(&self.directory.0)
    }

    fn server(&self) -> MutexGuard<'_, Option<Server>> {
        // A test that panicked while it held the lock must still be able to drop the server.
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the server says of its part: `standalone`, `leader` or `follower`; `None` where it does not serve.
    pub(crate) fn mode(&self) -> Option<String> {
        // A server that listens but does not serve yet may never answer the connection: ask again, on a new one.
        let answer = ask(self.place.address(), "srvr", Duration::from_millis(250)).ok()?;
        answer.lines().find_map(|line| line.strip_prefix("Mode: ")).map(|mode| mode.trim().to_owned())
    }

    pub(crate) fn wait_ready(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.mode().is_none() {
            let ended = self.server().as_mut().is_none_or(Server::has_ended);
            assert!(!ended, "ZooKeeper ended while starting; its log ends with:\n{}", self.log());
            assert!(Instant::now() < deadline, "ZooKeeper does not serve; its log ends with:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Options {
    /// The server's tick, 500 ms by default. The server expires sessions once per tick.
    pub fn tick_ms(mut self, milliseconds: u32) -> Self {
        self.tick_ms = milliseconds;
        self
    }

    /// How often the server removes empty container nodes, 250 ms by default (a production server takes a minute).
    pub fn container_sweep_ms(mut self, milliseconds: u32) -> Self {
        self.container_sweep_ms = milliseconds;
        self
    }

    /// Adds a line to the server's configuration file.
    pub fn config_line(mut self, line: &str) -> Self {
        self.config_lines.push(line.to_owned());
        self
    }

    /// Adds an argument to the JVM's command line, such as `-Dzookeeper.…=…`.
    pub fn jvm_argument(mut self, argument: &str) -> Self {
        self.jvm_arguments.push(argument.to_owned());
        self
    }

    /// Has the newest ZooKeeper run instead of Debian's, which loses what it has acknowledged, now and then, when leaders change often. Its
    /// version is in `tests/chaos/pom.xml`.
    pub fn newest(mut self) -> Self {
        let jars = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/zookeeper-newest");
        assert!(jars.exists(), "{} is missing: make setup", jars.display());
        self.jars = Some(jars);
        self
    }

    /// Has its files be on the disk, in the directory for temporary ones, and not in memory. They are forced there only if a JVM argument
    /// says so.
    pub fn on_disk(mut self) -> Self {
        self.medium = Medium::Disk;
        self
    }

    /// The server's number in its ensemble, whose members stand in further lines.
    pub(crate) fn id(mut self, id: usize) -> Self {
        self.id = Some(id);
        self
    }

    /// Has it run on a host of its own.
    pub(crate) fn host(mut self, host: &Arc<Host>) -> Self {
        self.host = Some(Arc::clone(host));
        self
    }

    /// Starts a server and waits until it serves.
    pub fn start(self) -> ZooKeeper {
        let zookeeper = self.prepare();
        zookeeper.restart();
        zookeeper
    }

    /// Gives a server its port and its directory, without starting it.
    pub(crate) fn prepare(mut self) -> ZooKeeper {
        let place = self.host.clone().map_or_else(|| Place::Loopback(Port::reserve()), Place::Host);
        let directory = Directory::create(self.medium);
        fs::write(directory.0.join("zoo.cfg"), self.config(place.address(), &directory))
            .expect("write the server's configuration");
        self.jvm_arguments.push(format!("-Dznode.container.checkIntervalMs={}", self.container_sweep_ms));
        if let Some(id) = self.id {
            let data = directory.0.join("data");
            fs::create_dir(&data).and_then(|()| fs::write(data.join("myid"), id.to_string())).expect("write myid");
        }
        ZooKeeper { server: Mutex::new(None), directory, place, options: self }
    }

    fn config(&self, address: SocketAddr, directory: &Directory) -> String {
        let (tick_ms, port, ip, data) = (self.tick_ms, address.port(), address.ip(), directory.0.join("data"));
        format!(
            "tickTime={tick_ms}\n\
             dataDir={data}\n\
             clientPort={port}\n\
             clientPortAddress={ip}\n\
             4lw.commands.whitelist=*\n\
             admin.enableServer=false\n\
             maxClientCnxns=0\n\
             minSessionTimeout=100\n\
             maxSessionTimeout=600000\n\
             {extra}\n",
            data = data.display(),
            extra = self.config_lines.join("\n"),
        )
    }
}

impl Default for Options {
    fn default() -> Self {
        let (config_lines, jvm_arguments) = (Vec::new(), Vec::new());
        let medium = Medium::Memory;
        Self {
            tick_ms: 500,
            container_sweep_ms: 250,
            config_lines,
            jvm_arguments,
            id: None,
            host: None,
            jars: None,
            medium,
        }
    }
}

impl Place {
    fn address(&self) -> SocketAddr {
        match self {
            Self::Loopback(port) => SocketAddr::from((Ipv4Addr::LOCALHOST, port.number())),
            Self::Host(host) => SocketAddr::new(IpAddr::V4(host.address()), CLIENT_PORT),
        }
    }
}

/// Starts the server, prints its pid, and kills it and removes its directory once its own standard input ends: that is,
/// when the test process is gone for whatever reason. (PR_SET_PDEATHSIG would fire when the starting thread ends, and each
/// test has its own.) If the server ends first, so does the supervisor, and the directory stays.
const SUPERVISOR: &str = r#"
directory=$1
shift
exec 3<&0
"$@" >>"$directory/server.log" 2>&1 3<&- &
server=$!
echo $server
{ cat <&3 >/dev/null; trap '' TERM; kill -9 $server; true; } &
watcher=$!
wait $server
kill -TERM $watcher
wait $watcher && rm -rf "$directory"
"#;

/// A running JVM under its supervisor.
struct Server {
    pid: i32,
    supervisor: Child,
}

impl Server {
    fn start(directory: &Path, options: &Options) -> Self {
        let main = if options.id.is_some() { "quorum.QuorumPeerMain" } else { "ZooKeeperServerMain" };
        let mut command = Command::new("sh");
        options.host.iter().for_each(|host| host.run_here(&mut command));
        let mut supervisor = command
            .args(["-c", SUPERVISOR, "supervisor"])
            .arg(directory)
            .args(["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"])
            .arg("-Dzookeeper.forceSync=no")
            .args(&options.jvm_arguments)
            .args(["-cp", &class_path(options.jars.as_deref()), &format!("org.apache.zookeeper.server.{main}")])
            .arg(directory.join("zoo.cfg"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Ctrl-C ends the test process alone; the supervisor sees that and cleans up.
            .process_group(0)
            .spawn()
            .expect("start sh");
        let mut line = String::new();
        BufReader::new(supervisor.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { pid: line.trim().parse().expect("the supervisor prints the server's pid"), supervisor }
    }

    fn has_ended(&mut self) -> bool {
        self.supervisor.try_wait().unwrap().is_some()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // While the supervisor has not ended, the pid is still that of our server.
        if !self.has_ended() {
            process::signal(self.pid, libc::SIGKILL);
        }
        // `Child::wait` would close the supervisor's standard input first, and the directory would go.
        let stdin = self.supervisor.stdin.take();
        self.supervisor.wait().unwrap();
        drop(stdin);
    }
}

/// A directory of our own, removed on drop.
struct Directory(PathBuf);

impl Directory {
    fn create(medium: Medium) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let name = format!("zklock-rig-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let on_disk = || make(std::env::temp_dir().join(&name));
            // The servers write their transaction logs there.
            let made = match medium {
                Medium::Memory => make(Path::new("/dev/shm").join(&name)).or_else(|_| on_disk()),
                Medium::Disk => on_disk(),
            };
            match made {
                Ok(path) => return Self(path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("create a directory for the server: {error}"),
            }
        }
    }
}

fn make(path: PathBuf) -> io::Result<PathBuf> {
    fs::create_dir(&path).map(|()| path)
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The jars of Debian's package, or all jars of that directory or of the one in ZKLOCK_TEST_ZOOKEEPER_JARS (`lib` of a release
/// tarball).
fn class_path(jars: Option<&Path>) -> String {
    let debian = "/usr/share/java";
    let wanted = std::env::var("ZKLOCK_TEST_ZOOKEEPER_JARS").ok();
    let directory = wanted.or_else(|| jars.map(|jars| jars.display().to_string())).unwrap_or_else(|| debian.to_owned());
    if directory != debian {
        return format!("{directory}/*");
    }
    assert!(
        Path::new(debian).join("zookeeper.jar").exists() && java_is_installed(),
        "the tests need a ZooKeeper server: apt-get install zookeeper (as root), or make setup"
    );
    format!("{debian}/zookeeper.jar:{debian}/slf4j-simple.jar")
}

fn java_is_installed() -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join("java").exists()))
}

fn ask(address: SocketAddr, word: &str, limit: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(word.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn tail(directory: &Path) -> String {
    let log = fs::read(directory.join("server.log")).unwrap_or_default();
    let text = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
