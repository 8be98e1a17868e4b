//! The workers of a floor. They have no threads: one loop handles all messages of the server.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use super::recipe::{FloorRecipe, GrantDetection, Release};
use super::wire::{Connection, Event, Message, NO_NODE, Node, OK, Record};
use crate::driver::{PrepareCommand, Stamp};
use crate::machine::{self, Nanos};

/// All workers of a window.
pub(crate) struct Workers {
    recipe: FloorRecipe,
    connections: Vec<ServerConnection>,
    workers: Vec<Worker>,
    hold: Duration,
    end: Nanos,
    /// The number of node names created so far.
    names: u64,
    stamps: Vec<Stamp>,
}

/// A connection and the state that depends on it.
struct ServerConnection {
    connection: Connection,
    /// The purpose of each pending request, in order.
    pending: VecDeque<(usize, PendingRequest)>,
    /// The worker that waits for the removal of each node.
    watchers: HashMap<String, usize>,
    /// The queues of the directories, with the worker of each node that is ours.
    queues: Vec<(String, BTreeMap<u32, Option<usize>>)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PendingRequest {
    Create,
    Replace,
    List,
    Watch,
    Delete,
    /// A delete. No worker waits for its reply.
    LateDelete,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Acquiring,
    Waiting,
    Releasing,
    Done,
}

struct Worker {
    connection: usize,
    directory: String,
    state: State,
    /// The path and the sequence number of the present node.
    node: String,
    number: u32,
    /// The path of the node ahead, and whether that node was the head of the queue.
    ahead: String,
    ahead_is_head: bool,
    /// The node of the previous hold, if it is deleted together with the next create.
    left: Option<String>,
    stamp: Stamp,
}

impl Workers {
    pub(crate) fn prepare(recipe: FloorRecipe, order: &PrepareCommand) -> Self {
        assert!(order.hold.is_zero() || order.workers == 1, "a hold blocks all workers, so only one worker is allowed");
        let count = if recipe.has_sessions { order.workers } else { 1 };
        let mut connections: Vec<ServerConnection> =
            (0..count).map(|_| ServerConnection::open(&order.address)).collect();
        let paths: Vec<String> = (0..order.paths).map(|index| order.path(index)).collect();
        for (ancestor, _) in order.base.match_indices('/').skip(1) {
            connections[0].connection.ensure_exists(&order.base[..ancestor]);
        }
        paths.iter().for_each(|path| connections[0].connection.ensure_exists(path));
        if recipe.turn == GrantDetection::PersistentWatch {
            connections.iter_mut().for_each(|connection| connection.watch_directories(&paths));
        }
        let workers = (0..order.workers).map(|index| Worker {
            connection: index % count,
            directory: paths[index % order.paths].clone(),
            state: State::Acquiring,
            node: String::new(),
            number: 0,
            ahead: String::new(),
            ahead_is_head: false,
            left: None,
            stamp: Stamp { worker: index, ..Stamp::default() },
        });
        let workers = workers.collect();
        Self { recipe, connections, workers, hold: order.hold, end: 0, names: 0, stamps: Vec::with_capacity(1 << 16) }
    }

    pub(crate) fn run(mut self, start: Nanos, end: Nanos) -> Vec<Stamp> {
        self.end = end;
        machine::sleep_until(start);
        (0..self.workers.len()).for_each(|worker| self.start_acquire(worker));
        self.connections.iter_mut().for_each(|connection| connection.connection.flush());
        let poll = (self.connections.len() > 1)
            .then(|| machine::Poll::new(self.connections.iter().map(ServerConnection::descriptor)));
        while self.workers.iter().any(|worker| worker.state != State::Done) {
            match &poll {
                None => self.process_messages(0),
                Some(poll) => poll.wait(|connection| self.process_messages(connection)),
            }
        }
        self.connections.into_iter().for_each(ServerConnection::close);
        self.stamps
    }

    /// Waits for one message and processes it, together with all further messages that were read with it.
    fn process_messages(&mut self, connection: usize) {
        loop {
            match self.connections[connection].connection.receive() {
                Message::Reply(error, record) => self.on_reply(connection, error, record),
                Message::Event(event, path) => self.on_event(connection, event, &path),
            }
            if !self.connections[connection].connection.has_message() {
                break;
            }
        }
        // A message on one connection can make a worker of another connection send a request.
        self.connections.iter_mut().for_each(|connection| connection.connection.flush());
    }

