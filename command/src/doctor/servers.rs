//! Checks each server of the list on its own: its name, its port, a session, and what it says about itself.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::mpsc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use zklock::{Client, Error, Server, Status};

use super::finding::{Finding, milliseconds};
use super::words::{self, Answer, ServerState};
use crate::duration::show;
use crate::exit::{Exit, Failure};
use crate::settings::Settings;

/// The time limit of each step.
const LIMIT: Duration = Duration::from_secs(5);
/// The number of requests whose round trip is measured.
const ROUND_TRIPS: usize = 5;
/// The oldest version of ZooKeeper with which zklock works, and the oldest version that is recommended.
const OLDEST: [u32; 3] = [3, 5, 0];
const RECOMMENDED: [u32; 3] = [3, 9, 4];
/// A shorter session timeout ends sessions during short pauses of a program or of the network.
const SHORT_SESSION: Duration = Duration::from_secs(4);

/// The advice if a server closes new connections.
const TOO_MANY: &str = "The server accepts at most maxClientCnxns connections from one address, 60 by default. Raise this limit, or use fewer clients on this host. A port for TLS needs the options tls.*.";

/// The result of the checks of one server.
#[derive(Debug)]
pub(crate) struct ServerCheck {
    server: String,
    findings: Vec<Finding>,
    /// The negotiated session timeout, if the server accepted a session.
    session_timeout: Option<Duration>,
    state: Option<ServerState>,
    sessions: Option<Vec<i64>>,
}

impl ServerCheck {
    /// Returns whether the server has accepted a session.
    pub(crate) const fn is_available(&self) -> bool {
        self.session_timeout.is_some()
    }

    /// Returns the findings. If another server works, a failure of this one is a warning.
    pub(crate) fn findings(&self, is_other_available: bool) -> impl Iterator<Item = Finding> {
        let tolerate = is_other_available && !self.is_available();
        self.findings.iter().cloned().map(move |finding| if tolerate { finding.tolerated() } else { finding })
    }

    /// Returns the sessions of the ensemble, if this server knows them.
    pub(crate) fn sessions(&self) -> Option<&[i64]> {
        self.sessions.as_deref()
    }
}

/// Checks one server.
pub(crate) fn check(server: &Server, chroot: &str, settings: &Settings) -> ServerCheck {
    let mut check = ServerCheck {
        server: server.to_string(),
        findings: Vec::new(),
        session_timeout: None,
        state: None,
        sessions: None,
    };
    if let Some(addresses) = check.resolve(server)
        && let Some(address) = check.connect(&addresses)
    {
        if !settings.config.uses_tls() {
            check.ask(&address);
        }
        check.open_session(chroot, settings);
    }
    check
}

