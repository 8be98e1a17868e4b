//! Workers without threads, in one loop over what the server says.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use super::recipe::{Recipe, Release, Turn};
use super::wire::{Connection, Event, Message, NO_NODE, Node, OK, Record};
use crate::driver::{Order, Stamp};
use crate::machine::{self, Nanos};

/// All workers of a window.
pub(crate) struct Queue {
    recipe: Recipe,
    lines: Vec<Line>,
    workers: Vec<Worker>,
    hold: Duration,
    end: Nanos,
    /// How many names were made.
    names: u64,
    stamps: Vec<Stamp>,
}

/// A connection, with what is known by it.
struct Line {
    connection: Connection,
    /// What replies are for, in the order in which they come.
    asked: VecDeque<(usize, Asked)>,
    /// Who waits for which node's removal.
    watched: HashMap<String, usize>,
    /// The queues of the directories, with those in it that are ours.
    mirrors: Vec<(String, BTreeMap<u32, Option<usize>>)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Create,
    Replace,
    List,
    Watch,
    Delete,
    /// Nobody waits for its answer.
    LateDelete,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Joining,
    Waiting,
    Leaving,
    Done,
}

struct Worker {
    line: usize,
    directory: String,
    state: State,
    /// The path of its node, and the number at its end.
    node: String,
    number: u32,
    /// The path of the node ahead, and whether that was the head of the queue.
    ahead: String,
    ahead_is_head: bool,
    /// The node of the hold before, if it is to be deleted with the next create.
    left: Option<String>,
    stamp: Stamp,
}

impl Queue {
    pub(crate) fn prepare(recipe: Recipe, order: &Order) -> Self {
        assert!(order.hold.is_zero() || order.workers == 1, "who holds, blocks all workers");
        let count = if recipe.has_sessions { order.workers } else { 1 };
        let mut lines: Vec<Line> = (0..count).map(|_| Line::open(&order.address)).collect();
        let paths: Vec<String> = (0..order.paths).map(|index| order.path(index)).collect();
        for (ancestor, _) in order.base.match_indices('/').skip(1) {
            lines[0].connection.make_sure_of(&order.base[..ancestor]);
        }
        paths.iter().for_each(|path| lines[0].connection.make_sure_of(path));
        if recipe.turn == Turn::Mirror {
            lines.iter_mut().for_each(|line| line.mirror(&paths));
        }
        let workers = (0..order.workers).map(|index| Worker {
            line: index % count,
            directory: paths[index % order.paths].clone(),
            state: State::Joining,
            node: String::new(),
            number: 0,
            ahead: String::new(),
            ahead_is_head: false,
            left: None,
            stamp: Stamp { worker: index, ..Stamp::default() },
        });
        let workers = workers.collect();
        Self { recipe, lines, workers, hold: order.hold, end: 0, names: 0, stamps: Vec::with_capacity(1 << 16) }
    }

    pub(crate) fn run(mut self, start: Nanos, end: Nanos) -> Vec<Stamp> {
        self.end = end;
        machine::sleep_until(start);
        (0..self.workers.len()).for_each(|worker| self.join(worker));
        self.lines.iter_mut().for_each(|line| line.connection.flush());
        let poll = (self.lines.len() > 1).then(|| machine::Poll::new(self.lines.iter().map(Line::descriptor)));
        while self.workers.iter().any(|worker| worker.state != State::Done) {
            match &poll {
                None => self.serve(0),
                Some(poll) => poll.wait(|line| self.serve(line)),
            }
        }
        self.lines.into_iter().for_each(Line::close);
        self.stamps
    }

    /// Reads one message, which may have to be waited for, and all others that were read with it.
    fn serve(&mut self, line: usize) {
        loop {
            match self.lines[line].connection.receive() {
                Message::Reply(error, record) => self.answered(line, error, record),
                Message::Event(event, path) => self.told(line, event, &path),
            }
            if !self.lines[line].connection.has_message() {
                break;
            }
        }
        // What one has to say may have been heard by another.
        self.lines.iter_mut().for_each(|line| line.connection.flush());
    }

    fn join(&mut self, index: usize) {
        let name = self.name();
        let worker = &mut self.workers[index];
        let line = &mut self.lines[worker.line];
        worker.state = State::Joining;
        worker.stamp.called = machine::now();
        let kind = if self.recipe.turn == Turn::NoQueue { Node::Ephemeral } else { Node::EphemeralSequential };
        let path = format!("{}/{name}", worker.directory);
        match worker.left.take() {
            Some(left) if self.recipe.release == Release::InOneTransaction => {
                line.connection.replace(&left, &path, kind);
                line.asked.push_back((index, Asked::Replace));
            }
            left => {
                if let Some(left) = left {
                    line.connection.delete(&left);
                    line.asked.push_back((index, Asked::LateDelete));
                }
                line.connection.create(&path, kind);
                line.asked.push_back((index, Asked::Create));
            }
        }
        if self.recipe.turn == Turn::ListAtOnce {
            line.list(index, &worker.directory);
        }
    }

