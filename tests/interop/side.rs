//! What a check has in hand: who is met, the server, and names and paths that no other check uses.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use zklock::{Client, Config};
use zklock_rig::{CuratorPeer, CuratorVersion, KazooPeer, Peer, Raw, Ticket, ZooKeeper, wait_until};

use crate::common::SOON;
use crate::process;

/// Whom zklock meets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Met {
    Curator(CuratorVersion),
    Kazoo,
    /// A node of one of ZooKeeper's own recipes: how it is called, up to its number.
    Recipe(&'static str),
}

/// A side that is met.
pub(crate) struct Side<'a> {
    pub(crate) zookeeper: &'a ZooKeeper,
    pub(crate) met: Met,
    /// How often something is repeated that is to be seen often.
    pub(crate) rounds: u32,
    peer: Option<&'a Peer>,
    number: usize,
    files: &'a Path,
}

/// A process of the other library that a check may kill.
pub(crate) enum Victim {
    Curator(CuratorPeer),
    Kazoo(KazooPeer),
}

impl<'a> Side<'a> {
    pub(crate) fn new(
        zookeeper: &'a ZooKeeper,
        met: Met,
        peer: Option<&'a Peer>,
        number: usize,
        rounds: u32,
        files: &'a Path,
    ) -> Self {
        Self { zookeeper, met, rounds, peer, number, files }
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
        self.files.join(format!("{}-{name}", self.number))
    }

    pub(crate) fn raw(&self) -> Raw {
        Raw::connect(&self.zookeeper.address(), 120_000)
    }

    /// A client as programs that share paths with the other side have it.
    pub(crate) fn client(&self) -> Client {
        self.client_with(|config| config.set_wait_for_kazoo(self.met == Met::Kazoo))
    }

    pub(crate) fn client_with(&self, change: impl FnOnce(&mut Config)) -> Client {
        let mut config = Config::new();
        change(&mut config);
        Client::connect(&self.zookeeper.address(), &config).unwrap()
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
        let address = self.zookeeper.address();
        match self.met {
            Met::Curator(version) => Victim::Curator(CuratorPeer::start(version, &address, session_timeout)),
            Met::Kazoo => Victim::Kazoo(KazooPeer::start(&address, session_timeout)),
            Met::Recipe(_) => panic!("nobody is met but a node"),
        }
    }

    /// This check with another process on the other side.
    pub(crate) fn with<'b>(&'b self, peer: &'b Peer) -> Side<'b> {
        Side { peer: Some(peer), ..*self }
    }

    /// A process with zklock, to be killed.
    pub(crate) fn zklock_process(&self, session_timeout: Duration) -> Peer {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(process::FLAG);
        Peer::start(command, &self.zookeeper.address(), session_timeout)
    }

    /// Waits until so many nodes stand in a directory.
    #[track_caller]
    pub(crate) fn wait_for_nodes(&self, path: &str, count: usize) {
        let mut raw = self.raw();
        wait_until(SOON, || raw.children(path).unwrap_or_default().len() == count);
    }

    fn peer(&self) -> &Peer {
        self.peer.expect("somebody is met")
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