    fn start_acquire(&mut self, index: usize) {
        let name = self.next_node_name();
        let worker = &mut self.workers[index];
        let connection = &mut self.connections[worker.connection];
        worker.state = State::Acquiring;
        worker.stamp.called = machine::now();
        let kind =
            if self.recipe.turn == GrantDetection::NoQueue { Node::Ephemeral } else { Node::EphemeralSequential };
        let path = format!("{}/{name}", worker.directory);
        match worker.left.take() {
            Some(left) if self.recipe.release == Release::InOneTransaction => {
                connection.connection.replace(&left, &path, kind);
                connection.pending.push_back((index, PendingRequest::Replace));
            }
            left => {
                if let Some(left) = left {
                    connection.connection.delete(&left);
                    connection.pending.push_back((index, PendingRequest::LateDelete));
                }
                connection.connection.create(&path, kind);
                connection.pending.push_back((index, PendingRequest::Create));
            }
        }
        if self.recipe.turn == GrantDetection::ListWithCreate {
            connection.list(index, &worker.directory);
        }
    }

    fn on_reply(&mut self, connection: usize, error: i32, mut record: Record) {
        let (index, asked) = self.connections[connection].pending.pop_front().expect("a reply without a request");
        assert!(
            error == OK || asked == PendingRequest::Watch && error == NO_NODE,
            "the server answered with error {error}"
        );
        match asked {
            PendingRequest::Create => self.created(index, record.string()),
            PendingRequest::Replace => {
                let (_delete, _create) = (record.multi_header(), record.multi_header());
                self.created(index, record.string());
            }
            PendingRequest::List => self.listed(index, &mut record),
            PendingRequest::Watch if error == NO_NODE => self.on_node_ahead_deleted(index),
            PendingRequest::Watch => {
                let worker = &self.workers[index];
                self.connections[connection].watchers.insert(worker.ahead.clone(), index);
            }
            PendingRequest::Delete => self.released(index),
            PendingRequest::LateDelete => {}
        }
    }

    fn created(&mut self, index: usize, path: String) {
        let worker = &mut self.workers[index];
        worker.node = path;
        match self.recipe.turn {
            GrantDetection::NoQueue => self.acquired(index),
            GrantDetection::ListWithCreate => worker.number = number(worker.node.as_bytes()),
            GrantDetection::ListAfterCreate => {
                worker.number = number(worker.node.as_bytes());
                self.connections[worker.connection].list(index, &worker.directory);
            }
            GrantDetection::PersistentWatch => {
                worker.number = number(worker.node.as_bytes());
                worker.state = State::Waiting;
                let queue = self.connections[worker.connection].queue_of(&worker.directory);
                queue.insert(worker.number, Some(index));
                if queue.first_key_value().is_some_and(|(&first, _)| first == worker.number) {
                    self.acquired(index);
                }
            }
        }
    }

    fn listed(&mut self, index: usize, record: &mut Record) {
        let worker = &mut self.workers[index];
        let mut before = 0;
        let mut nearest = 0;
        for _ in 0..record.int() {
            let name = record.bytes();
            let number = number(name);
            if number < worker.number {
                if before == 0 || number > nearest {
                    nearest = number;
                    worker.ahead.clear();
                    worker.ahead.push_str(&worker.directory);
                    worker.ahead.push('/');
                    worker.ahead.push_str(std::str::from_utf8(name).expect("a name in UTF-8"));
                }
                before += 1;
            }
        }
        if before == 0 {
            return self.acquired(index);
        }
        worker.state = State::Waiting;
        worker.ahead_is_head = before == 1;
        let connection = &mut self.connections[worker.connection];
        connection.connection.watch(&worker.ahead);
        connection.pending.push_back((index, PendingRequest::Watch));
    }

