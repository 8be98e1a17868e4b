//! One run: it starts servers and programs, injects faults, waits for recovery, and runs the checker.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use zklock_test_support::{Certificates, Ensemble, Identity, Network, Options, TlsListener, Validity, ZooKeeper};

use crate::checker::{CheckInput, CheckReport, check};
use crate::clock::{self, Offsets};
use crate::history::Process;
use crate::nemesis::{Fault, FaultTargets, Nemesis};
use crate::operator::Operator;
use crate::programs::{Language, Program, ProgramOptions, profile_directory};
use crate::server_log::{self, Node, ServerHistory, Transaction};
use crate::store::Store;
use crate::trace::Nanos;

/// The tick of the servers. A server expires a session within one tick.
const TICK_MS: u32 = 500;
/// The number of ticks after which the followers give up a leader that sends nothing.
const SYNC_LIMIT: u32 = 6;
/// The time limit for all programs to connect before the first fault, if their certificates change.
const START_LIMIT: Duration = Duration::from_secs(60);
/// The time limit for the servers to recover.
const RECOVERY: Duration = Duration::from_secs(60);
/// The time limit for all programs to acquire every lock once more after the recovery.
const FINAL_ROUND_LIMIT: Duration = Duration::from_secs(120);

/// The parameters of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed of all random choices.
    pub seed: u64,
    /// The duration of the faults. The run lasts longer if a fault has not been injected yet.
    pub length: Duration,
    /// The faults to inject.
    pub faults: Vec<Fault>,
    /// The environment of the servers.
    pub environment: Environment,
    /// The language of each program.
    pub languages: Vec<Language>,
    /// The number of threads in each program that acquire locks.
    pub threads: usize,
    /// The locks that the programs acquire. `programs/worker.c` describes the format.
    pub locks: String,
    /// The session timeout of the programs.
    pub session_timeout: Duration,
    /// See [`CheckInput::overrun_tolerance`].
    pub allowance: Duration,
    /// Whether the programs ignore losses and rely on every hold until they release the lock.
    pub ignores_lease: bool,
    /// If set, all connections of the programs use TLS, and the certificates are replaced at this interval.
    pub certificate_rotation: Option<Duration>,
    /// Whether the programs prove their identity with SASL, and only this identity can create nodes.
    pub uses_sasl: bool,
}

impl Plan {
    /// All faults that are possible in this environment, with programs in all languages and locks of all kinds.
    pub fn long(seed: u64, environment: Environment, length: Duration) -> Self {
        let cables = if environment == Environment::Network { &Fault::NETWORK_FAULTS[..] } else { &[] };
        Self {
            seed,
            length,
            faults: [&Fault::SERVERS[..], &Fault::PROGRAMS[..], cables].concat(),
            environment,
            languages: [Language::ALL, Language::ALL].concat(),
            threads: 3,
            locks: "mutex:/a,mutex:/b,mutex:/c,rw:/d,semaphore2:/e,multi:/a+/b".to_owned(),
            session_timeout: Duration::from_secs(4),
            allowance: Duration::from_secs(1),
            ignores_lease: false,
            certificate_rotation: None,
            uses_sasl: false,
        }
    }
}

/// The environment of the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Environment {
    /// The servers run on loopback.
    Loopback,
    /// Each server runs on its own host, in network namespaces. The calling thread enters one of them and stays there.
    Network,
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The result of the checker.
    pub report: CheckReport,
    /// The number of times that each fault was injected and ended.
    pub completed_faults: BTreeMap<Fault, usize>,
    /// The duration of the faults.
    pub length: Duration,
    /// The time until no node was left after all programs had finished.
    pub cleanup_time: Duration,
    /// The directory of the traces.
    pub directory: PathBuf,
    /// The number of times that the certificates were replaced.
    pub rotations: usize,
}

/// Runs a plan.
pub fn run(plan: &Plan) -> Result<Outcome, String> {
    Run::prepare(plan).map_err(|error| error.to_string())?.execute()
}

struct Run<'a> {
    plan: &'a Plan,
    // The fields are dropped in this order: the programs before the servers.
    programs: Vec<Program>,
    started: usize,
    ensemble: Ensemble,
    _network: Option<Network>,
    addresses: Vec<String>,
    /// The addresses for the programs.
    program_addresses: Vec<String>,
    rotation: Option<Rotation>,
    options: PathBuf,
    store: Store,
    directory: PathBuf,
    queues: Vec<String>,
    closed: BTreeSet<i64>,
    offsets: Offsets,
}

