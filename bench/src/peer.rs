//! The peers that are measured, and how their drivers are built and started.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use zklock_test_support::CuratorVersion;

use crate::measure::Nodes;
use crate::workload::Workload;

/// A peer: a lock implementation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    kind: Kind,
    supports: SupportedWorkloads,
    selection: Selection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// A floor, in this program.
    Floor,
    /// A variant of `drivers/zklock.c`.
    Zklock(&'static str, Build),
    /// A script in `drivers/`, in the Python environment of the checkout.
    Python(&'static str),
    /// A variant of `drivers/CuratorLock.java`.
    Curator(&'static str),
    /// Another crate, in this program.
    Crate,
}

/// A build of libzklock.so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Build {
    Measured,
    /// The build that the measured one is compared with.
    Other,
}

/// The workloads that a peer takes part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SupportedWorkloads {
    All,
    /// The peer has no queue, or leaves its position and joins again at once.
    Uncontended,
    /// The peer differs from another peer only if many workers of one process wait.
    ManyWaiters,
    /// Like `ManyWaiters`, but with hundreds of waiters one turn of all workers takes longer than a window.
    UpTo256Waiters,
}

/// Whether a peer is measured by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Selection {
    Always,
    /// Only if `--peers` names it.
    OnDemand,
}

/// The smallest number of waiters for which `UpTo256Waiters` does not apply.
const MANY_WAITERS_LIMIT: usize = 256;

/// A library without this function does not support local hand-over.
const LOCAL_HAND_OVER: &[u8] = b"zkl_mutex_set_local_handover";

/// The floor of all ratios.
pub(crate) const FLOOR: &str = "raw-b";
/// The peer that uses local hand-over.
const LOCAL: &str = "zklock-c-local";

const PEERS: &[Peer] = &[
    Peer::floor("raw-a", SupportedWorkloads::All).on_demand(),
    Peer::floor(FLOOR, SupportedWorkloads::All),
    Peer::floor("raw-c", SupportedWorkloads::All).on_demand(),
    Peer::floor("raw-e", SupportedWorkloads::All).on_demand(),
    Peer::floor("raw-m", SupportedWorkloads::Uncontended).on_demand(),
    Peer::floor("raw-n", SupportedWorkloads::Uncontended).on_demand(),
    Peer::floor("raw-p", SupportedWorkloads::All).on_demand(),
    Peer::floor("raw-q", SupportedWorkloads::All),
    Peer::floor("raw-bs", SupportedWorkloads::ManyWaiters).on_demand(),
    Peer::floor("raw-qs", SupportedWorkloads::UpTo256Waiters).on_demand(),
    Peer::of("zklock-c", Kind::Zklock("confirmed", Build::Measured), SupportedWorkloads::All),
    Peer::of("zklock-c-nowait", Kind::Zklock("nowait", Build::Measured), SupportedWorkloads::All),
    Peer::of("zklock-c-sessions", Kind::Zklock("sessions", Build::Measured), SupportedWorkloads::ManyWaiters),
    Peer::of(LOCAL, Kind::Zklock("local", Build::Measured), SupportedWorkloads::ManyWaiters),
    Peer::of("zklock-python", Kind::Python("zklock_lock.py"), SupportedWorkloads::All),
    Peer::of("curator", Kind::Curator("own"), SupportedWorkloads::All),
    Peer::of("curator-shared", Kind::Curator("shared"), SupportedWorkloads::UpTo256Waiters),
    Peer::of("kazoo", Kind::Python("kazoo_lock.py"), SupportedWorkloads::All),
    Peer::of("zookeeper-client", Kind::Crate, SupportedWorkloads::All),
    Peer::of("zookeeper", Kind::Crate, SupportedWorkloads::All),
];

impl Peer {
    const fn of(name: &'static str, kind: Kind, supports: SupportedWorkloads) -> Self {
        Self { name, kind, supports, selection: Selection::Always }
    }

    const fn floor(name: &'static str, suits: SupportedWorkloads) -> Self {
        Self::of(name, Kind::Floor, suits)
    }

    const fn on_demand(self) -> Self {
        Self { selection: Selection::OnDemand, ..self }
    }