impl ServerCheck {
    fn add(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// Looks up the name of the server.
    fn resolve(&mut self, server: &Server) -> Option<Vec<SocketAddr>> {
        let (sender, receiver) = mpsc::channel();
        let name = (server.host.clone(), server.port);
        // The system has no time limit for a lookup. A thread that takes longer ends with the process.
        let look_up = move || drop(sender.send(name.to_socket_addrs().map(Iterator::collect::<Vec<_>>)));
        let started = Instant::now();
        if let Err(error) = Builder::new().spawn(look_up) {
            let failure = Failure::system("starting a thread", error);
            self.add(Finding::fail("name", &self.server, failure).advise("Raise the limit on processes (ulimit -u)."));
            return None;
        }
        let failed = |why: String| Failure::new(Exit::Unavailable, format!("the name {} {why}", server.host));
        let advice = "Check the name in the server list, /etc/resolv.conf and /etc/hosts: getent hosts NAME shows what this host sees.";
        let failure = match receiver.recv_timeout(LIMIT) {
            Ok(Ok(addresses)) if !addresses.is_empty() => {
                let list: Vec<String> = addresses.iter().map(|address| address.ip().to_string()).collect();
                let took = milliseconds(started.elapsed());
                self.add(Finding::ok("name", &self.server, format!("{} after {took}", list.join(", "))));
                return Some(addresses);
            }
            Ok(Ok(_)) => failed("has no address".to_owned()),
            Ok(Err(error)) => failed(format!("cannot be resolved: {error}")),
            Err(_) => failed(format!("was not resolved within {}", show(LIMIT))),
        };
        self.add(Finding::fail("name", &self.server, failure).advise(advice));
        None
    }

    /// Connects to the port. Returns the first address that answers.
    fn connect(&mut self, addresses: &[SocketAddr]) -> Option<SocketAddr> {
        let mut found = None;
        for address in addresses {
            let started = Instant::now();
            let target = format!("{} ({})", self.server, address.ip());
            match TcpStream::connect_timeout(address, LIMIT) {
                Ok(_) => {
                    self.add(Finding::ok("port", target, format!("open after {}", milliseconds(started.elapsed()))));
                    found = found.or(Some(*address));
                }
                Err(error) => {
                    let failure = Failure::new(Exit::Unavailable, format!("no connection: {error}"));
                    // A server that has too many connections can close a new one before this call returns.
                    let advice = match is_closed(&error) {
                        true => TOO_MANY,
                        false => {
                            "Check that the server runs, that it listens on this address and port, and that no firewall is between."
                        }
                    };
                    self.add(Finding::fail("port", target, failure).advise(advice));
                }
            }
        }
        if found.is_some() {
            // The client tries the next address of the name.
            self.findings.iter_mut().for_each(|finding| *finding = finding.clone().tolerated());
        }
        found
    }

    /// Asks the server what it knows about itself.
    fn ask(&mut self, address: &SocketAddr) {
        match words::ask(address, "srvr", LIMIT) {
            Ok(Answer::Text(text)) => match ServerState::parse(&text) {
                Some(state) => self.describe(address, state),
                None if text.is_empty() => self.add_refusal(),
                None => self.add(Finding::warn("server", &self.server, "the answer to srvr is not that of ZooKeeper").advise(
                    "Check that the port is the client port of a ZooKeeper server. A port for TLS needs the options tls.*.",
                )),
            },
            Ok(Answer::NotAllowed) => {
                let finding = Finding::ok("server", &self.server, "the word srvr is not allowed, so version and state are unknown");
                self.add(finding.advise("To see them, add srvr to 4lw.commands.whitelist of the server."));
            }
            Ok(Answer::NotServing) => {
                let failure = Failure::new(Exit::Unavailable, "the server runs, but its ensemble has no quorum");
                let finding = Finding::fail("server", &self.server, failure);
                self.add(finding.advise("Start the other servers of the ensemble, and check their connections to each other."));
            }
            Err(error) if is_closed(&error) => self.add_refusal(),
            Err(error) => self.add(
                Finding::warn("server", &self.server, format!("no answer to srvr: {}", describe_timeout(&error)))
                    .advise("The server accepts connections but does not answer: look at its log, its memory and its disk."),
            ),
        }
    }

    /// Reports that the server has closed the connection at once.
    fn add_refusal(&mut self) {
        let detail = "the server closed the connection without an answer to srvr";
        self.add(Finding::warn("server", &self.server, detail).advise(TOO_MANY));
    }

    fn describe(&mut self, address: &SocketAddr, state: ServerState) {
        let ServerState { version, mode, connections, latency, .. } = &state;
        let detail =
            format!("ZooKeeper {version}, {mode}, {connections} connections, latency min/avg/max {latency} ms");
        let finding = if state.is_older_than(OLDEST) {
            let failure = Failure::new(Exit::Unavailable, detail);
            Finding::fail("server", &self.server, failure).advise("zklock needs ZooKeeper 3.5 or later.")
        } else if state.is_older_than(RECOMMENDED) && !state.is_standalone_of_zklock {
            Finding::warn("server", &self.server, detail)
                .advise("Update to ZooKeeper 3.9.4 or later: older servers have lost acknowledged transactions.")
        } else {
            Finding::ok("server", &self.server, detail)
        };
        self.add(finding);
        if state.knows_all_sessions()
            && let Ok(Answer::Text(dump)) = words::ask(address, "dump", LIMIT)
        {
            self.sessions = words::sessions(&dump);
        }
        self.state = Some(state);
    }

    /// Opens a session on this server only.
    fn open_session(&mut self, chroot: &str, settings: &Settings) {
        let config = settings.config.clone().connect_timeout(LIMIT);
        let (security, identity) = (
            if config.uses_tls() { "the TLS handshake succeeded" } else { "without TLS" },
            if config.uses_credentials() { "the server accepted the credentials" } else { "without credentials" },
        );
        let started = Instant::now();
        let opened = Client::connect(&format!("{}{chroot}", self.server), &config);
        let took = milliseconds(started.elapsed());
        let measured = opened.and_then(|client| Ok((client.session_timeout()?, round_trip(&client)?, client)));
        match measured {
            Ok((timeout, round_trip, client)) => {
                // A server before version 3.7 does not know the request, and the session is no longer needed.
                let names = zklock::internal::identities(&client).map(|names| names.join(", "));
                let names = names.map(|names| format!("; the server knows this client as {names}")).unwrap_or_default();
                self.add(Finding::ok(
                    "session",
                    &self.server,
                    format!("accepted after {took}; {security}; {identity}{names}"),
                ));
                self.add(timeout_finding(&self.server, timeout));
                self.add(round_trip_finding(&self.server, round_trip, timeout));
                self.session_timeout = Some(timeout);
            }
            Err(error) => {
                let advice = session_advice(&error, settings);
                self.add(Finding::fail("session", &self.server, error.into()).advise(advice));
            }
        }
    }
}

/// Returns whether the server has closed a connection that it had accepted.
fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

/// Describes an error of a connection with a time limit. The kernel reports the end of the limit as EAGAIN.
fn describe_timeout(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!("nothing within {} s", LIMIT.as_secs()),
        _ => error.to_string(),
    }
}

