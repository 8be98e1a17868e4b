//! Locks of other crates, as drivers: that of `zookeeper-client`, and a naive recipe by hand with `zookeeper`.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use zookeeper::{Acl, CreateMode, WatchedEvent, ZkError, ZooKeeper};
use zookeeper_client::{Acls, Client, CreateMode as Kind, LockOptions, LockPrefix};

use crate::driver::{Driver, Order, Stamp};
use crate::machine::{self, Nanos};

const SESSION_TIMEOUT: Duration = Duration::from_secs(60);
const DATA: &[u8] = b"127.0.0.1";

/// What a driver of this kind does with a crate.
pub(crate) trait Library: Sync + Sized {
    /// Connects, and makes the directory of each path.
    fn connect(address: &str, order: &Order) -> Result<Self, String>;

    /// Acquires the lock on a path, calls `held`, and releases.
    fn with_lock(&self, path: &str, held: &mut dyn FnMut()) -> Result<(), String>;

    /// Ends the session.
    fn close(self);
}

/// A crate's lock, with a thread for each worker, and one session.
pub(crate) struct Threads<L> {
    address: String,
    prepared: Option<(L, Order)>,
}

impl<L: Library> Threads<L> {
    pub(crate) fn new(address: &str) -> Self {
        Self { address: address.to_owned(), prepared: None }
    }
}

impl<L: Library> Driver for Threads<L> {
    fn prepare(&mut self, order: &Order) -> Result<(), String> {
        self.prepared = Some((L::connect(&self.address, order)?, order.clone()));
        Ok(())
    }

    fn go(&mut self, start: Nanos, end: Nanos) -> Result<Vec<Stamp>, String> {
        let (library, order) = self.prepared.take().ok_or("go before prepare")?;
        let stamps = thread::scope(|scope| {
            let (library, order) = (&library, &order);
            let workers = (0..order.workers).map(|index| scope.spawn(move || work(library, order, index, start, end)));
            let workers: Vec<_> = workers.collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect::<Result<Vec<_>, _>>()
        });
        library.close();
        Ok(stamps?.concat())
    }
}

fn work(library: &impl Library, order: &Order, index: usize, start: Nanos, end: Nanos) -> Result<Vec<Stamp>, String> {
    let path = order.path(index % order.paths);
    let mut stamps: Vec<Stamp> = Vec::new();
    machine::sleep_until(start);
    while stamps.last().is_none_or(|last| last.left < end) {
        let mut stamp = Stamp { worker: index, called: machine::now(), ..Stamp::default() };
        library.with_lock(&path, &mut || {
            stamp.acquired = machine::now();
            if !order.hold.is_zero() {
                thread::sleep(order.hold);
            }
            stamp.leaving = machine::now();
        })?;
        stamp.left = machine::now();
        stamps.push(stamp);
    }
    Ok(stamps)
}

/// `zookeeper-client`: its own lock, in Curator's form. Dropping it is its release, which does not wait.
pub(crate) struct ZookeeperClient {
    runtime: tokio::runtime::Runtime,
    client: Client,
}

impl Library for ZookeeperClient {
    fn connect(address: &str, order: &Order) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let connector = Client::connector().with_session_timeout(SESSION_TIMEOUT);
        let client = runtime.block_on(connector.connect(address)).map_err(|error| error.to_string())?;
        let options = Kind::Persistent.with_acls(Acls::anyone_all());
        for index in 0..order.paths {
            let made = runtime.block_on(client.mkdir(&order.path(index), &options));
            made.or_else(
                |error| if error == zookeeper_client::Error::NodeExists { Ok(()) } else { Err(error.to_string()) },
            )?;
        }
        Ok(Self { runtime, client })
    }

    fn with_lock(&self, path: &str, held: &mut dyn FnMut()) -> Result<(), String> {
        let prefix = LockPrefix::new_curator(path, "lock-").map_err(|error| error.to_string())?;
        let options = LockOptions::new(Acls::anyone_all());
        let lock = self.runtime.block_on(self.client.lock(prefix, DATA, options)).map_err(|error| error.to_string())?;
        held();
        let _of_the_release = self.runtime.enter();
        drop(lock);
        Ok(())
    }

    fn close(self) {
        // Dropping a lock asks for its release, and nothing tells when that was done; the runtime must not end before.
        let begun = machine::now();
        let has_nodes = || self.runtime.block_on(self.client.list_ephemerals("/")).is_ok_and(|nodes| !nodes.is_empty());
        while has_nodes() && machine::now() - begun < 5 * machine::SECOND {
            thread::sleep(Duration::from_millis(1));
        }
        drop(self.client);
        self.runtime.shutdown_timeout(Duration::from_secs(1));
    }
}

/// `zookeeper`: the recipe as ZooKeeper's documentation has it, by hand, without any error handling.
pub(crate) struct Naive(ZooKeeper);

impl Library for Naive {
    fn connect(address: &str, order: &Order) -> Result<Self, String> {
        let client =
            ZooKeeper::connect(address, SESSION_TIMEOUT, |_: WatchedEvent| {}).map_err(|error| error.to_string())?;
        let paths: Vec<String> = (0..order.paths).map(|index| order.path(index)).collect();
        let ancestors = order.base.match_indices('/').skip(1).map(|(end, _)| &order.base[..end]);
        for path in ancestors.chain(paths.iter().map(String::as_str)) {
            match client.create(path, Vec::new(), Acl::open_unsafe().clone(), CreateMode::Persistent) {
                Ok(_) | Err(ZkError::NodeExists) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(Self(client))
    }

    fn with_lock(&self, path: &str, held: &mut dyn FnMut()) -> Result<(), String> {
        let node = self.join(path).map_err(|error| error.to_string())?;
        held();
        self.0.delete(&node, None).map_err(|error| error.to_string())
    }

    fn close(self) {
        let _ = self.0.close();
    }
}

impl Naive {
    fn join(&self, path: &str) -> Result<String, ZkError> {
        let acl = Acl::open_unsafe().clone();
        let node = self.0.create(&format!("{path}/lock-"), DATA.to_vec(), acl, CreateMode::EphemeralSequential)?;
        let name = &node[path.len() + 1..];
        loop {
            let mut names = self.0.get_children(path, false)?;
            names.sort();
            let Some(ahead) = names.iter().rev().find(|other| other.as_str() < name) else { return Ok(node) };
            let (sender, told) = channel();
            let watcher = move |_: WatchedEvent| {
                let _ = sender.send(());
            };
            match self.0.exists_w(&format!("{path}/{ahead}"), watcher) {
                Ok(Some(_)) => drop(told.recv()),
                Ok(None) | Err(ZkError::NoNode) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
