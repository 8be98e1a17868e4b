//! Who is measured, and how their drivers are made and started.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use zklock_rig::CuratorVersion;

use crate::measure::Nodes;
use crate::workload::Workload;

/// Something that locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    kind: Kind,
    suits: Suits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// In this program.
    Floor,
    /// A variant of `drivers/zklock.c`.
    Zklock(&'static str),
    /// A script of `drivers/`, in the Python environment of the checkout.
    Python(&'static str),
    /// A variant of `drivers/CuratorLock.java`.
    Curator(&'static str),
    /// In this program, with another crate.
    Crate,
}

/// Which workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suits {
    All,
    /// It has no queue, or gives up its place and takes the next at once.
    Uncontended,
    /// It differs from another only where many wait in one process.
    Crowds,
}

/// The function without which there is no hand-over within a process.
const LOCAL_HAND_OVER: &[u8] = b"zkl_mutex_set_local_handover";

/// What all ratios are taken to.
pub(crate) const FLOOR: &str = "raw-b";

const PEERS: &[Peer] = &[
    Peer { name: "raw-a", kind: Kind::Floor, suits: Suits::All },
    Peer { name: FLOOR, kind: Kind::Floor, suits: Suits::All },
    Peer { name: "raw-c", kind: Kind::Floor, suits: Suits::All },
    Peer { name: "raw-e", kind: Kind::Floor, suits: Suits::All },
    Peer { name: "raw-m", kind: Kind::Floor, suits: Suits::Uncontended },
    Peer { name: "raw-n", kind: Kind::Floor, suits: Suits::Uncontended },
    Peer { name: "raw-p", kind: Kind::Floor, suits: Suits::All },
    Peer { name: "raw-q", kind: Kind::Floor, suits: Suits::All },
    Peer { name: "raw-bs", kind: Kind::Floor, suits: Suits::Crowds },
    Peer { name: "raw-qs", kind: Kind::Floor, suits: Suits::Crowds },
    Peer { name: "zklock-c", kind: Kind::Zklock("confirmed"), suits: Suits::All },
    Peer { name: "zklock-c-nowait", kind: Kind::Zklock("nowait"), suits: Suits::All },
    Peer { name: "zklock-c-sessions", kind: Kind::Zklock("sessions"), suits: Suits::Crowds },
    Peer { name: "zklock-c-local", kind: Kind::Zklock("local"), suits: Suits::All },
    Peer { name: "zklock-python", kind: Kind::Python("zklock_lock.py"), suits: Suits::All },
    Peer { name: "curator", kind: Kind::Curator("own"), suits: Suits::All },
    Peer { name: "curator-shared", kind: Kind::Curator("shared"), suits: Suits::Crowds },
    Peer { name: "kazoo", kind: Kind::Python("kazoo_lock.py"), suits: Suits::All },
    Peer { name: "zookeeper-client", kind: Kind::Crate, suits: Suits::All },
    Peer { name: "zookeeper", kind: Kind::Crate, suits: Suits::All },
];

impl Peer {
    /// All that there are with this library, which may be older than the benchmark.
    pub(crate) fn all_with(library: &Path) -> Vec<Self> {
        let has_local = fs::read(library.join("libzklock.so"))
            .is_ok_and(|bytes| bytes.windows(LOCAL_HAND_OVER.len()).any(|window| window == LOCAL_HAND_OVER));
        let is_there = |peer: &&Self| has_local || peer.kind != Kind::Zklock("local");
        PEERS.iter().filter(is_there).copied().collect()
    }

    pub(crate) fn named(name: &str) -> Result<Self, String> {
        PEERS.iter().copied().find(|peer| peer.name == name).ok_or_else(|| format!("no such peer: {name}"))
    }

    /// What the server sees of its holds.
    pub(crate) fn nodes(self) -> Nodes {
        if self.kind == Kind::Zklock("local") { Nodes::Shared } else { Nodes::OneEach }
    }

    pub(crate) fn takes(self, workload: Workload) -> bool {
        match self.suits {
            Suits::All => true,
            Suits::Uncontended => !workload.is_contended(),
            Suits::Crowds => matches!(workload, Workload::Crowd(_)),
        }
    }
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

/// Where drivers are made: a directory that goes with this.
pub(crate) struct Workshop {
    directory: PathBuf,
    /// Where libzklock.so is.
    library: PathBuf,
}

impl Workshop {
    /// Makes the drivers that these peers need.
    pub(crate) fn open(peers: &[Peer], library: &Path) -> Result<Self, String> {
        let library = library.canonicalize().unwrap_or_else(|_| library.to_owned());
        let directory = std::env::temp_dir().join(format!("zklock-bench-{}", std::process::id()));
        fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let workshop = Self { directory, library };
        if peers.iter().any(|peer| matches!(peer.kind, Kind::Zklock(_))) {
            workshop.compile_c("zklock", ZKLOCK_C)?;
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

    /// How a peer's driver is started for a server.
    pub(crate) fn command(&self, peer: Peer, address: &str) -> Command {
        match peer.kind {
            Kind::Floor | Kind::Crate => {
                // What runs now, also where its file was replaced meanwhile.
                let mut command = Command::new("/proc/self/exe");
                command.args(["drive", peer.name, address]);
                command
            }
            Kind::Zklock(variant) => {
                let mut command = Command::new(self.directory.join("zklock"));
                command.args([variant, address]);
                command
            }
            Kind::Python(script) => {
                let mut command = Command::new(python());
                command.arg(self.directory.join(script)).arg(address);
                command
            }
            Kind::Curator(variant) => {
                let mut command = Command::new("java");
                let class_path = CuratorVersion::Debian.class_path(&self.directory);
                command.args(["-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", &class_path]);
                command.args(["CuratorLock", variant, address]);
                command
            }
        }
    }

    /// Makes the driver of `drivers/scale.c`.
    pub(crate) fn compile_scale(&self) -> Result<(), String> {
        self.compile_c("scale", SCALE_C)
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

    fn compile_c(&self, name: &str, source: &str) -> Result<(), String> {
        let library = self.library.display();
        if !self.library.join("libzklock.so").exists() {
            return Err(format!("{library}/libzklock.so is missing: make build, or --lib DIR"));
        }
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
