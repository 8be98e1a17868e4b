//! Who is measured, and how their drivers are made and started.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use zklock_rig::CuratorVersion;

use crate::measure::Nodes;
use crate::workload::Workload;

/// Something that locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    kind: Kind,
    suits: Suits,
    shown: Shown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// In this program.
    Floor,
    /// A variant of `drivers/zklock.c`.
    Zklock(&'static str, Build),
    /// A script of `drivers/`, in the Python environment of the checkout.
    Python(&'static str),
    /// A variant of `drivers/CuratorLock.java`.
    Curator(&'static str),
    /// In this program, with another crate.
    Crate,
}

/// A build of libzklock.so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Build {
    Measured,
    /// The build that the measured one is compared with.
    Other,
}

/// Which workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Suits {
    All,
    /// It has no queue, or gives up its place and takes the next at once.
    Uncontended,
    /// It differs from another peer only if many wait in one process.
    Crowds,
    /// The same, but with hundreds of waiters one turn of all takes longer than a window.
    SmallCrowds,
}

/// Whether a peer is measured by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Shown {
    Always,
    /// Only if `--peers` names it.
    OnDemand,
}

/// From this number of waiters on, a crowd is not small.
const LARGE_CROWD: usize = 256;

/// The function without which there is no hand-over within a process.
const LOCAL_HAND_OVER: &[u8] = b"zkl_mutex_set_local_handover";

/// The floor of all ratios.
pub(crate) const FLOOR: &str = "raw-b";
/// The peer that hands over within its process.
const LOCAL: &str = "zklock-c-local";

const PEERS: &[Peer] = &[
    Peer::floor("raw-a", Suits::All).on_demand(),
    Peer::floor(FLOOR, Suits::All),
    Peer::floor("raw-c", Suits::All).on_demand(),
    Peer::floor("raw-e", Suits::All).on_demand(),
    Peer::floor("raw-m", Suits::Uncontended).on_demand(),
    Peer::floor("raw-n", Suits::Uncontended).on_demand(),
    Peer::floor("raw-p", Suits::All).on_demand(),
    Peer::floor("raw-q", Suits::All),
    Peer::floor("raw-bs", Suits::Crowds).on_demand(),
    Peer::floor("raw-qs", Suits::SmallCrowds).on_demand(),
    Peer::of("zklock-c", Kind::Zklock("confirmed", Build::Measured), Suits::All),
    Peer::of("zklock-c-nowait", Kind::Zklock("nowait", Build::Measured), Suits::All),
    Peer::of("zklock-c-sessions", Kind::Zklock("sessions", Build::Measured), Suits::Crowds),
    Peer::of(LOCAL, Kind::Zklock("local", Build::Measured), Suits::Crowds),
    Peer::of("zklock-python", Kind::Python("zklock_lock.py"), Suits::All),
    Peer::of("curator", Kind::Curator("own"), Suits::All),
    Peer::of("curator-shared", Kind::Curator("shared"), Suits::SmallCrowds),
    Peer::of("kazoo", Kind::Python("kazoo_lock.py"), Suits::All),
    Peer::of("zookeeper-client", Kind::Crate, Suits::All),
    Peer::of("zookeeper", Kind::Crate, Suits::All),
];

impl Peer {
    const fn of(name: &'static str, kind: Kind, suits: Suits) -> Self {
        Self { name, kind, suits, shown: Shown::Always }
    }

    const fn floor(name: &'static str, suits: Suits) -> Self {
        Self::of(name, Kind::Floor, suits)
    }

    const fn on_demand(self) -> Self {
        Self { shown: Shown::OnDemand, ..self }
    }

    /// The peers that are measured by default, with this library, which may be older than the benchmark.
    pub(crate) fn defaults(library: &Path) -> Vec<Self> {
        let has_local = has_local_hand_over(library);
        let is_there = |peer: &&Self| peer.shown == Shown::Always && (has_local || peer.name != LOCAL);
        PEERS.iter().filter(is_there).copied().collect()
    }

    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let known = || PEERS.iter().map(|peer| peer.name).collect::<Vec<_>>().join(", ");
        PEERS
            .iter()
            .copied()
            .find(|peer| peer.name == name)
            .ok_or_else(|| format!("no peer {name}; there are {}", known()))
    }

    /// The same peer with the other build of libzklock.so; `None` for a peer that does not use that library.
    pub(crate) fn with_other_build(self) -> Option<Self> {
        match self.kind {
            Kind::Zklock(variant, _) => Some(Self { kind: Kind::Zklock(variant, Build::Other), ..self }),
            _ => None,
        }
    }

    /// Its name, and which build it has if that is not the measured one.
    pub(crate) fn label(self) -> String {
        let is_other = matches!(self.kind, Kind::Zklock(_, Build::Other));
        if is_other { format!("{} (other build)", self.name) } else { self.name.to_owned() }
    }

    /// What the server sees of its holds.
    pub(crate) fn nodes(self) -> Nodes {
        if self.name == LOCAL { Nodes::Shared } else { Nodes::OneEach }
    }

    pub(crate) fn takes(self, workload: Workload) -> bool {
        match self.suits {
            Suits::All => true,
            Suits::Uncontended => !workload.is_contended(),
            Suits::Crowds => matches!(workload, Workload::Crowd(_)),
            Suits::SmallCrowds => matches!(workload, Workload::Crowd(count) if count < LARGE_CROWD),
        }
    }
}

fn has_local_hand_over(library: &Path) -> bool {
    let contains = |bytes: Vec<u8>| bytes.windows(LOCAL_HAND_OVER.len()).any(|window| window == LOCAL_HAND_OVER);
    fs::read(library.join(LIBRARY)).is_ok_and(contains)
}

