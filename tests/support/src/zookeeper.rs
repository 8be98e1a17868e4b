//! A real ZooKeeper server for one test. The test can stop, pause and restart it. The server ends with the test.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::TEST_TIMEOUT;
use crate::certificates::Certificates;
use crate::directory::{Directory, Storage};
use crate::network::Host;
use crate::port::Port;
use crate::process;

/// The port of a server that runs on its own host.
pub(crate) const CLIENT_PORT: u16 = 2181;
/// The TLS port of a server that runs on its own host.
const TLS_PORT: u16 = 2281;

/// A ZooKeeper server on loopback or on its own host, with its own port and data directory.
///
/// Dropping it kills the server and removes its data. If the test process ends without dropping it, a supervisor
/// process does the same. All methods take `&self`, so that a test can stop or pause the server while other threads use
/// it.
pub struct ZooKeeper {
    // The fields are dropped in this order: the server, its data, its port.
    server: Mutex<Option<ServerProcess>>,
    directory: Directory,
    endpoint: Endpoint,
    options: Options,
}

/// The address of a server.
enum Endpoint {
    Loopback { plain: Port, tls: Option<Port> },
    Host(Arc<Host>),
}

/// What a server does with the certificate of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// It does not ask for one.
    None,
    /// It accepts clients without a certificate, and refuses a wrong one.
    Want,
    /// It requires one.
    Need,
}

/// The versions of TLS that a server supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsVersions {
    /// TLS 1.2, the default of ZooKeeper 3.8.
    Only12,
    /// TLS 1.3.
    Only13,
    /// Both.
    Both,
}

/// The TLS port of a server.
#[derive(Clone, Debug)]
pub struct TlsListener {
    identity: PathBuf,
    authorities: PathBuf,
    client_auth: ClientAuth,
    versions: TlsVersions,
    is_unified: bool,
}

/// Options to start a [`ZooKeeper`].
#[derive(Clone)]
pub struct Options {
    pub(crate) tick_ms: u32,
    container_sweep_ms: u32,
    config_lines: Vec<String>,
    jvm_arguments: Vec<String>,
    /// The content of the JAAS file.
    jaas: Option<String>,
    /// The number of the server in its ensemble.
    id: Option<usize>,
    host: Option<Arc<Host>>,
    /// The directory of the jars of another ZooKeeper version.
    jars: Option<PathBuf>,
    storage: Storage,
    tls: Option<TlsListener>,
}

impl ZooKeeper {
    /// Starts a server with the default [`Options`] and waits until it serves.
    pub fn start() -> Self {
        Self::options().start()
    }

    /// The default options. Change them as needed, then call [`Options::start`].
    pub fn options() -> Options {
        Options::default()
    }

    /// One server for all tests of a test binary. A test that uses it must keep to its own paths and must not disturb
    /// the server.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<ZooKeeper> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// The connect string of the server, such as `127.0.0.1:port`. It does not change after a
    /// [`restart`](Self::restart).
    pub fn address(&self) -> String {
        self.endpoint.address().to_string()
    }

    /// Like [`address`](Self::address), of the port that accepts TLS.
    pub fn tls_address(&self) -> String {
        let listener = self.options.tls.as_ref().expect("the server has no TLS port");
        self.endpoint.tls_address(listener).unwrap_or_else(|| self.endpoint.address()).to_string()
    }

    /// The port of the server.
    pub fn port(&self) -> u16 {
        self.endpoint.address().port()
    }

    /// The directory of the transaction logs and snapshots. It exists until the value is dropped.
    pub fn log_directory(&self) -> PathBuf {
        self.directory.path().join("data/version-2")
    }

    /// The process id of the running JVM.
    pub fn pid(&self) -> i32 {
        self.server().as_ref().expect("the server is stopped").pid
    }

    /// Kills the server with SIGKILL and waits until it has ended. The data remains, and the port refuses connections.
    pub fn stop(&self) {
        self.server().take();
    }

    /// Kills the server if it runs, starts it with the same port and data, and waits until it serves.
    pub fn restart(&self) {
        self.start_process();
        self.wait_ready();
    }