    fn answered(&mut self, line: usize, error: i32, mut record: Record) {
        let (index, asked) = self.lines[line].asked.pop_front().expect("a reply to what was asked");
        assert!(error == OK || asked == Asked::Watch && error == NO_NODE, "the server answers with error {error}");
        match asked {
            Asked::Create => self.created(index, record.string()),
            Asked::Replace => {
                let (_delete, _create) = (record.multi_header(), record.multi_header());
                self.created(index, record.string());
            }
            Asked::List => self.listed(index, &mut record),
            Asked::Watch if error == NO_NODE => self.woken(index),
            Asked::Watch => {
                let worker = &self.workers[index];
                self.lines[line].watched.insert(worker.ahead.clone(), index);
            }
            Asked::Delete => self.left(index),
            Asked::LateDelete => {}
        }
    }

    fn created(&mut self, index: usize, path: String) {
        let worker = &mut self.workers[index];
        worker.node = path;
        match self.recipe.turn {
            Turn::NoQueue => self.acquired(index),
            Turn::ListAtOnce => worker.number = number(worker.node.as_bytes()),
            Turn::ListAfterwards => {
                worker.number = number(worker.node.as_bytes());
                self.lines[worker.line].list(index, &worker.directory);
            }
            Turn::Mirror => {
                worker.number = number(worker.node.as_bytes());
                worker.state = State::Waiting;
                let queue = self.lines[worker.line].queue(&worker.directory);
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
        let line = &mut self.lines[worker.line];
        line.connection.watch(&worker.ahead);
        line.asked.push_back((index, Asked::Watch));
    }

    fn told(&mut self, line: usize, event: Event, path: &str) {
        if self.recipe.turn != Turn::Mirror {
            if let Some(index) = self.lines[line].watched.remove(path).filter(|_| event == Event::Deleted) {
                self.woken(index);
            }
            return;
        }
        let (directory, name) = path.rsplit_once('/').expect("an absolute path");
        let queue = self.lines[line].queue(directory);
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

    /// The node ahead is gone.
    fn woken(&mut self, index: usize) {
        let worker = &self.workers[index];
        if worker.ahead_is_head && self.recipe.turn == Turn::ListAtOnce {
            self.acquired(index);
        } else {
            self.lines[worker.line].list(index, &worker.directory);
        }
    }

    fn acquired(&mut self, index: usize) {
        self.workers[index].stamp.acquired = machine::now();
        if !self.hold.is_zero() {
            std::thread::sleep(self.hold);
        }
        self.leave(index);
    }

    fn leave(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        let line = &mut self.lines[worker.line];
        worker.state = State::Leaving;
        worker.stamp.leaving = machine::now();
        let goes_on = worker.stamp.leaving < self.end;
        match self.recipe.release {
            Release::WithNext | Release::InOneTransaction if goes_on => {
                worker.left = Some(std::mem::take(&mut worker.node));
                self.left(index);
            }
            Release::NotAwaited if goes_on => {
                line.connection.delete(&worker.node);
                line.asked.push_back((index, Asked::LateDelete));
                line.connection.flush();
                self.left(index);
            }
            _ => {
                line.connection.delete(&worker.node);
                line.asked.push_back((index, Asked::Delete));
            }
        }
    }

    fn left(&mut self, index: usize) {
        let worker = &mut self.workers[index];
        worker.stamp.left = machine::now();
        self.stamps.push(worker.stamp);
        if worker.stamp.left < self.end {
            self.join(index);
        } else {
            worker.state = State::Done;
            worker.left.take().into_iter().for_each(|left| {
                self.lines[worker.line].connection.delete(&left);
                self.lines[worker.line].asked.push_back((index, Asked::LateDelete));
            });
        }
    }

    /// A name of the length of Curator's, since lists cost by their length.
    fn name(&mut self) -> String {
        self.names += 1;
        match self.recipe.turn {
            Turn::NoQueue => "held".to_owned(),
            _ => format!("_c_{:08x}-0000-4000-8000-{:012x}-lock-", std::process::id(), self.names),
        }
    }
}

impl Line {
    fn open(address: &str) -> Self {
        let connection = Connection::open(address);
        Self { connection, asked: VecDeque::new(), watched: HashMap::new(), mirrors: Vec::new() }
    }

    /// Has the server tell of every change in these directories, which are empty yet.
    fn mirror(&mut self, paths: &[String]) {
        for path in paths {
            self.connection.watch_all_below(path);
            let error = self.connection.call();
            assert_eq!(error, OK, "a persistent watch on {path}");
            self.mirrors.push((path.clone(), BTreeMap::new()));
        }
    }

    fn queue(&mut self, directory: &str) -> &mut BTreeMap<u32, Option<usize>> {
        let mirror = self.mirrors.iter_mut().find(|(path, _)| path == directory);
        &mut mirror.expect("a directory that was asked for").1
    }

    fn list(&mut self, index: usize, directory: &str) {
        self.connection.list(directory);
        self.asked.push_back((index, Asked::List));
    }

    fn descriptor(&self) -> i32 {
        self.connection.descriptor()
    }

    fn close(self) {
        self.connection.close();
    }
}

/// The number that the server has put at the end of a name.
fn number(name: &[u8]) -> u32 {
    let digits = &name[name.len() - 10..];
    digits.iter().fold(0, |number, digit| number * 10 + u32::from(digit - b'0'))
}