    fn on_event(&mut self, connection: usize, event: Event, path: &str) {
        if self.recipe.turn != GrantDetection::PersistentWatch {
            if let Some(index) = self.connections[connection].watchers.remove(path).filter(|_| event == Event::Deleted)
            {
                self.on_node_ahead_deleted(index);
            }
            return;
        }
        let (directory, name) = path.rsplit_once('/').expect("an absolute path");
        let queue = self.connections[connection].queue_of(directory);
        match event {
            Event::Created => drop(queue.entry(number(name.as_bytes())).or_insert(None)),
            Event::Deleted => drop(queue.remove(&number(name.as_bytes()))),
            Event::Other => {}
        }
        let first = queue.first_key_value().and_then(|(_, worker)| *worker);
        if let Some(index) = first.filter(|&index| self.workers[index].state == State::Waiting) {
            self.acquired(index);
        }
    }

    /// Handles the deletion of the node ahead.
    fn on_node_ahead_deleted(&mut self, index: usize) {
        let worker = &self.workers[index];
        if worker.ahead_is_head && self.recipe.turn == GrantDetection::ListWithCreate {
            self.acquired(index);
        } else {
            self.connections[worker.connection].list(index, &worker.directory);
        }
    }

    fn acquired(&mut self, index: usize) {
        self.workers[index].stamp.acquired = machine::now();
        if !self.hold.is_zero() {
            std::thread::sleep(self.hold);
        }
        self.release(index);
    }

    fn release(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        let connection = &mut self.connections[worker.connection];
        worker.state = State::Releasing;
        worker.stamp.releasing = machine::now();
        let goes_on = worker.stamp.releasing < self.end;
        match self.recipe.release {
            Release::WithNext | Release::InOneTransaction if goes_on => {
                worker.left = Some(std::mem::take(&mut worker.node));
                self.released(index);
            }
            Release::SkipsReply if goes_on => {
                connection.connection.delete(&worker.node);
                connection.pending.push_back((index, PendingRequest::LateDelete));
                connection.connection.flush();
                self.released(index);
            }
            _ => {
                connection.connection.delete(&worker.node);
                connection.pending.push_back((index, PendingRequest::Delete));
            }
        }
    }

    fn released(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        worker.stamp.released = machine::now();
        self.stamps.push(worker.stamp);
        if worker.stamp.released < self.end {
            self.start_acquire(index);
        } else {
            worker.state = State::Done;
            worker.left.take().into_iter().for_each(|left| {
                self.connections[worker.connection].connection.delete(&left);
                self.connections[worker.connection].pending.push_back((index, PendingRequest::LateDelete));
            });
        }
    }

    /// A name as long as Curator's, because the cost of a list depends on the length of its names.
    fn next_node_name(&mut self) -> String {
        self.names += 1;
        match self.recipe.turn {
            GrantDetection::NoQueue => "held".to_owned(),
            _ => format!("_c_{:08x}-0000-4000-8000-{:012x}-lock-", std::process::id(), self.names),
        }
    }
}

impl ServerConnection {
    fn open(address: &str) -> Self {
        let connection = Connection::open(address);
        Self { connection, pending: VecDeque::new(), watchers: HashMap::new(), queues: Vec::new() }
    }

    /// Sets a persistent recursive watch on these directories, which are still empty.
    fn watch_directories(&mut self, paths: &[String]) {
        for path in paths {
            self.connection.add_recursive_watch(path);
            let error = self.connection.call();
            assert_eq!(error, OK, "cannot set a persistent watch on {path}");
            self.queues.push((path.clone(), BTreeMap::new()));
        }
    }

    fn queue_of(&mut self, directory: &str) -> &mut BTreeMap<u32, Option<usize>> {
        let mirror = self.queues.iter_mut().find(|(path, _)| path == directory);
        &mut mirror.expect("the directory has a persistent watch").1
    }

    fn list(&mut self, index: usize, directory: &str) {
        self.connection.list(directory);
        self.pending.push_back((index, PendingRequest::List));
    }

    fn descriptor(&self) -> i32 {
        self.connection.descriptor()
    }

    fn close(self) {
        self.connection.close();
    }
}

/// The sequence number at the end of a name.
fn number(name: &[u8]) -> u32 {
    let digits = &name[name.len() - 10..];
    digits.iter().fold(0, |number, digit| number * 10 + u32::from(digit - b'0'))
}