    /// Like [`restart`](Self::restart), but the server has lost its data: it knows no node and no session.
    pub fn restart_empty(&self) {
        self.stop();
        fs::remove_dir_all(self.log_directory()).expect("remove the data");
        self.restart();
    }

    /// Kills the server if it runs, and starts it without waiting. A member of an ensemble serves only together with
    /// the others.
    pub(crate) fn start_process(&self) {
        let mut server = self.server();
        server.take();
        *server = Some(ServerProcess::start(self.directory.path(), &self.options));
    }

    /// Pauses the server with SIGSTOP and waits until all its threads have stopped. Its connections stay open and
    /// silent.
    pub fn pause(&self) {
        process::pause(self.pid());
    }

    /// Resumes a paused server.
    pub fn resume(&self) {
        process::signal(self.pid(), libc::SIGCONT);
    }

    /// Sends one of ZooKeeper's four-letter words, such as `wchs`, `cons` or `mntr`, and returns the answer.
    pub fn four_letter_word(&self, word: &str) -> String {
        send_four_letter_word(self.endpoint.address(), word, TEST_TIMEOUT)
            .unwrap_or_else(|error| panic!("{word}: {error}; the server's log ends with:\n{}", self.log()))
    }

    /// The number of watches on the server, of all sessions.
    pub fn watch_count(&self) -> usize {
        // `wchs` does not count the watches on children.
        let answer = self.four_letter_word("mntr");
        let total = answer.lines().find_map(|line| line.strip_prefix("zk_watch_count"));
        total.unwrap_or_else(|| panic!("the answer to mntr has no total: {answer}")).trim().parse().unwrap()
    }

    /// The number of connections that have a session. The connection of this query does not count.
    pub fn connection_count(&self) -> usize {
        self.four_letter_word("cons").lines().filter(|line| line.contains("sid=0x")).count()
    }

    /// The end of the log, for failure messages.
    pub fn log(&self) -> String {
        tail(self.directory.path())
    }

    fn server(&self) -> MutexGuard<'_, Option<ServerProcess>> {
        // A test that panicked while it held the mutex must still be able to drop the server.
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds lines to the configuration file of a server that has not started yet.
    pub(crate) fn add_config_lines(&self, lines: &[String]) {
        let file = self.directory.path().join("zoo.cfg");
        let before = fs::read_to_string(&file).expect("read the server's configuration");
        fs::write(file, format!("{before}{}\n", lines.join("\n"))).expect("write the server's configuration");
    }

    /// The role that the server reports: `standalone`, `leader` or `follower`. `None` if the server does not serve.
    pub(crate) fn mode(&self) -> Option<String> {
        // A server that listens but does not serve yet may never answer on this connection. The caller must ask again
        // on a new one.
        let answer = send_four_letter_word(self.endpoint.address(), "srvr", Duration::from_secs(1)).ok()?;
        answer.lines().find_map(|line| line.strip_prefix("Mode: ")).map(|mode| mode.trim().to_owned())
    }

    /// Whether the TLS port accepts connections, if the server has one. The server opens it last.
    fn accepts_tls(&self) -> bool {
        let address = self.options.tls.as_ref().and_then(|listener| self.endpoint.tls_address(listener));
        address.is_none_or(|address| TcpStream::connect_timeout(&address, Duration::from_millis(250)).is_ok())
    }

