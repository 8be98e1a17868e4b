//! Drivers for the locks of other crates: the lock of `zookeeper-client`, and a minimal recipe by hand with
//! `zookeeper`.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use zookeeper::{Acl, CreateMode, WatchedEvent, ZkError, ZooKeeper};
use zookeeper_client::{Acls, Client, CreateMode as Kind, LockOptions, LockPrefix};

use crate::driver::{Driver, PrepareCommand, Stamp};
use crate::machine::{self, Nanos};

const SESSION_TIMEOUT: Duration = Duration::from_secs(60);
const DATA: &[u8] = b"127.0.0.1";

/// The lock of `zookeeper-client`, in Curator's name format. Dropping the lock releases it without waiting.
///
/// The crate is asynchronous, so each worker is a task. All tasks share the thread of one runtime, as in a program that
/// uses the crate.
#[derive(Default)]
pub(crate) struct ZookeeperClient {
    prepared: Option<(Runtime, Client, PrepareCommand)>,
}

impl Driver for ZookeeperClient {
    fn prepare(&mut self, order: &PrepareCommand) -> Result<(), String> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
        let client = runtime.block_on(connect(order))?;
        self.prepared = Some((runtime, client, order.clone()));
        Ok(())
    }

    fn go(&mut self, start: Nanos, end: Nanos) -> Result<Vec<Stamp>, String> {
        let (runtime, client, order) = self.prepared.take().ok_or("go before prepare")?;
        let task = |index| runtime.spawn(work_as_task(client.clone(), order.clone(), index, end));
        let tasks: Vec<JoinHandle<_>> = (0..order.workers).map(task).collect();
        machine::sleep_until(start);
        runtime.block_on(async {
            let mut stamps = Vec::new();
            for task in tasks {
                stamps.extend(task.await.map_err(|error| error.to_string())??);
            }
            disconnect(client).await;
            Ok(stamps)
        })
    }
}

async fn connect(order: &PrepareCommand) -> Result<Client, String> {
    let connector = Client::connector().with_session_timeout(SESSION_TIMEOUT);
    let client = connector.connect(&order.address).await.map_err(|error| error.to_string())?;
    let options = Kind::Persistent.with_acls(Acls::anyone_all());
    for index in 0..order.paths {
        match client.mkdir(&order.path(index), &options).await {
            Ok(()) | Err(zookeeper_client::Error::NodeExists) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(client)
}

/// Runs a worker. The runtime first polls the workers at the start of the window.
async fn work_as_task(client: Client, order: PrepareCommand, index: usize, end: Nanos) -> Result<Vec<Stamp>, String> {
    let path = order.path(index % order.paths);
    let mut stamps: Vec<Stamp> = Vec::new();
    while stamps.last().is_none_or(|last| last.released < end) {
        let mut stamp = Stamp { worker: index, called: machine::now(), ..Stamp::default() };
        let prefix = LockPrefix::new_curator(&path, "lock-").map_err(|error| error.to_string())?;
        let options = LockOptions::new(Acls::anyone_all());
        let lock = client.lock(prefix, DATA, options).await.map_err(|error| error.to_string())?;
        stamp.acquired = machine::now();
        if !order.hold.is_zero() {
            // The timers of the runtime have a resolution of one millisecond. A worker that holds the lock is alone in
            // its process, so this sleep delays no other worker.
            thread::sleep(order.hold);
        }
        stamp.releasing = machine::now();
        drop(lock);
        stamp.released = machine::now();
        stamps.push(stamp);
    }
    Ok(stamps)
}

async fn disconnect(client: Client) {
    // Dropping a lock requests its release but does not report its end. The session must not end before.
    let begun = machine::now();
    let is_late = || machine::now() - begun > 5 * machine::SECOND;
    while client.list_ephemerals("/").await.is_ok_and(|nodes| !nodes.is_empty()) && !is_late() {}
    let mut states = client.state_watcher();
    drop(client);
    while !states.changed().await.is_terminated() {}
}

/// The crate `zookeeper` with the recipe of ZooKeeper's documentation, without error handling and with a thread for
/// each worker.
#[derive(Default)]
pub(crate) struct Naive {
    prepared: Option<(ZooKeeper, PrepareCommand)>,
}

impl Driver for Naive {
    fn prepare(&mut self, order: &PrepareCommand) -> Result<(), String> {
        let client = ZooKeeper::connect(&order.address, SESSION_TIMEOUT, |_: WatchedEvent| {});
        let client = client.map_err(|error| error.to_string())?;
        let paths: Vec<String> = (0..order.paths).map(|index| order.path(index)).collect();
        let ancestors = order.base.match_indices('/').skip(1).map(|(end, _)| &order.base[..end]);
        for path in ancestors.chain(paths.iter().map(String::as_str)) {
            match client.create(path, Vec::new(), Acl::open_unsafe().clone(), CreateMode::Persistent) {
                Ok(_) | Err(ZkError::NodeExists) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        self.prepared = Some((client, order.clone()));
        Ok(())
    }

    fn go(&mut self, start: Nanos, end: Nanos) -> Result<Vec<Stamp>, String> {
        let (client, order) = self.prepared.take().ok_or("go before prepare")?;
        let stamps = thread::scope(|scope| {
            let (client, order) = (&client, &order);
            let worker = |index| scope.spawn(move || work_as_thread(client, order, index, start, end));
            let workers: Vec<_> = (0..order.workers).map(worker).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect::<Result<Vec<_>, _>>()
        });
        let _ = client.close();
        Ok(stamps.map_err(|error| error.to_string())?.concat())
    }
}

fn work_as_thread(
    client: &ZooKeeper,
    order: &PrepareCommand,
    index: usize,
    start: Nanos,
    end: Nanos,
) -> Result<Vec<Stamp>, ZkError> {
    let path = order.path(index % order.paths);
    let mut stamps: Vec<Stamp> = Vec::new();
    machine::sleep_until(start);
    while stamps.last().is_none_or(|last| last.released < end) {
        let mut stamp = Stamp { worker: index, called: machine::now(), ..Stamp::default() };
        let node = join(client, &path)?;
        stamp.acquired = machine::now();
        if !order.hold.is_zero() {
            thread::sleep(order.hold);
        }
        stamp.releasing = machine::now();
        client.delete(&node, None)?;
        stamp.released = machine::now();
        stamps.push(stamp);
    }
    Ok(stamps)
}

fn join(client: &ZooKeeper, path: &str) -> Result<String, ZkError> {
    let acl = Acl::open_unsafe().clone();
    let node = client.create(&format!("{path}/lock-"), DATA.to_vec(), acl, CreateMode::EphemeralSequential)?;
    let name = &node[path.len() + 1..];
    loop {
        let mut names = client.get_children(path, false)?;
        names.sort();
        let Some(ahead) = names.iter().rev().find(|other| other.as_str() < name) else { return Ok(node) };
        let (sender, notified) = channel();
        let watcher = move |_: WatchedEvent| {
            let _ = sender.send(());
        };
        match client.exists_w(&format!("{path}/{ahead}"), watcher) {
            Ok(Some(_)) => drop(notified.recv()),
            Ok(None) | Err(ZkError::NoNode) => {}
            Err(error) => return Err(error),
        }
    }
}