const ZKLOCK_C: &str = include_str!("../drivers/zklock.c");
const ZKLOCK_H: &str = include_str!("../../include/zklock.h");
const SCALE_C: &str = include_str!("../drivers/scale.c");
const CURATOR_LOCK: &str = include_str!("../drivers/CuratorLock.java");
const SCRIPTS: [(&str, &str); 3] = [
    ("driving.py", include_str!("../drivers/driving.py")),
    ("kazoo_lock.py", include_str!("../drivers/kazoo_lock.py")),
    ("zklock_lock.py", include_str!("../drivers/zklock_lock.py")),
];

const LIBRARY: &str = "libzklock.so";

/// Where drivers are made: a directory that goes with this.
pub(crate) struct Workshop {
    directory: PathBuf,
    /// Where libzklock.so is.
    library: PathBuf,
}

impl Workshop {
    /// Makes the drivers that these peers need, with the other build of the library in `other`.
    pub(crate) fn open(peers: &[Peer], library: &Path, other: Option<&Path>) -> Result<Self, String> {
        let library = absolute(library);
        let directory = std::env::temp_dir().join(format!("zklock-bench-{}", std::process::id()));
        fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let workshop = Self { directory, library };
        if peers.iter().any(|peer| matches!(peer.kind, Kind::Zklock(..))) {
            workshop.compile_c(Build::Measured.program(), ZKLOCK_C, &workshop.library)?;
        }
        if let Some(other) = other {
            workshop.compile_c(Build::Other.program(), ZKLOCK_C, &absolute(other))?;
        }
        if peers.iter().any(|peer| matches!(peer.kind, Kind::Python(_))) {
            workshop.check_python()?;
            SCRIPTS.iter().try_for_each(|(name, text)| workshop.write(name, text))?;
        }
        if peers.iter().any(|peer| matches!(peer.kind, Kind::Curator(_))) {
            workshop.compile_java()?;
        }
        Ok(workshop)
    }

    /// How a peer's driver is started.
    pub(crate) fn command(&self, peer: Peer) -> Command {
        match peer.kind {
            Kind::Floor | Kind::Crate => {
                // What runs now, also where its file was replaced meanwhile.
                let mut command = Command::new("/proc/self/exe");
                command.args(["drive", peer.name]);
                command
            }
            Kind::Zklock(variant, build) => {
                let mut command = Command::new(self.directory.join(build.program()));
                command.arg(variant);
                command
            }
            Kind::Python(script) => {
                let mut command = Command::new(python());
                command.arg(self.directory.join(script));
                command
            }
            Kind::Curator(variant) => {
                let mut command = Command::new("java");
                let class_path = CuratorVersion::Debian.class_path(&self.directory);
                // A heap that does not grow within a window. All else of the JVM is as it comes.
                command.args(["-Xms512m", "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]);
                command.args(["-cp", &class_path, "CuratorLock", variant]);
                command
            }
        }
    }

    /// Makes the driver of `drivers/scale.c`.
    pub(crate) fn compile_scale(&self) -> Result<(), String> {
        self.compile_c("scale", SCALE_C, &self.library)
    }

    /// How the driver of `drivers/scale.c` is started for a server.
    pub(crate) fn scale_command(&self, address: &str, mode: &str, count: usize, parts: usize) -> Command {
        let mut command = Command::new(self.directory.join("scale"));
        command.args([address, mode, &count.to_string(), &parts.to_string()]);
        command
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn library(&self) -> &Path {
        &self.library
    }

    fn compile_c(&self, name: &str, source: &str, library: &Path) -> Result<(), String> {
        if !library.join(LIBRARY).exists() {
            let library = library.display();
            return Err(format!(
                "{library}/{LIBRARY} is missing: make build, or name its directory (--lib, --against)"
            ));
        }
        let library = library.display();
        self.write(&format!("{name}.c"), source)?;
        self.write("zklock.h", ZKLOCK_H)?;
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-std=gnu11", "-Wall", "-Wextra", "-pthread", "-I."]).current_dir(&self.directory);
        compiler.args([&format!("{name}.c"), "-o", name, "-lzklock", "-ldl"]);
        compiler.args([format!("-L{library}"), format!("-Wl,-rpath,{library}")]);
        run(compiler)
    }

    fn compile_java(&self) -> Result<(), String> {
        self.write("CuratorLock.java", CURATOR_LOCK)?;
        let mut compiler = Command::new("javac");
        let class_path = CuratorVersion::Debian.class_path(&self.directory);
        compiler.args(["-cp", &class_path, "CuratorLock.java"]).current_dir(&self.directory);
        run(compiler)
    }

    fn check_python(&self) -> Result<(), String> {
        let mut check = Command::new(python());
        check.args(["-c", "import kazoo, zklock"]);
        run(check).map_err(|error| format!("{error}; make build"))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), String> {
        fs::write(self.directory.join(name), text).map_err(|error| format!("write {name}: {error}"))
    }
}

fn absolute(library: &Path) -> PathBuf {
    library.canonicalize().unwrap_or_else(|_| library.to_owned())
}

impl Build {
    /// The name of the program that is linked with this build.
    fn program(self) -> &'static str {
        match self {
            Self::Measured => "zklock",
            Self::Other => "zklock-other",
        }
    }
}

/// The Python of the checkout's environment.
fn python() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/venv/bin/python")
}

impl Drop for Workshop {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn run(mut command: Command) -> Result<(), String> {
    let name = command.get_program().display().to_string();
    let output = command.output().map_err(|error| format!("start {name}: {error}; make setup"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr)))
}