    pub(crate) fn wait_ready(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.mode().is_none() || !self.accepts_tls() {
            let ended = self.server().as_mut().is_none_or(ServerProcess::has_ended);
            assert!(!ended, "ZooKeeper ended while starting; its log ends with:\n{}", self.log());
            assert!(Instant::now() < deadline, "ZooKeeper does not serve; its log ends with:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Options {
    /// The server's tick, 500 ms by default. The server expires sessions once in each tick.
    pub fn tick_ms(mut self, milliseconds: u32) -> Self {
        self.tick_ms = milliseconds;
        self
    }

    /// The interval at which the server deletes empty containers, 250 ms by default. The default of a production server
    /// is one minute.
    pub fn container_sweep_ms(mut self, milliseconds: u32) -> Self {
        self.container_sweep_ms = milliseconds;
        self
    }

    /// Adds a line to the configuration file of the server.
    pub fn config_line(mut self, line: &str) -> Self {
        self.config_lines.push(line.to_owned());
        self
    }

    /// Adds an argument to the command line of the JVM, such as `-Dzookeeper.…=…`.
    pub fn jvm_argument(mut self, argument: &str) -> Self {
        self.jvm_arguments.push(argument.to_owned());
        self
    }

    /// Offers SASL with DIGEST-MD5 to these users with their passwords.
    pub fn sasl_users(self, users: &[(&str, &str)]) -> Self {
        let quote = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        let users: String =
            users.iter().map(|(user, password)| format!("\n  user_{user}={}", quote(password))).collect();
        let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
        self.jaas(&format!("Server {{\n  {module} required{users};\n}};\n"))
    }

    /// Offers SASL with a JAAS file of this content, which must have a section `Server`.
    pub fn jaas(mut self, content: &str) -> Self {
        self.jaas = Some(content.to_owned());
        self.config_line("authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider")
    }

    /// Refuses clients that do not use SASL.
    pub fn require_sasl(self) -> Self {
        self.config_line("enforce.auth.enabled=true").config_line("enforce.auth.schemes=sasl")
    }

    /// Uses the newest ZooKeeper instead of Debian's version. Debian's version sometimes loses acknowledged
    /// transactions if the leader changes often. `tests/chaos/pom.xml` names the newest version.
    pub fn newest(mut self) -> Self {
        let jars = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/zookeeper-newest");
        assert!(jars.exists(), "{} is missing: make setup", jars.display());
        self.jars = Some(jars);
        self
    }

    /// Stores the files on disk, in the directory for temporary files, instead of in memory. The server syncs them to
    /// the disk only if a JVM argument requests it.
    pub fn on_disk(mut self) -> Self {
        self.storage = Storage::Disk;
        self
    }

    /// Adds a port that accepts TLS. The port for plain text remains, because the methods of [`ZooKeeper`] use it.
    pub fn tls(mut self, listener: &TlsListener) -> Self {
        self.tls = Some(listener.clone());
        self
    }

    /// The number of the server in its ensemble. Configuration lines name the members.
    pub(crate) fn id(mut self, id: usize) -> Self {
        self.id = Some(id);
        self
    }

    /// Runs the server on its own host.
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

    /// Assigns the port and the directory of a server, without starting it.
    pub(crate) fn prepare(mut self) -> ZooKeeper {
        let tls = self.tls.as_ref().filter(|listener| !listener.is_unified);
        let endpoint = match &self.host {
            Some(host) => Endpoint::Host(Arc::clone(host)),
            None => Endpoint::Loopback { plain: Port::reserve(), tls: tls.map(|_| Port::reserve()) },
        };
        if let Some(listener) = &self.tls {
            self.config_lines.extend(listener.config(endpoint.tls_address(listener)));
        }
        let directory = Directory::create(self.storage);
        fs::write(directory.path().join("zoo.cfg"), self.config(endpoint.address(), &directory))
            .expect("write the server's configuration");
        if let Some(jaas) = &self.jaas {
            let file = directory.path().join("jaas.conf");
            fs::write(&file, jaas).expect("write the JAAS file");
            self.jvm_arguments.push(format!("-Djava.security.auth.login.config={}", file.display()));
        }
        self.jvm_arguments.push(format!("-Dznode.container.checkIntervalMs={}", self.container_sweep_ms));
        if let Some(id) = self.id {
            let data = directory.path().join("data");
            fs::create_dir(&data).and_then(|()| fs::write(data.join("myid"), id.to_string())).expect("write myid");
        }
        ZooKeeper { server: Mutex::new(None), directory, endpoint, options: self }
    }

    fn config(&self, address: SocketAddr, directory: &Directory) -> String {
        let (tick_ms, port, ip, data) = (self.tick_ms, address.port(), address.ip(), directory.path().join("data"));
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
        let (storage, tls) = (Storage::Memory, None);
        Self {
            tick_ms: 500,
            container_sweep_ms: 250,
            config_lines,
            jvm_arguments,
            jaas: None,
            id: None,
            host: None,
            jars: None,
            storage,
            tls,
        }
    }
}

impl TlsListener {
    /// A TLS port with the identity `server` of these certificates, which requires a certificate of their authority
    /// from each client, and supports TLS 1.2 and 1.3.
    pub fn new(certificates: &Certificates) -> Self {
        Self {
            identity: certificates.path("server.both.pem"),
            authorities: certificates.path("ca.pem"),
            client_auth: ClientAuth::Need,
            versions: TlsVersions::Both,
            is_unified: false,
        }
    }

    /// What the server does with the certificate of a client.
    pub fn client_auth(mut self, client_auth: ClientAuth) -> Self {
        self.client_auth = client_auth;
        self
    }

    /// The versions of TLS that the server supports.
    pub fn versions(mut self, versions: TlsVersions) -> Self {
        self.versions = versions;
        self
    }

    /// Accepts TLS and plain text on the same port (`client.portUnification`).
    pub fn unified(mut self) -> Self {
        self.is_unified = true;
        self
    }

    /// The lines of the configuration file. Without `address`, the client port accepts TLS as well.
    fn config(&self, address: Option<SocketAddr>) -> Vec<String> {
        let client_auth = match self.client_auth {
            ClientAuth::None => "none",
            ClientAuth::Want => "want",
            ClientAuth::Need => "need",
        };
        // `ssl.protocol` is the newest version that a server supports.
        let (protocol, protocols) = match self.versions {
            TlsVersions::Only12 => ("TLSv1.2", "TLSv1.2"),
            TlsVersions::Only13 => ("TLSv1.3", "TLSv1.3"),
            TlsVersions::Both => ("TLSv1.3", "TLSv1.3,TLSv1.2"),
        };
        let (identity, authorities) = (self.identity.display(), self.authorities.display());
        let mut lines = match address {
            Some(address) => {
                vec![
                    format!("secureClientPort={}", address.port()),
                    format!("secureClientPortAddress={}", address.ip()),
                ]
            }
            None => vec!["client.portUnification=true".to_owned()],
        };
        lines.extend([
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory".to_owned(),
            format!("ssl.keyStore.location={identity}"),
            "ssl.keyStore.type=PEM".to_owned(),
            format!("ssl.trustStore.location={authorities}"),
            "ssl.trustStore.type=PEM".to_owned(),
            format!("ssl.clientAuth={client_auth}"),
            // Otherwise the server resolves the address of each client.
            "ssl.hostnameVerification=false".to_owned(),
            "authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider".to_owned(),
            format!("ssl.protocol={protocol}"),
            format!("ssl.enabledProtocols={protocols}"),
            // The defaults of ZooKeeper 3.8 contain no cipher suite of TLS 1.3.
            "ssl.ciphersuites=TLS_AES_128_GCM_SHA256,TLS_AES_256_GCM_SHA384,TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
                .to_owned(),
        ]);
        lines
    }
}

impl Endpoint {
    fn address(&self) -> SocketAddr {
        match self {
            Self::Loopback { plain, .. } => SocketAddr::from((Ipv4Addr::LOCALHOST, plain.number())),
            Self::Host(host) => SocketAddr::new(IpAddr::V4(host.address()), CLIENT_PORT),
        }
    }

    /// The address of a separate TLS port.
    fn tls_address(&self, listener: &TlsListener) -> Option<SocketAddr> {
        let port = match self {
            _ if listener.is_unified => return None,
            Self::Loopback { tls, .. } => tls.as_ref()?.number(),
            Self::Host(_) => TLS_PORT,
        };
        Some(SocketAddr::new(self.address().ip(), port))
    }
}

/// Starts the server and prints its pid. When the standard input of the script ends, it kills the server and removes
/// the directory; the input ends when the test process has ended for any reason. If the server ends first, the script
/// ends too and leaves the directory. PR_SET_PDEATHSIG is not suitable, because it takes effect when the starting
/// thread ends, and each test has its own thread.
const SUPERVISOR: &str = r#"
{ echo 5 >/proc/self/autogroup; } 2>/dev/null
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

impl Drop for ZooKeeper {
    /// If the test has failed, prints the last lines that the server has logged.
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the log of the server at {} ends with:\n{}", self.address(), self.log());
        }
    }
}

/// Options of a JVM that runs for seconds. It compiles a method only after many calls, which halves the time of its
/// compiler.
pub(crate) const JVM_OPTIONS: [&str; 4] =
    ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:CompileThresholdScaling=5", "-XX:-UsePerfData"];

/// A running JVM with its supervisor process.
struct ServerProcess {
    pid: i32,
    supervisor: Child,
}

impl ServerProcess {
    fn start(directory: &Path, options: &Options) -> Self {
        let main = if options.id.is_some() { "quorum.QuorumPeerMain" } else { "ZooKeeperServerMain" };
        // Ctrl-C ends only the test process; the supervisor notices this and cleans up. Linux also divides the
        // processors between sessions. With a separate session, the server answers in time even if many tests run. The
        // session has a low weight, so a server that starts takes little time from the tests.
        let mut command = Command::new("setsid");
        options.host.iter().for_each(|host| host.run_here(&mut command));
        let mut supervisor = command
            .args(["sh", "-c", SUPERVISOR, "supervisor"])
            .arg(directory)
            .arg("java")
            .args(JVM_OPTIONS)
            .arg("-Xmx256m")
            .arg("-Dzookeeper.forceSync=no")
            // In an election, a server that has missed a message sends its vote again. By default, it waits longer
            // before each repetition, up to a minute.
            .arg("-Dzookeeper.fastleader.maxNotificationInterval=800")
            .args(&options.jvm_arguments)
            .args(["-cp", &class_path(options.jars.as_deref()), &format!("org.apache.zookeeper.server.{main}")])
            .arg(directory.join("zoo.cfg"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("start setsid");
        let mut line = String::new();
        BufReader::new(supervisor.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { pid: line.trim().parse().expect("the supervisor prints the server's pid"), supervisor }
    }

    fn has_ended(&mut self) -> bool {
        self.supervisor.try_wait().unwrap().is_some()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // As long as the supervisor runs, the pid still belongs to the server.
        if !self.has_ended() {
            process::signal(self.pid, libc::SIGKILL);
        }
        // `Child::wait` would close the standard input of the supervisor first, and the supervisor would remove the
        // directory.
        let stdin = self.supervisor.stdin.take();
        self.supervisor.wait().unwrap();
        drop(stdin);
    }
}

/// The class path: the jars of Debian's package, or all jars of the directory in TEST_ZKLOCK_ZOOKEEPER_JARS (`lib` of a
/// release tarball), or all jars of the directory `jars`.
fn class_path(jars: Option<&Path>) -> String {
    let debian = "/usr/share/java";
    let wanted = std::env::var("TEST_ZKLOCK_ZOOKEEPER_JARS").ok();
    let directory = wanted.or_else(|| jars.map(|jars| jars.display().to_string())).unwrap_or_else(|| debian.to_owned());
    if directory != debian {
        return format!("{directory}/*");
    }
    assert!(
        Path::new(debian).join("zookeeper.jar").exists() && java_is_installed(),
        "the tests need a ZooKeeper server: apt-get install zookeeper (as root), or make setup"
    );
    // TLS needs netty-codec.jar, which the manifest of zookeeper.jar does not name.
    format!("{debian}/zookeeper.jar:{debian}/netty-codec.jar:{debian}/slf4j-simple.jar")
}

fn java_is_installed() -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join("java").exists()))
}

fn send_four_letter_word(address: SocketAddr, word: &str, limit: Duration) -> io::Result<String> {
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
