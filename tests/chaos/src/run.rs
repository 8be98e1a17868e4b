//! One run: servers, programs, faults, a time to heal, and the judge.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use zklock_rig::{Ensemble, Network, Options, ZooKeeper};

use crate::clock::{self, Offsets};
use crate::judge::{Case, Judgement, judge};
use crate::nemesis::{Fault, Field, Nemesis};
use crate::operator::Operator;
use crate::programs::{Language, Program, Setup, profile_directory};
use crate::store::Store;
use crate::story::Process;
use crate::trace::Nanos;
use crate::truth::{self, Node, Transaction, Truth};

/// The servers' tick: sessions expire within one of it.
const TICK_MS: u32 = 500;
/// In ticks: so long a leader is believed that nobody hears.
const SYNC_LIMIT: u32 = 6;
/// How long the servers may take to serve again.
const RECOVERY: Duration = Duration::from_secs(60);
/// How long everybody may take to have every lock once more, when all is well.
const FINALE: Duration = Duration::from_secs(120);

/// What is to be run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The dice.
    pub seed: u64,
    /// For how long things go wrong; longer, until each fault was there once.
    pub length: Duration,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// Where the servers are.
    pub place: Place,
    /// A program each.
    pub languages: Vec<Language>,
    /// How many threads take locks in each.
    pub threads: usize,
    /// What is taken: see `programs/worker.c`.
    pub locks: String,
    /// The programs' session timeout.
    pub session_timeout: Duration,
    /// See [`Case::allowance`].
    pub allowance: Duration,
    /// Whether programs take what they once got for held until they give it up.
    pub believes: bool,
}

impl Plan {
    /// Everything that can go wrong there, with programs in all languages on locks of all kinds.
    pub fn long(seed: u64, place: Place, length: Duration) -> Self {
        let cables = if place == Place::Network { &Fault::CABLES[..] } else { &[] };
        Self {
            seed,
            length,
            faults: [&Fault::SERVERS[..], &Fault::PROGRAMS[..], cables].concat(),
            place,
            languages: [Language::ALL, Language::ALL].concat(),
            threads: 3,
            locks: "mutex:/a,mutex:/b,mutex:/c,rw:/d,semaphore2:/e,multi:/a+/b".to_owned(),
            session_timeout: Duration::from_secs(4),
            allowance: Duration::from_secs(1),
            believes: false,
        }
    }
}

/// Where the servers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On loopback.
    Loopback,
    /// Each on a host of its own, in network namespaces. The thread that runs is in one from then on.
    Network,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// The judge's word.
    pub judgement: Judgement,
    /// How often each fault was survived.
    pub survived: BTreeMap<Fault, usize>,
    /// For how long things went wrong.
    pub length: Duration,
    /// How long it took until no node was left, when everybody had finished.
    pub cleared: Duration,
    /// Where the traces are.
    pub directory: PathBuf,
}

/// Runs a plan.
pub fn run(plan: &Plan) -> Result<Outcome, String> {
    Stage::set(plan).map_err(|error| error.to_string())?.play()
}

struct Stage<'a> {
    plan: &'a Plan,
    // Dropped in this order: programs before the servers.
    programs: Vec<Program>,
    started: usize,
    ensemble: Ensemble,
    _network: Option<Network>,
    addresses: Vec<String>,
    store: Store,
    directory: PathBuf,
    queues: Vec<String>,
    closed: BTreeSet<i64>,
    offsets: Offsets,
}

impl<'a> Stage<'a> {
    fn set(plan: &'a Plan) -> io::Result<Self> {
        let mut network = match plan.place {
            Place::Loopback => None,
            Place::Network => Some(Network::enter()?),
        };
        let ensemble = match &mut network {
            None => Ensemble::start_with(&servers(), SYNC_LIMIT),
            Some(network) => Ensemble::start_on(network, &servers(), SYNC_LIMIT),
        };
        let kind = if plan.believes { "believing" } else { "chaos" };
        let place = if network.is_some() { "network" } else { "loopback" };
        let directory = profile_directory().join("chaos").join(format!("{kind}-{place}-{}", plan.seed));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory)?;
        let mut stage = Self {
            plan,
            programs: Vec::new(),
            started: 0,
            addresses: ensemble.servers().iter().map(|server| server.address()).collect(),
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
        Ok(stage)
    }

    fn start(&mut self, language: Language) -> io::Result<()> {
        let number = self.started;
        self.started += 1;
        let setup = Setup {
            directory: &self.directory,
            servers: &self.addresses,
            // On a network some feel what happens to it themselves.
            is_wired: self.plan.place == Place::Loopback || number.is_multiple_of(2),
            store: self.store.address(),
            locks: &self.plan.locks,
            seed: self.plan.seed * 1000 + number as u64,
            session_timeout: self.plan.session_timeout,
            threads: self.plan.threads,
            believes: self.plan.believes,
        };
        self.programs.push(Program::start(language, number, &setup)?);
        Ok(())
    }

    fn play(mut self) -> Result<Outcome, String> {
        let mut nemesis = Nemesis::new(self.plan.seed, &self.plan.faults);
        let begun = Instant::now();
        while begun.elapsed() < self.plan.length || !nemesis.has_done_all() {
            nemesis.step(&mut self.field());
            self.replace_killed().map_err(|error| error.to_string())?;
            if let Some(ended) = self.programs.iter_mut().find_map(Program::ended_by_itself) {
                return Err(format!("{ended} ended by itself; see {}", self.directory.display()));
            }
            self.offsets.sample();
            std::thread::sleep(Duration::from_millis(20));
        }
        let length = begun.elapsed();
        let healed = self.heal(&mut nemesis)?;
        let cleared = self.finish(nemesis.log);
        let (ghosts, cleared) = cleared?;
        self.judge(healed, ghosts).map(|judgement| Outcome {
            judgement,
            survived: nemesis.survived,
            length,
            cleared,
            directory: self.directory.clone(),
        })
    }

