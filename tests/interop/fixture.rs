//! The context of a check: the other side, the server, and names and paths that no other check uses.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use zklock::{Client, Config};
use zklock_test_support::{
    CuratorPeer, CuratorVersion, KazooPeer, PeerProcess, PendingAnswer, RawClient, ZooKeeper, flags, wait_until,
};

use crate::common::TEST_TIMEOUT;
use crate::process;

/// The library, or the node, on the other side of a check.
#[derive(Clone, Copy)]
pub(crate) enum OtherLibrary<'a> {
    Curator(CuratorVersion, &'a PeerProcess),
    Kazoo(&'a PeerProcess),
    /// A node of one of ZooKeeper's own recipes: its name without the sequence number.
    Recipe(&'static str),
}

/// The resources that all checks share.
#[derive(Clone, Copy)]
pub(crate) struct SharedContext<'a> {
    pub(crate) zookeeper: &'a ZooKeeper,
    /// The directory of the files that the locks protect.
    pub(crate) files: &'a Path,
    /// The number of repetitions in load checks.
    pub(crate) rounds: u32,
}

#[derive(Clone, Copy)]
pub(crate) struct CheckContext<'a> {
    pub(crate) shared: &'a SharedContext<'a>,
    pub(crate) other: OtherLibrary<'a>,
    number: usize,
}

/// A process of the other library that a check may kill.
pub(crate) enum DisposablePeer {
    Curator(CuratorPeer),
    Kazoo(KazooPeer),
}

impl<'a> CheckContext<'a> {
    pub(crate) fn new(shared: &'a SharedContext<'a>, other: OtherLibrary<'a>, number: usize) -> Self {
        let cx = Self { shared, other, number };
        // The parent of all paths of the check is persistent, so that the server does not delete it.
        cx.raw().create(&cx.root(), b"", flags::PERSISTENT).unwrap();
        cx
    }

    /// The parent of all paths of the check.
    pub(crate) fn root(&self) -> String {
        format!("/interop-{}", self.number)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        let path = format!("{}/{name}", self.root());
        if self.is_kazoo() {
            // kazoo looks for the directory of a lock only once, and the server deletes an empty container. A
            // persistent directory avoids this. The directory may already exist.
            let _ = self.raw().create(&path, b"", flags::PERSISTENT);
        }
        path
    }

    /// The path of a file that does not exist yet.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.shared.files.join(format!("{}-{name}", self.number))
    }

    pub(crate) fn raw(&self) -> RawClient {
        RawClient::connect(&self.shared.zookeeper.address(), 120_000)
    }

    /// Creates a client with the settings of programs that share paths with the other side.
    pub(crate) fn client(&self) -> Client {
        self.client_with(|config| config.wait_for_kazoo(self.is_kazoo()))
    }

    pub(crate) fn client_with(&self, change: impl FnOnce(Config) -> Config) -> Client {
        Client::connect(&self.shared.zookeeper.address(), &change(Config::new())).unwrap()
    }

    /// Executes a command on the other side and returns its answer. Names such as `$x` are private to this check.
    #[track_caller]
    pub(crate) fn query(&self, command: &str) -> String {
        self.peer().query(&self.with_unique_names(command))
    }

    /// Executes a command on the other side and asserts that it succeeds.
    #[track_caller]
    pub(crate) fn run(&self, command: &str) {
        let answer = self.query(command);
        assert!(answer == "ok" || answer == "true", "{command}: {answer}");
    }

    /// Sends a command to the other side without waiting for its answer.
    pub(crate) fn send(&self, command: &str) -> PendingAnswer {
        self.peer().send(&self.with_unique_names(command))
    }

    /// Waits for an event.
    #[track_caller]
    pub(crate) fn event(&self, beginning: &str) -> String {
        self.peer().event(&self.with_unique_names(beginning), TEST_TIMEOUT)
    }

    /// Replaces `$x` by the name that the other side uses for this check.
    pub(crate) fn with_unique_names(&self, text: &str) -> String {
        text.replace('$', &format!("c{}-", self.number))
    }

    /// Starts another process of the other side, with a short session timeout.
    pub(crate) fn start_disposable_peer(&self, session_timeout: Duration) -> DisposablePeer {
        let address = self.shared.zookeeper.address();
        match self.other {
            OtherLibrary::Curator(version, _) => {
                DisposablePeer::Curator(CuratorPeer::start(version, &address, session_timeout))
            }
            OtherLibrary::Kazoo(_) => DisposablePeer::Kazoo(KazooPeer::start(&address, session_timeout)),
            OtherLibrary::Recipe(_) => panic!("the other side is a node, not a process"),
        }
    }

    /// Returns the context of the same check with another process on the other side.
    pub(crate) fn with_peer<'b>(&'b self, peer: &'b PeerProcess) -> CheckContext<'b> {
        let other = match self.other {
            OtherLibrary::Curator(version, _) => OtherLibrary::Curator(version, peer),
            OtherLibrary::Kazoo(_) => OtherLibrary::Kazoo(peer),
            OtherLibrary::Recipe(_) => self.other,
        };
        CheckContext { other, ..*self }
    }

    /// Starts a process with zklock that the check may kill.
    pub(crate) fn zklock_process(&self, session_timeout: Duration) -> PeerProcess {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(process::FLAG);
        PeerProcess::start(command, &self.shared.zookeeper.address(), session_timeout)
    }

    /// Waits until a directory has this number of nodes.
    #[track_caller]
    pub(crate) fn wait_for_nodes(&self, path: &str, count: usize) {
        let mut raw = self.raw();
        wait_until(TEST_TIMEOUT, || raw.children(path).unwrap_or_default().len() == count);
    }

    /// Waits until the server has a data watch on a node.
    #[track_caller]
    pub(crate) fn wait_for_watch(&self, node: &str) {
        wait_until(TEST_TIMEOUT, || self.shared.zookeeper.four_letter_word("wchp").lines().any(|line| line == node));
    }

    pub(crate) fn is_kazoo(&self) -> bool {
        matches!(self.other, OtherLibrary::Kazoo(_))
    }

    /// Whether this version of Curator has the bug CURATOR-621 of read locks under write locks: 5.4.0 does, 5.5.0 does
    /// not.
    pub(crate) fn has_curator_621(&self) -> bool {
        matches!(self.other, OtherLibrary::Curator(CuratorVersion::Debian, _))
    }

    fn peer(&self) -> &'a PeerProcess {
        match self.other {
            OtherLibrary::Curator(_, peer) | OtherLibrary::Kazoo(peer) => peer,
            OtherLibrary::Recipe(_) => panic!("the other side is a node, not a process"),
        }
    }
}

impl DisposablePeer {
    pub(crate) fn peer(&self) -> &PeerProcess {
        match self {
            Self::Curator(curator) => curator,
            Self::Kazoo(kazoo) => kazoo,
        }
    }
}