impl<'a> Run<'a> {
    fn prepare(plan: &'a Plan) -> io::Result<Self> {
        let mut network = match plan.environment {
            Environment::Loopback => None,
            Environment::Network => Some(Network::enter()?),
        };
        let rotation = plan.certificate_rotation.map(Rotation::begin);
        let options = servers(rotation.as_ref(), plan.uses_sasl);
        let ensemble = match &mut network {
            None => Ensemble::start_with(&options, SYNC_LIMIT),
            Some(network) => Ensemble::start_on(network, &options, SYNC_LIMIT),
        };
        let kind = if plan.ignores_lease { "ignoring-lease" } else { "chaos" };
        let place = if network.is_some() { "network" } else { "loopback" };
        let directory = profile_directory().join("chaos").join(format!("{kind}-{place}-{}", plan.seed));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory)?;
        let options = directory.join("options");
        let sasl = if plan.uses_sasl { SASL_OPTIONS } else { "" };
        fs::write(&options, rotation.as_ref().map_or_else(String::new, Rotation::options) + sasl)?;
        let address = if rotation.is_some() { ZooKeeper::tls_address } else { ZooKeeper::address };
        let mut stage = Self {
            plan,
            programs: Vec::new(),
            started: 0,
            addresses: ensemble.servers().iter().map(ZooKeeper::address).collect(),
            program_addresses: ensemble.servers().iter().map(address).collect(),
            rotation,
            options,
            ensemble,
            _network: network,
            store: Store::open()?,
            directory,
            queues: queues(&plan.locks),
            closed: BTreeSet::new(),
            offsets: Offsets::begin(),
        };
        for &language in &plan.languages {
            stage.start(language)?;
        }
        if stage.rotation.is_some() {
            stage.await_all(START_LIMIT, Program::has_connected);
        }
        Ok(stage)
    }

    fn start(&mut self, language: Language) -> io::Result<()> {
        let number = self.started;
        self.started += 1;
        let setup = ProgramOptions {
            directory: &self.directory,
            servers: &self.program_addresses,
            // On a network, every second program connects directly, so that the faults of the network itself affect it.
            uses_proxies: self.plan.environment == Environment::Loopback || number.is_multiple_of(2),
            store: self.store.address(),
            locks: &self.plan.locks,
            seed: self.plan.seed * 1000 + number as u64,
            session_timeout: self.plan.session_timeout,
            threads: self.plan.threads,
            ignores_lease: self.plan.ignores_lease,
            options: &self.options,
            is_encrypted: self.rotation.is_some(),
        };
        self.programs.push(Program::start(language, number, &setup)?);
        Ok(())
    }

    fn execute(mut self) -> Result<Outcome, String> {
        let mut nemesis = Nemesis::new(self.plan.seed, &self.plan.faults);
        let begun = Instant::now();
        while begun.elapsed() < self.plan.length || !nemesis.has_completed_all() {
            nemesis.step(&mut self.fault_targets());
            self.rotate_certificates();
            self.replace_killed().map_err(|error| error.to_string())?;
            if let Some(ended) = self.programs.iter_mut().find_map(Program::unexpectedly_ended) {
                return Err(format!("{ended} ended unexpectedly; see {}", self.directory.display()));
            }
            self.offsets.sample();
            std::thread::sleep(Duration::from_millis(20));
        }
        let length = begun.elapsed();
        let healed = self.recover(&mut nemesis)?;
        let cleared = self.run_final_round(nemesis.log);
        let (orphan_nodes, cleanup_time) = cleared?;
        self.check(healed, orphan_nodes).map(|judgment| Outcome {
            report: judgment,
            completed_faults: nemesis.completed,
            length,
            cleanup_time,
            directory: self.directory.clone(),
            rotations: self.rotation.as_ref().map_or(0, |rotation| rotation.count),
        })
    }

    fn fault_targets(&mut self) -> FaultTargets<'_> {
        FaultTargets {
            ensemble: &self.ensemble,
            programs: &mut self.programs,
            queues: &self.queues,
            session_timeout: self.plan.session_timeout,
            closed: &mut self.closed,
        }
    }

    /// Continues a rotation. A program cannot start with a key that does not belong to its certificate, so no rotation
    /// begins while a program starts.
    fn rotate_certificates(&mut self) {
        let Some(rotation) = &mut self.rotation else { return };
        let mut alive = self.programs.iter_mut().filter(|program| program.is_alive());
        if rotation.pending.is_some() || alive.all(Program::has_connected) {
            rotation.step();
        }
    }

    /// Replaces each program that was killed by a new one in the same language.
    fn replace_killed(&mut self) -> io::Result<()> {
        if self.rotation.as_ref().is_some_and(|rotation| rotation.pending.is_some()) {
            return Ok(());
        }
        for language in Language::ALL {
            let planned = self.plan.languages.iter().filter(|&&planned| planned == language).count();
            let is_wanted = |program: &&Program| program.is_alive() && program.language() == language;
            for _ in self.programs.iter().filter(is_wanted).count()..planned {
                self.start(language)?;
            }
        }
        Ok(())
    }

    /// Ends all faults. Returns the time at which all servers served again.
    fn recover(&mut self, nemesis: &mut Nemesis) -> Result<Nanos, String> {
        let begun = Instant::now();
        while !(nemesis.recover(&mut self.fault_targets()) && self.ensemble.is_serving()) {
            if begun.elapsed() > RECOVERY {
                return Err("the servers did not recover in time".to_owned());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(clock::now())
    }

    /// Lets all programs acquire every lock once more and finish. Returns the nodes that were left after all programs
    /// had finished, and the time until the last node was gone.
    fn run_final_round(&mut self, log: Vec<String>) -> Result<(Vec<String>, Duration), String> {
        fs::write(self.directory.join("faults"), log.join("\n")).map_err(|error| error.to_string())?;
        self.for_each_alive(|program| program.send_command("final"));
        self.await_all(FINAL_ROUND_LIMIT, |program| program.has_reported("idle"));
        let idle = Instant::now();
        // The session of a program that was killed exists until it expires.
        let limit = 2 * self.plan.session_timeout + Duration::from_secs(2);
        let orphan_nodes = loop {
            let left = self.lock_nodes().map_err(|error| error.to_string())?;
            if left.is_empty() || idle.elapsed() > limit {
                break left;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let cleared = idle.elapsed();
        self.for_each_alive(|program| program.send_command("end"));
        self.await_all(Duration::from_secs(20), Program::has_ended);
        Ok((orphan_nodes, cleared))
    }

    fn for_each_alive(&mut self, act: impl Fn(&mut Program)) {
        self.programs.iter_mut().filter(|program| program.is_alive()).for_each(act);
    }

    /// Waits until all programs satisfy the condition. If a program does not, the checker reports it.
    fn await_all(&mut self, limit: Duration, done: impl Fn(&mut Program) -> bool) {
        let begun = Instant::now();
        let mut waiting: Vec<&mut Program> = self.programs.iter_mut().filter(|program| program.is_alive()).collect();
        while !waiting.is_empty() && begun.elapsed() < limit {
            waiting.retain_mut(|program| !done(program) && !program.has_ended());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn lock_nodes(&self) -> io::Result<Vec<String>> {
        let mut operator = Operator::connect(&self.addresses[0])?;
        operator.sync()?;
        let mut nodes = Vec::new();
        for queue in &self.queues {
            nodes.extend(operator.children(queue)?.into_iter().map(|name| format!("{queue}/{name}")));
        }
        operator.close()?;
        Ok(nodes)
    }

    fn check(&mut self, recovered_at: Nanos, orphan_nodes: Vec<String>) -> Result<CheckReport, String> {
        self.offsets.sample();
        let processes: Vec<Process> = self.programs.drain(..).map(Program::finish).collect::<Result<_, _>>()?;
        let mut logs = Vec::new();
        for server in self.ensemble.servers() {
            server.stop();
            logs.push(server_log::read(&server.log_directory()).map_err(|error| error.to_string())?);
        }
        let server_history =
            ServerHistory::from_logs(&logs, &self.closed, |wall_ms| self.offsets.to_monotonic(wall_ms));
        self.save_server_logs(&logs, &server_history).map_err(|error| error.to_string())?;
        let writes = self.store.writes();
        let (session_timeout, overrun_tolerance) = (self.plan.session_timeout, self.plan.allowance);
        let input = CheckInput {
            server_history,
            processes,
            writes,
            recovered_at,
            orphan_nodes,
            session_timeout,
            overrun_tolerance,
        };
        let judgment = check(&input);
        let lines = judgment.violations.iter().map(|broken| format!("{}: {}\n", broken.rule, broken.text));
        fs::write(self.directory.join("violations"), lines.collect::<String>()).map_err(|error| error.to_string())?;
        Ok(judgment)
    }

    /// Writes the transaction logs next to the traces, for the analysis of a failure.
    fn save_server_logs(&self, logs: &[Vec<Transaction>], server_history: &ServerHistory) -> io::Result<()> {
        for (number, log) in logs.iter().enumerate() {
            let line = |one: &Transaction| {
                let at = self.offsets.to_monotonic(one.wall_ms);
                format!("{at} {:#x} {:#x} {:?}\n", one.zxid, one.session, one.changes)
            };
            fs::write(self.directory.join(format!("log{number}")), log.iter().map(line).collect::<String>())?;
        }
        let line = |node: &Node| {
            let gone = node.removal.map_or_else(String::new, |gone| format!(" {} {:?}", gone.at, gone.why));
            format!("{} {} {} {:#x}{gone}\n", node.created_at, node.path, node.czxid, node.session)
        };
        fs::write(self.directory.join("nodes"), server_history.nodes.iter().map(line).collect::<String>())
    }
}

fn servers(rotation: Option<&Rotation>, uses_sasl: bool) -> Options {
    let mut options = ZooKeeper::options().tick_ms(TICK_MS).newest();
    if uses_sasl {
        options = options.sasl_users(&[("bob", "secret")]);
    }
    match rotation {
        Some(Rotation { certificates, .. }) => options.tls(&TlsListener::new(certificates)),
        None => options,
    }
}

/// The operator, which has no identity, can delete nodes, and cannot create nodes.
const SASL_OPTIONS: &str =
    "sasl.mechanism = digest-md5\nsasl.user = bob\nsasl.password = secret\nacl = sasl:bob:cdrwa,world:anyone:rd\n";

/// Certificates that are replaced at an interval.
struct Rotation {
    certificates: Certificates,
    interval: Duration,
    last: Instant,
    /// The new identity of the programs, whose key is already in place.
    pending: Option<Identity>,
    /// The number of rotations.
    count: usize,
}

impl Rotation {
    fn begin(interval: Duration) -> Self {
        Self { certificates: Certificates::create(), interval, last: Instant::now(), pending: None, count: 0 }
    }

    /// The content of the file with the options of the programs.
    fn options(&self) -> String {
        let file = |name| self.certificates.file(name);
        // The addresses of the hosts are not in the certificates of the servers.
        format!(
            "tls.ca = {}\ntls.cert = {}\ntls.key = {}\ntls.server_name = localhost\n",
            file("ca.pem"),
            file("client.pem"),
            file("client.key")
        )
    }

    /// Replaces the key and the certificate of the programs, one step after the other, and the files of the servers.
    /// A server reads its files when it starts.
    fn step(&mut self) {
        if let Some(identity) = self.pending.take() {
            self.certificates.write("client.pem", &identity.certificates());
        } else if self.last.elapsed() >= self.interval {
            self.last = Instant::now();
            self.count += 1;
            let issuer = &self.certificates.intermediate;
            self.certificates.add("server", &issuer.server(&["localhost"], Validity::Now));
            let identity = issuer.client("client", Validity::Now);
            self.certificates.write("client.key", identity.key());
            self.pending = Some(identity);
        }
    }
}

/// The directories of the nodes of these locks.
fn queues(locks: &str) -> Vec<String> {
    let mut queues = BTreeSet::new();
    for (kind, paths) in locks.split(',').filter_map(|lock| lock.split_once(':')) {
        for path in paths.split('+') {
            match kind.starts_with("semaphore") {
                true => queues.extend([format!("{path}/leases"), format!("{path}/locks")]),
                false => queues.extend([path.to_owned()]),
            }
        }
    }
    queues.into_iter().collect()
}