    fn field(&mut self) -> Field<'_> {
        Field {
            ensemble: &self.ensemble,
            programs: &mut self.programs,
            queues: &self.queues,
            session_timeout: self.plan.session_timeout,
            closed: &mut self.closed,
        }
    }

    /// For each program that was killed another one takes its place, in the same language.
    fn replace_killed(&mut self) -> io::Result<()> {
        for language in Language::ALL {
            let planned = self.plan.languages.iter().filter(|&&planned| planned == language).count();
            let lives = |program: &&Program| program.lives() && program.language() == language;
            for _ in self.programs.iter().filter(lives).count()..planned {
                self.start(language)?;
            }
        }
        Ok(())
    }

    /// Ends all faults; when all was well.
    fn heal(&mut self, nemesis: &mut Nemesis) -> Result<Nanos, String> {
        let begun = Instant::now();
        while !(nemesis.heal(&mut self.field()) && self.ensemble.is_whole()) {
            if begun.elapsed() > RECOVERY {
                return Err("the servers do not serve again".to_owned());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(clock::now())
    }

    /// Everybody has everything once more, and ends. What was left when all had finished, and how long the last node took to go.
    fn finish(&mut self, log: Vec<String>) -> Result<(Vec<String>, Duration), String> {
        fs::write(self.directory.join("faults"), log.join("\n")).map_err(|error| error.to_string())?;
        self.each_living(|program| program.tell("final"));
        self.await_all(FINALE, |program| program.has_said("idle"));
        let idle = Instant::now();
        // A program that was killed has a session until it expires.
        let limit = 2 * self.plan.session_timeout + Duration::from_secs(2);
        let ghosts = loop {
            let left = self.nodes().map_err(|error| error.to_string())?;
            if left.is_empty() || idle.elapsed() > limit {
                break left;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let cleared = idle.elapsed();
        self.each_living(|program| program.tell("end"));
        self.await_all(Duration::from_secs(20), Program::has_ended);
        Ok((ghosts, cleared))
    }

    fn each_living(&mut self, act: impl Fn(&mut Program)) {
        self.programs.iter_mut().filter(|program| program.lives()).for_each(act);
    }

    /// Waits until all have done something. Who has not in time is left to the judge.
    fn await_all(&mut self, limit: Duration, done: impl Fn(&mut Program) -> bool) {
        let begun = Instant::now();
        let mut waiting: Vec<&mut Program> = self.programs.iter_mut().filter(|program| program.lives()).collect();
        while !waiting.is_empty() && begun.elapsed() < limit {
            waiting.retain_mut(|program| !done(program) && !program.has_ended());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn nodes(&self) -> io::Result<Vec<String>> {
        let mut operator = Operator::connect(&self.addresses[0])?;
        operator.catch_up()?;
        let mut nodes = Vec::new();
        for queue in &self.queues {
            nodes.extend(operator.children(queue)?.into_iter().map(|name| format!("{queue}/{name}")));
        }
        operator.close()?;
        Ok(nodes)
    }

    fn judge(&mut self, healed: Nanos, ghosts: Vec<String>) -> Result<Judgement, String> {
        self.offsets.sample();
        let processes: Vec<Process> = self.programs.drain(..).map(Program::finish).collect::<Result<_, _>>()?;
        let mut logs = Vec::new();
        for server in self.ensemble.servers() {
            server.stop();
            logs.push(truth::read(&server.log_directory()).map_err(|error| error.to_string())?);
        }
        let truth = Truth::of(&logs, &self.closed, |wall_ms| self.offsets.to_monotonic(wall_ms));
        self.keep(&logs, &truth).map_err(|error| error.to_string())?;
        let writes = self.store.writes();
        let (session_timeout, allowance) = (self.plan.session_timeout, self.plan.allowance);
        let case = Case { truth, processes, writes, healed, ghosts, session_timeout, allowance };
        let judgement = judge(&case);
        let lines = judgement.violations.iter().map(|broken| format!("{}: {}\n", broken.rule, broken.text));
        fs::write(self.directory.join("violations"), lines.collect::<String>()).map_err(|error| error.to_string())?;
        Ok(judgement)
    }

    /// Writes down what the servers have, beside the traces, for whoever wants to know how something came about.
    fn keep(&self, logs: &[Vec<Transaction>], truth: &Truth) -> io::Result<()> {
        for (number, log) in logs.iter().enumerate() {
            let line = |one: &Transaction| {
                let at = self.offsets.to_monotonic(one.wall_ms);
                format!("{at} {:#x} {:#x} {:?}\n", one.zxid, one.session, one.changes)
            };
            fs::write(self.directory.join(format!("log{number}")), log.iter().map(line).collect::<String>())?;
        }
        let line = |node: &Node| {
            let gone = node.gone.map_or_else(String::new, |gone| format!(" {} {:?}", gone.at, gone.why));
            format!("{} {} {} {:#x}{gone}\n", node.made, node.path, node.czxid, node.owner)
        };
        fs::write(self.directory.join("nodes"), truth.nodes.iter().map(line).collect::<String>())
    }
}

fn servers() -> Options {
    ZooKeeper::options().tick_ms(TICK_MS).newest()
}

/// Where the nodes of these locks are.
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
