//! Who is measured, and how their drivers are made and started.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

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
];

impl Peer {
    pub(crate) fn all() -> &'static [Self] {
        PEERS
    }

    pub(crate) fn named(name: &str) -> Result<Self, String> {
        PEERS.iter().copied().find(|peer| peer.name == name).ok_or_else(|| format!("no such peer: {name}"))
    }

    pub(crate) fn takes(self, workload: Workload) -> bool {
        match self.suits {
            Suits::All => true,
            Suits::Uncontended => !workload.is_contended(),
            Suits::Crowds => matches!(workload, Workload::Crowd(_)),
        }
    }
}

/// Where drivers are made: a directory that goes with this.
pub(crate) struct Workshop {
    directory: PathBuf,
    /// Where libzklock.so is.
    library: PathBuf,
}

const ZKLOCK_C: &str = include_str!("../drivers/zklock.c");
const ZKLOCK_H: &str = include_str!("../../include/zklock.h");

impl Workshop {
    /// Makes the drivers that these peers need.
    pub(crate) fn open(peers: &[Peer], library: &Path) -> Result<Self, String> {
        let directory = std::env::temp_dir().join(format!("zklock-bench-{}", std::process::id()));
        fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let workshop = Self { directory, library: library.to_owned() };
        if peers.iter().any(|peer| matches!(peer.kind, Kind::Zklock(_))) {
            workshop.compile_c()?;
        }
        Ok(workshop)
    }

    /// How a peer's driver is started for a server.
    pub(crate) fn command(&self, peer: Peer, address: &str) -> Command {
        match peer.kind {
            Kind::Floor => {
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
        }
    }

    fn compile_c(&self) -> Result<(), String> {
        let library = self.library.canonicalize().unwrap_or_else(|_| self.library.clone());
        if !library.join("libzklock.so").exists() {
            return Err(format!("{}/libzklock.so is missing: make build, or --lib DIR", library.display()));
        }
        self.write("zklock.c", ZKLOCK_C)?;
        self.write("zklock.h", ZKLOCK_H)?;
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-std=gnu11", "-Wall", "-Wextra", "-pthread", "-I."]).current_dir(&self.directory);
        compiler.args(["zklock.c", "-o", "zklock", "-lzklock", "-ldl"]);
        compiler.arg(format!("-L{}", library.display())).arg(format!("-Wl,-rpath,{}", library.display()));
        run(compiler)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), String> {
        fs::write(self.directory.join(name), text).map_err(|error| format!("write {name}: {error}"))
    }
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