    /// The peers that are measured by default with this library. The library may be older than the benchmark.
    pub(crate) fn defaults(library: &Path) -> Vec<Self> {
        let has_local = has_local_hand_over(library);
        let is_there = |peer: &&Self| peer.selection == Selection::Always && (has_local || peer.name != LOCAL);
        PEERS.iter().filter(is_there).copied().collect()
    }

    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let known = || PEERS.iter().map(|peer| peer.name).collect::<Vec<_>>().join(", ");
        PEERS
            .iter()
            .copied()
            .find(|peer| peer.name == name)
            .ok_or_else(|| format!("no such peer: {name}; expected one of {}", known()))
    }

    /// The same peer with the other build of libzklock.so, or `None` for a peer that does not use that library.
    pub(crate) fn with_other_build(self) -> Option<Self> {
        match self.kind {
            Kind::Zklock(variant, _) => Some(Self { kind: Kind::Zklock(variant, Build::Other), ..self }),
            _ => None,
        }
    }

    /// The name of the peer, and its build if that is not the measured one.
    pub(crate) fn label(self) -> String {
        let is_other = matches!(self.kind, Kind::Zklock(_, Build::Other));
        if is_other { format!("{} (other build)", self.name) } else { self.name.to_owned() }
    }

    /// The number of nodes that the server sees.
    pub(crate) fn nodes(self) -> Nodes {
        if self.name == LOCAL { Nodes::Shared } else { Nodes::OneEach }
    }

    pub(crate) fn supports(self, workload: Workload) -> bool {
        match self.supports {
            SupportedWorkloads::All => true,
            SupportedWorkloads::Uncontended => !workload.is_contended(),
            SupportedWorkloads::ManyWaiters => matches!(workload, Workload::ManyWaiters(_)),
            SupportedWorkloads::UpTo256Waiters => {
                matches!(workload, Workload::ManyWaiters(count) if count < MANY_WAITERS_LIMIT)
            }
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

/// A temporary directory for the drivers. Dropping the value removes it.
pub(crate) struct DriverBuilds {
    directory: PathBuf,
    /// The directory of libzklock.so.
    library: PathBuf,
}

impl DriverBuilds {
    /// Builds the drivers that these peers need. `other` contains the other build of the library.
    pub(crate) fn build(peers: &[Peer], library: &Path, other: Option<&Path>) -> Result<Self, String> {
        let library = absolute(library);
        let directory = std::env::temp_dir().join(format!("zklock-bench-{}", std::process::id()));
        fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let builds = Self { directory, library };
        if peers.iter().any(|peer| matches!(peer.kind, Kind::Zklock(..))) {
            builds.compile_c(Build::Measured.program(), ZKLOCK_C, &builds.library)?;
        }
        if let Some(other) = other {
            builds.compile_c(Build::Other.program(), ZKLOCK_C, &absolute(other))?;
        }
        if peers.iter().any(|peer| matches!(peer.kind, Kind::Python(_))) {
            builds.check_python()?;
            SCRIPTS.iter().try_for_each(|(name, text)| builds.write(name, text))?;
        }
        if peers.iter().any(|peer| matches!(peer.kind, Kind::Curator(_))) {
            builds.compile_java()?;
        }
        Ok(builds)
    }

    /// The command that starts the driver of a peer.
    pub(crate) fn command(&self, peer: Peer) -> Command {
        match peer.kind {
            Kind::Floor | Kind::Crate => {
                // Use the running program, even if its file has been replaced.
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
                // The heap has a fixed size, so that it does not grow within a window. All other options of the JVM
                // have their defaults.
                command.args(["-Xms512m", "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]);
                command.args(["-cp", &class_path, "CuratorLock", variant]);
                command
            }
        }
    }

    /// Builds the driver `drivers/scale.c`.
    pub(crate) fn compile_scale(&self) -> Result<(), String> {
        self.compile_c("scale", SCALE_C, &self.library)
    }

    /// The command that starts the driver `drivers/scale.c` for a server.
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
                "{library}/{LIBRARY} is missing; run make build, or name its directory (--lib, --against)"
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

/// The Python interpreter in `target/venv`.
fn python() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/venv/bin/python")
}

impl Drop for DriverBuilds {
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