/// Measures the median round trip of a request that the server answers itself.
fn round_trip(client: &Client) -> zklock::Result<Duration> {
    let mut times = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let started = Instant::now();
        client.read_node("/zklock_doctor")?;
        times.push(started.elapsed());
    }
    times.sort_unstable();
    Ok(times.get(ROUND_TRIPS / 2).copied().unwrap_or_default())
}

fn timeout_finding(server: &str, timeout: Duration) -> Finding {
    let detail = format!("the negotiated session timeout is {}", show(timeout));
    if timeout < SHORT_SESSION {
        return Finding::warn("timeout", server, detail)
            .advise("A pause of this length loses all locks. Set session.timeout to 10000 or more, and check maxSessionTimeout of the server.");
    }
    Finding::ok("timeout", server, detail)
}

fn round_trip_finding(server: &str, round_trip: Duration, timeout: Duration) -> Finding {
    let detail = format!("a read takes {}", milliseconds(round_trip));
    // A client sends a heartbeat six times in a session timeout.
    if round_trip > timeout / 50 {
        return Finding::warn("round trip", server, detail)
            .advise("Heartbeats need several round trips in each session timeout. Set a longer session.timeout, or use nearer servers.");
    }
    Finding::ok("round trip", server, detail)
}

/// Says what to do if a server refuses a session.
fn session_advice(error: &Error, settings: &Settings) -> &'static str {
    match error.status() {
        Status::Auth if settings.config.uses_tls() => {
            "Check the certificates (tls.ca, tls.cert, tls.key, and the name in the certificate of the server) and the credentials (auth.*, sasl.*)."
        }
        Status::Auth => {
            "Check the credentials: auth.digest, auth.digest_file, sasl.*, and the identities that the server accepts."
        }
        Status::Server => "Check the chroot at the end of the server list.",
        Status::Invalid => "Correct the option that the message names.",
        Status::Denied => "Ask the owner of the chroot for access, or check the credentials.",
        _ if settings.config.uses_tls() => {
            "The port is open. Check that it is a port for TLS (secureClientPort), and the log of the server."
        }
        _ => {
            "The port is open. Check that it is no port for TLS, that the ensemble has a quorum, and maxClientCnxns and the log of the server."
        }
    }
}

/// Compares the servers with each other.
pub(crate) fn compare(checks: &[ServerCheck]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let available = checks.iter().filter(|check| check.is_available()).count();
    if available < checks.len() && available > 0 {
        let detail = format!("{available} of {} servers accept a session", checks.len());
        findings.push(
            Finding::warn("ensemble", "all", detail)
                .advise("Locks work as long as one of these servers belongs to the quorum."),
        );
    }
    let states = || checks.iter().filter_map(|check| check.state.as_ref());
    let with_mode = |mode: &str| states().filter(|state| state.mode == mode).count();
    let (standalone, leaders) = (with_mode("standalone"), with_mode("leader"));
    if leaders > 1 || (standalone > 0 && states().count() > 1) {
        let failure = Failure::new(
            Exit::Unavailable,
            format!(
                "the list has {leaders} leaders and {standalone} standalone servers, so it names servers of different ensembles"
            ),
        );
        findings.push(
            Finding::fail("ensemble", "all", failure)
                .advise("List only servers of one ensemble. Otherwise two participants can hold the same lock on different ensembles."),
        );
    }
    let versions: std::collections::BTreeSet<&str> = states().map(|state| state.version.as_str()).collect();
    if versions.len() > 1 {
        let versions: Vec<&str> = versions.into_iter().collect();
        let detail = format!("the servers have the versions {}", versions.join(", "));
        findings.push(Finding::warn("ensemble", "all", detail).advise("Finish the update of the servers."));
    }
    let timeouts: std::collections::BTreeSet<Duration> =
        checks.iter().filter_map(|check| check.session_timeout).collect();
    if timeouts.len() > 1 {
        let timeouts: Vec<String> = timeouts.into_iter().map(show).collect();
        let detail = format!("the servers negotiate the session timeouts {}", timeouts.join(", "));
        findings.push(
            Finding::warn("ensemble", "all", detail)
                .advise("Give all servers the same tickTime, minSessionTimeout and maxSessionTimeout."),
        );
    }
    findings
}
