//! What a check has in hand: who is met, the server, and names and paths that no other check uses.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use zklock::{Client, Config};
use zklock_rig::{CuratorPeer, CuratorVersion, KazooPeer, Peer, Raw, Ticket, ZooKeeper, flags, wait_until};

use crate::common::SOON;
use crate::process;

/// Whom zklock meets.
#[derive(Clone, Copy)]
pub(crate) enum Met<'a> {
    Curator(CuratorVersion, &'a Peer),
    Kazoo(&'a Peer),
    /// A node of one of ZooKeeper's own recipes: how it is called, up to its number.
    Recipe(&'static str),
}

/// What all checks share.
#[derive(Clone, Copy)]
pub(crate) struct Ground<'a> {
    pub(crate) zookeeper: &'a ZooKeeper,
    /// A directory.
    pub(crate) files: &'a Path,
    /// How often something is repeated that is to be seen often.
    pub(crate) rounds: u32,
}

/// A side that is met.
#[derive(Clone, Copy)]
pub(crate) struct Side<'a> {
    pub(crate) ground: &'a Ground<'a>,
    pub(crate) met: Met<'a>,
    number: usize,
}

/// A process of the other library that a check may kill.
pub(crate) enum Victim {
    Curator(CuratorPeer),
    Kazoo(KazooPeer),
}

impl<'a> Side<'a> {
    pub(crate) fn new(ground: &'a Ground<'a>, met: Met<'a>, number: usize) -> Self {
        let side = Self { ground, met, number };
        // The parent of all its paths stays, whatever comes and goes below it.
        side.raw().create(&side.root(), b"", flags::PERSISTENT).unwrap();
        side
    }

    /// The parent of all paths.
    pub(crate) fn root(&self) -> String {
        format!("/interop-{}", self.number)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.root())
    }

    /// A file that does not exist yet.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.ground.files.join(format!("{}-{name}", self.number))
    }

    pub(crate) fn raw(&self) -> Raw {
        Raw::connect(&self.ground.zookeeper.address(), 120_000)
    }

    /// A client as programs that share paths with the other side have it.
    pub(crate) fn client(&self) -> Client {
        self.client_with(|config| config.set_wait_for_kazoo(self.is_kazoo()))
    }

    pub(crate) fn client_with(&self, change: impl FnOnce(&mut Config)) -> Client {
        let mut config = Config::new();
        change(&mut config);
        Client::connect(&self.ground.zookeeper.address(), &config).unwrap()
    }

    /// Has the other side do something. What it calls `$x` is this check's own.
    #[track_caller]
    pub(crate) fn ask(&self, command: &str) -> String {
        self.peer().ask(&self.own(command))
    }

    /// Has it do something that succeeds.
    #[track_caller]
    pub(crate) fn tell(&self, command: &str) {
        let answer = self.ask(command);
        assert!(answer == "ok" || answer == "true", "{command}: {answer}");
    }

    /// Has it do something that takes its time.
    pub(crate) fn send(&self, command: &str) -> Ticket {
        self.peer().send(&self.own(command))
    }

    /// Waits for an event.
    #[track_caller]
    pub(crate) fn event(&self, beginning: &str) -> String {
        self.peer().event(&self.own(beginning), SOON)
    }

    /// Its name for what a check calls `$x`.
    pub(crate) fn own(&self, text: &str) -> String {
        text.replace('$', &format!("c{}-", self.number))
    }

    /// The same side, in a process of its own with short sessions.
    pub(crate) fn victim(&self, session_timeout: Duration) -> Victim {
        let address = self.ground.zookeeper.address();
        match self.met {
            Met::Curator(version, _) => Victim::Curator(CuratorPeer::start(version, &address, session_timeout)),
            Met::Kazoo(_) => Victim::Kazoo(KazooPeer::start(&address, session_timeout)),
            Met::Recipe(_) => panic!("nobody is met but a node"),
        }
    }

    /// This check with another process on the other side.
    pub(crate) fn with<'b>(&'b self, peer: &'b Peer) -> Side<'b> {
        let met = match self.met {
            Met::Curator(version, _) => Met::Curator(version, peer),
            Met::Kazoo(_) => Met::Kazoo(peer),
            Met::Recipe(_) => self.met,
        };
        Side { met, ..*self }
    }

    /// A process with zklock, to be killed.
    pub(crate) fn zklock_process(&self, session_timeout: Duration) -> Peer {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(process::FLAG);
        Peer::start(command, &self.ground.zookeeper.address(), session_timeout)
    }

    /// Waits until so many nodes stand in a directory.
    #[track_caller]
    pub(crate) fn wait_for_nodes(&self, path: &str, count: usize) {
        let mut raw = self.raw();
        wait_until(SOON, || raw.children(path).unwrap_or_default().len() == count);
    }

    pub(crate) fn is_kazoo(&self) -> bool {
        matches!(self.met, Met::Kazoo(_))
    }

    /// Whether it has Curator's bug of read locks under write locks (CURATOR-621): 5.4.0 has, 5.5.0 has not.
    pub(crate) fn has_curator_621(&self) -> bool {
        matches!(self.met, Met::Curator(CuratorVersion::Debian, _))
    }

    fn peer(&self) -> &'a Peer {
        match self.met {
            Met::Curator(_, peer) | Met::Kazoo(peer) => peer,
            Met::Recipe(_) => panic!("nobody is met but a node"),
        }
    }
}

impl Victim {
    pub(crate) fn peer(&self) -> &Peer {
        match self {
            Self::Curator(curator) => curator,
            Self::Kazoo(kazoo) => kazoo,
        }
    }
}
