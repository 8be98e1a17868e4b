//! The simulated world: a virtual clock, scheduled events, the network, and the faults.

mod stepwise;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use fastrand::Rng;
use zklock_core::session::{Command, ConnectionEvent, SaslMechanism};
use zklock_core::time::Time;
use zklock_proto::{ConnectRequest, CreateMode};
use zklock_standalone::{Change, ConnectionAction, ReplicaOutput, Txn, TxnBody};

use crate::checker::{COUNTS_DIRECTORY, Checker, REVOKE};
use crate::client::{Client, Life, Scheduled, path_of};
use crate::cluster::{Cluster, between, changes_of};
use crate::plan::{Fault, ForeignRecipe, PathRecipe, Plan, ms};
use crate::program::Program;
use crate::sasl::ClientSasl;

/// A scheduled event.
#[derive(Debug)]
enum Event {
    StartClient(usize),
    Timer(usize),
    RunThread(usize, usize),
    Cancel(usize, usize, bool),
    /// A task of a program runs.
    RunTask(usize, usize),
    /// A task cancels the operation that it waits for, or abandons it.
    CancelTask(usize, usize, bool),
    /// A suspended process continues, and first checks its holds.
    ClientResumed(usize),
    /// A connection attempt reaches its server.
    ConnectionAttempt {
        client: usize,
        attempt: u64,
        server: usize,
    },
    DeliverToServer(usize),
    DeliverToClient(usize),
    Thaw(usize),
    DeliverToLeader(usize),
    DeliverToReplica(usize),
    LeaderTimer,
    RelayTouches,
    Fault(usize),
    Elect,
    /// A server notices that it is isolated.
    NoticeIsolation(usize, u32),
    /// A server returns.
    ServerReturns(usize, u32),
    LagEnds(usize),
    SlowEnds,
    /// A suspended server continues and answers the pings that its leader has sent meanwhile.
    ServerResumed(usize),
    /// A leader whose transactions are not committed stops for this time.
    StopBlockedLeader(usize, u32, Duration),
    ReachableAgain(usize),
    /// Another program deletes its node.
    DeleteForeignNode(String),
    /// All permissions of a directory are restored.
    RestorePermissions(String),
    FaultsEnd,
    RestoreResources,
    CheckQuiescence,
    CheckClosed,
}

/// A simulated connection.
struct Connection {
    client: usize,
    server: usize,
    /// The client has sent nothing on it yet, so the next message is the handshake.
    is_handshake_due: bool,
    to_server: Pipe,
    to_client: Pipe,
    break_after: Option<Break>,
}

/// Breaks a connection after a number of frames in one direction.
#[derive(Debug, Clone, Copy)]
struct Break {
    frames: usize,
    is_reply: bool,
}

#[derive(Default)]
struct Pipe {
    queue: VecDeque<(Time, Message)>,
    frozen: bool,
}

enum Message {
    Bytes(Vec<u8>),
    End,
}

pub(crate) struct World {
    pub(crate) checker: Checker,
    pub(crate) steps: u64,
    /// The log of the run, if it was requested.
    pub(crate) history: Option<Vec<String>>,
    plan: Plan,
    rng: Rng,
    now: Time,
    events: BTreeMap<(Time, u64), Event>,
    sequence: u64,
    cluster: Cluster,
    clients: Vec<Client>,
    programs: Vec<Program>,
    /// The random number generator of the programs. It is separate, so that programs do not change the random choices
    /// of a run.
    program_rng: Rng,
    connections: BTreeMap<usize, Connection>,
    last_connection: usize,
    last_attempt: u64,
    latency: (Duration, Duration),
    /// Clients that cannot reach a server; `None` means that they cannot reach any server.
    unreachable: BTreeMap<usize, Option<usize>>,
    /// Clients that can reach only this server.
    only_server: BTreeMap<usize, usize>,
    /// Clients whose next connection breaks.
    next_break: BTreeMap<usize, Break>,
    /// Clients whose next handshake gets a new session, whatever the client requests.
    force_new_session: BTreeSet<usize>,
    /// Sessions that were replaced while they still existed.
    replaced_sessions: BTreeSet<i64>,
    /// For each server, the number of its outages. An event that belongs to an earlier outage is ignored.
    outages: Vec<u32>,
    leader_timer: Option<Time>,
    /// For each server, the time until which it is suspended.
    paused_until: Vec<Time>,
    /// Nodes of other programs, and directories with restricted permissions.
    foreign_nodes: BTreeSet<String>,
    restricted_directories: BTreeSet<String>,
    /// Number of committed transactions in the history.
    logged_txns: usize,
    is_over: bool,
}

/// The time that the clients have after the end of all faults to complete their work.
const COMPLETION_LIMIT: Duration = Duration::from_secs(3_000);

/// Maximum number of events between two grants. A run with more events without a grant makes no progress. The number of
/// grants is bounded.
const MAX_STEPS_WITHOUT_GRANT: u64 = 300_000;

impl World {
    pub(crate) fn new(seed: u64, with_history: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let plan = Plan::new(&mut rng);
        let now = Time::default() + ms(1_000);
        let cluster = Cluster::new(&plan, now);
        let clients =
            plan.clients.iter().enumerate().map(|(index, own)| Client::new(index, &plan, own, &mut rng, now)).collect();
        let mut world = Self {
            checker: Checker::default(),
            steps: 0,
            history: with_history.then(Vec::new),
            latency: plan.latency,
            outages: vec![0; plan.servers],
            paused_until: vec![now; plan.servers],
            plan,
            rng,
            now,
            events: BTreeMap::new(),
            sequence: 0,
            cluster,
            clients,
            programs: Vec::new(),
            program_rng: Rng::with_seed(!seed),
            connections: BTreeMap::new(),
            last_connection: 0,
            last_attempt: 0,
            unreachable: BTreeMap::new(),
            only_server: BTreeMap::new(),
            next_break: BTreeMap::new(),
            force_new_session: BTreeSet::new(),
            replaced_sessions: BTreeSet::new(),
            leader_timer: None,
            foreign_nodes: BTreeSet::new(),
            restricted_directories: BTreeSet::new(),
            logged_txns: 0,
            is_over: false,
        };
        world.schedule_initial();
        world
    }

    fn schedule_initial(&mut self) {
        let begin = self.now;
        let starts: Vec<Duration> = self.plan.clients.iter().map(|own| own.start).collect();
        for (client, start) in starts.into_iter().enumerate() {
            self.schedule(begin + start, Event::StartClient(client));
        }
        let faults: Vec<Duration> = self.plan.faults.iter().map(|&(at, _)| at).collect();
        for (fault, at) in faults.into_iter().enumerate() {
            self.schedule(begin + at, Event::Fault(fault));
        }
        for (path, &path_recipe) in self.plan.path_recipes.iter().enumerate() {
            match path_recipe {
                PathRecipe::Semaphore(leases) | PathRecipe::Counted(leases) => {
                    self.checker.set_max_leases(begin, path, leases);
                }
                PathRecipe::SemaphoreMutex => self.checker.set_max_leases(begin, path, 1),
                PathRecipe::Mutex | PathRecipe::ReadWrite => {}
            }
        }
        (self.checker.max_passes, self.checker.root) = (self.plan.max_passes, self.plan.root);
        self.checker.max_path_bytes = self.plan.max_path_bytes;
        if !self.plan.root.is_empty() {
            let mode = CreateMode::Persistent;
            self.cluster.create(&mut self.rng, &mut self.checker, begin, self.plan.root, mode);
            (0..self.cluster.servers.len()).for_each(|server| self.cluster.join(server));
        }
        self.create_programs();
        self.schedule(begin + self.plan.touch_interval, Event::RelayTouches);
        self.schedule(begin + self.plan.faults_end, Event::FaultsEnd);
        self.set_leader_timer();
        if self.history.is_some() {
            let text = format!("{:#?}", self.plan);
            self.log(|| text);
        }
    }

    /// Runs until the end, or until the checker finds a violation.
    pub(crate) fn run(&mut self) {
        let (mut grants, mut since) = (0, 0);
        while !self.is_over && self.checker.violation.is_none() {
            let Some(((at, _), event)) = self.events.pop_first() else { break };
            self.now = at;
            self.steps += 1;
            if self.checker.grants > grants {
                (grants, since) = (self.checker.grants, self.steps);
            }
            if self.steps > since + MAX_STEPS_WITHOUT_GRANT {
                self.checker.add_violation(|| "the run does not end".to_owned());
            }
            self.handle(event);
        }
    }

    fn schedule(&mut self, time: Time, event: Event) {
        self.sequence += 1;
        self.events.insert((time, self.sequence), event);
    }

    fn log(&mut self, what: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(history) = &mut self.history {
            let seconds = (now - Time::default()).as_secs_f64();
            history.push(format!("{seconds:10.4} {}", what()));
        }
    }

    fn handle(&mut self, event: Event) {
        if let Some(client) = self.client_of_event(&event) {
            if self.clients[client].life == Life::Ended {
                return;
            }
            // A suspended process handles its events in their order when it continues.
            if self.clients[client].paused_until > self.now {
                return self.schedule(self.clients[client].paused_until, event);
            }
        }
        // A suspended server handles its events later too.
        if let Some(until) =
            self.server_of(&event).map(|server| self.paused_until[server]).filter(|&until| until > self.now)
        {
            return self.schedule(until, event);
        }
        match event {
            Event::StartClient(client) => self.start_client(client),
            Event::Timer(client) => self.timer(client),
            Event::RunThread(client, thread) => {
                let wishes = self.clients[client].run_thread(&mut self.rng, &mut self.checker, self.now, thread);
                self.schedule_requests(client, wishes);
                self.process_engine(client);
            }
            Event::Cancel(client, thread, alone) => {
                let others = if alone { "" } else { " and those who wait with it" };
                self.log(|| format!("client {client}: thread {thread}{others} is canceled"));
                self.clients[client].cancel(self.now, thread, alone);
                self.process_engine(client);
            }
            Event::RunTask(program, task) => self.run_task(program, task),
            Event::CancelTask(program, task, abandons) => self.cancel_task(program, task, abandons),
            Event::ClientResumed(client) => {
                self.log(|| format!("client {client} goes on"));
                self.clients[client].on_resumed(self.now);
                self.clients[client].check_holds(&mut self.checker, self.now);
                self.check_task_holds(client);
            }
            Event::ConnectionAttempt { client, attempt, server } => self.attempt_connection(client, attempt, server),
            Event::DeliverToServer(link) => self.deliver_to_server(link),
            Event::DeliverToClient(link) => self.deliver_to_client(link),
            Event::Thaw(link) => self.thaw(link),
            Event::DeliverToLeader(server) => {
                let deliveries = self.cluster.deliver_to_leader(&mut self.rng, &mut self.checker, self.now, server);
                self.schedule_deliveries(deliveries);
            }
            Event::DeliverToReplica(server) => {
                self.cluster.deliver_to_replica(self.now, server);
                self.process_replica(server);
            }
            Event::LeaderTimer => {
                self.leader_timer = None;
                let deliveries = self.cluster.advance(&mut self.rng, &mut self.checker, self.now);
                self.schedule_deliveries(deliveries);
            }
            Event::RelayTouches => {
                (0..self.cluster.servers.len()).for_each(|server| self.relay(server));
                self.schedule(self.now + self.plan.touch_interval, Event::RelayTouches);
            }
            Event::ServerResumed(server) => self.relay(server),
            Event::Fault(number) => self.fault(number),
            Event::Elect => self.elect(),
            Event::NoticeIsolation(server, outage) => {
                if self.outages[server] == outage && self.cluster.servers[server].is_cut_off {
                    self.log(|| format!("server {server} notices that it was cut off"));
                    self.stop_serving(server);
                }
            }
            Event::ServerReturns(server, outage) => {
                if self.outages[server] == outage {
                    self.on_server_returned(server);
                }
            }
            Event::LagEnds(server) => self.cluster.servers[server].lag = Duration::ZERO,
            Event::SlowEnds => self.latency = self.plan.latency,
            Event::StopBlockedLeader(server, outage, length) => {
                if self.outages[server] == outage && self.cluster.is_commit_blocked {
                    self.restart(server, length);
                }
            }
            Event::ReachableAgain(client) => {
                self.unreachable.remove(&client);
                self.only_server.remove(&client);
            }
            Event::DeleteForeignNode(node) => self.delete_foreign_node(&node),
            Event::RestorePermissions(directory) => self.restore_permissions(&directory),
            Event::FaultsEnd => self.end_faults(),
            Event::RestoreResources => self.restore_resources(),
            Event::CheckQuiescence => self.check_quiescence(),
            Event::CheckClosed => self.check_closed_clients(),
        }
    }

    fn client_of_event(&self, event: &Event) -> Option<usize> {
        match *event {
            Event::Timer(client)
            | Event::RunThread(client, _)
            | Event::Cancel(client, ..)
            | Event::ClientResumed(client)
            | Event::ConnectionAttempt { client, .. } => Some(client),
            Event::RunTask(program, _) | Event::CancelTask(program, ..) => Some(self.client_of(program)),
            Event::DeliverToClient(link) => self.connections.get(&link).map(|link| link.client),
            _ => None,
        }
    }

    /// Lets a follower answer its leader's ping, unless the follower is suspended.
    fn relay(&mut self, server: usize) {
        if self.paused_until[server] <= self.now
            && let Some(at) = self.cluster.relay_touches(&mut self.rng, self.now, server)
        {
            self.schedule(at, Event::DeliverToLeader(server));
        }
    }

    /// Returns the server whose process handles an event. Followers relay touches only when their leader sends a ping.
    fn server_of(&self, event: &Event) -> Option<usize> {
        let leader = || self.cluster.leader.as_ref().map(|(leader, _)| *leader);
        match *event {
            Event::DeliverToLeader(_) | Event::LeaderTimer | Event::RelayTouches => leader(),
            Event::DeliverToReplica(server) => Some(server),
            Event::DeliverToServer(link) => self.connections.get(&link).map(|link| link.server),
            _ => None,
        }
    }

    // Clients.

    fn start_client(&mut self, client: usize) {
        self.clients[client].life = Life::Running;
        for thread in 0..self.clients[client].thread_count() {
            let at = self.now + between(&mut self.rng, (Duration::ZERO, ms(500)));
            self.schedule(at, Event::RunThread(client, thread));
        }
        let local = self.clients[client].local(self.now);
        self.clients[client].engine.advance(local);
        self.process_engine(client);
    }

    fn timer(&mut self, client: usize) {
        // The timer was replaced by a later one.
        if self.clients[client].timer.is_none_or(|timer| timer > self.now) {
            return;
        }
        self.clients[client].timer = None;
        let local = self.clients[client].local(self.now);
        self.clients[client].engine.advance(local);
        self.process_engine(client);
    }

    fn schedule_requests(&mut self, client: usize, wishes: Vec<Scheduled>) {
        for scheduled in wishes {
            match scheduled {
                Scheduled::RunThread(thread, at) => self.schedule(at, Event::RunThread(client, thread)),
                Scheduled::Cancel(thread, alone, at) => self.schedule(at, Event::Cancel(client, thread, alone)),
            }
        }
    }

    /// Processes the output of an engine.
    fn process_engine(&mut self, client: usize) {
        if self.clients[client].life == Life::NotStarted {
            return;
        }
        while let Some(command) = self.clients[client].engine.poll_command() {
            if command == Command::Load {
                self.load_inputs(client);
                let local = self.clients[client].local(self.now);
                self.clients[client].engine.on_connection_event(local, ConnectionEvent::InputsLoaded);
                continue;
            }
            self.disconnect(client);
            if let Command::Connect(server) = command {
                let server: usize = server.host[1..].parse().unwrap_or_default();
                self.last_attempt += 1;
                let attempt = self.last_attempt;
                self.clients[client].attempt = Some(attempt);
                let at = self.now + between(&mut self.rng, self.latency);
                self.schedule(at, Event::ConnectionAttempt { client, attempt, server });
            }
        }
        let mut bytes = std::mem::take(self.clients[client].engine.output());
        if let (Some(link), false) = (self.clients[client].connection, bytes.is_empty()) {
            if self.connections.get(&link).is_some_and(|link| link.is_handshake_due)
                && self.force_new_session.remove(&client)
            {
                self.replaced_sessions.extend(forget_session(&mut bytes));
            }
            if let Some(link) = self.connections.get_mut(&link) {
                link.is_handshake_due = false;
            }
            self.send_to_server(link, Message::Bytes(bytes));
        }
        let mut said = Vec::new();
        let wishes = self.clients[client]
            .process_output(&mut self.rng, &mut self.checker, self.now, &mut |text| said.push(text));
        if self.history.is_some() {
            for text in said {
                self.log(|| format!("client {client}: {text}"));
            }
        }
        self.schedule_requests(client, wishes);
        self.clients[client].check_holds(&mut self.checker, self.now);
        self.check_task_holds(client);
        self.set_timer(client);
        self.process_task_answers(client);
        match self.clients[client].life {
            Life::Running if self.clients[client].is_done() && self.is_calm() => self.schedule_quiescence_check(),
            // Half of the programs close their client when their work is complete, even if faults go on.
            Life::Running if self.clients[client].is_done() && client.is_multiple_of(2) => self.close(client),
            Life::Ended => self.check_session_ended(client),
            _ => {}
        }
    }

    fn close(&mut self, client: usize) {
        self.log(|| format!("client {client} closes"));
        self.clients[client].close(&mut self.checker, self.now);
        self.process_engine(client);
    }

    /// Checks that a client that was closed in time has no session any more.
    fn check_session_ended(&mut self, client: usize) {
        let (session, given_up) = self.clients[client].closing;
        let disowned = self.replaced_sessions.contains(&session) || self.cluster.wrongly_expired.contains(&session);
        let ended = session != 0 && self.now < given_up && !disowned;
        if ended && self.cluster.committed.sessions().any(|(id, _)| id == session) {
            self.checker.add_violation(|| format!("client {client} was closed, and its session {session:#x} goes on"));
        }
        if self.is_calm() {
            self.schedule_quiescence_check();
        }
    }

    fn set_timer(&mut self, client: usize) {
        let owner = &self.clients[client];
        let Some(next) = owner.engine.next_timeout() else { return };
        let next = owner.global(next).max(self.now);
        if owner.life != Life::Ended && owner.timer.is_none_or(|timer| next < timer) {
            self.clients[client].timer = Some(next);
            self.schedule(next, Event::Timer(client));
        }
    }

    // The network.

    /// Gives a client what it needs for its next connection.
    fn load_inputs(&mut self, client: usize) {
        if let Some(secret) = self.plan.sasl_secret {
            let mechanism: Box<dyn SaslMechanism> = Box::new(ClientSasl::new(secret, self.rng.u64(..)));
            self.clients[client].engine.set_credentials(Vec::new(), Some(mechanism));
        }
    }

    fn disconnect(&mut self, client: usize) {
        self.clients[client].attempt = None;
        if let Some(link) = self.clients[client].connection.take() {
            self.send_to_server(link, Message::End);
        }
    }

    fn attempt_connection(&mut self, client: usize, attempt: u64, server: usize) {
        if self.clients[client].attempt != Some(attempt) {
            return;
        }
        let unreachable = self.unreachable.get(&client).is_some_and(|only| only.is_none_or(|only| only == server));
        if unreachable || self.only_server.get(&client).is_some_and(|&only| only != server) {
            // The server does not answer. The client times out by itself.
            return;
        }
        let local = self.clients[client].local(self.now);
        self.clients[client].attempt = None;
        if !self.cluster.servers[server].is_serving {
            self.clients[client].engine.on_connection_event(local, ConnectionEvent::Disconnected("connection refused"));
            return self.process_engine(client);
        }
        self.last_connection += 1;
        let id = self.last_connection;
        let (to_server, to_client, break_after) = (Pipe::default(), Pipe::default(), self.next_break.remove(&client));
        self.connections
            .insert(id, Connection { client, server, is_handshake_due: true, to_server, to_client, break_after });
        self.clients[client].connection = Some(id);
        self.clients[client].connected_at = self.now;
        let peer = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, client as u8 + 1)), 1);
        self.cluster.servers[server].replica.accept(id as u64, peer);
        self.log(|| format!("client {client} connects to server {server}: connection {id}"));
        self.load_inputs(client);
        self.clients[client].engine.on_connection_event(local, ConnectionEvent::Connected("10.0.0.1"));
        self.process_engine(client);
    }

    fn send_to_server(&mut self, id: usize, message: Message) {
        let delay = between(&mut self.rng, self.latency);
        let Some(link) = self.connections.get_mut(&id) else { return };
        let at = link.to_server.push(self.now + delay, message);
        self.schedule(at, Event::DeliverToServer(id));
    }

    fn send_to_client(&mut self, id: usize, message: Message) {
        let delay = between(&mut self.rng, self.latency);
        let Some(link) = self.connections.get_mut(&id) else { return };
        let at = link.to_client.push(self.now + delay, message);
        self.schedule(at, Event::DeliverToClient(id));
    }

    fn deliver_to_server(&mut self, id: usize) {
        let Some(link) = self.connections.get_mut(&id) else { return };
        let (server, Some(message)) = (link.server, link.to_server.pop(self.now)) else { return };
        match message {
            Message::Bytes(bytes) => {
                let (client, through) = (link.client, link.bytes_before_break(false, &bytes));
                let replica = &mut self.cluster.servers[server].replica;
                replica.received(id as u64, &bytes[..through.unwrap_or(bytes.len())]);
                if replica.early_requests() > 0 {
                    self.checker.add_violation(|| {
                        format!("client {client} has sent a request to server {server} before both had proved their identities")
                    });
                }
                if through.is_some() {
                    self.reset(id);
                }
            }
            Message::End => {
                self.cluster.servers[server].replica.closed(id as u64);
                self.connections.remove(&id);
            }
        }
        self.process_replica(server);
    }

    fn deliver_to_client(&mut self, id: usize) {
        let Some(link) = self.connections.get_mut(&id) else { return };
        let (client, Some(message)) = (link.client, link.to_client.pop(self.now)) else { return };
        if self.clients[client].connection != Some(id) || self.clients[client].life == Life::Ended {
            return;
        }
        let local = self.clients[client].local(self.now);
        match message {
            Message::Bytes(bytes) => {
                let through = link.bytes_before_break(true, &bytes);
                let _ = self.clients[client].engine.received(local, &bytes[..through.unwrap_or(bytes.len())]);
                if through.is_some() {
                    self.lose_replies(id);
                }
            }
            Message::End => {
                self.log(|| format!("client {client} loses connection {id}"));
                self.clients[client].connection = None;
                // The server learns of the end too, if it does not know it yet.
                self.send_to_server(id, Message::End);
                self.clients[client]
                    .engine
                    .on_connection_event(local, ConnectionEvent::Disconnected("the server closed the connection"));
            }
        }
        self.process_engine(client);
    }

    fn thaw(&mut self, id: usize) {
        let Some(link) = self.connections.get_mut(&id) else { return };
        let (up, down) = (link.to_server.thaw(self.now), link.to_client.thaw(self.now));
        let now = self.now;
        (0..up).for_each(|_| self.schedule(now, Event::DeliverToServer(id)));
        (0..down).for_each(|_| self.schedule(now, Event::DeliverToClient(id)));
    }

    /// Resets a connection: both ends receive an error soon, and all messages in transit are lost.
    fn reset(&mut self, id: usize) {
        if let Some(link) = self.connections.get_mut(&id) {
            (link.to_server, link.to_client) = (Pipe::default(), Pipe::default());
            self.send_to_server(id, Message::End);
            self.send_down_end(id);
        }
    }

    /// Ends a connection for its client and drops the messages to it. Messages to the server still arrive.
    fn lose_replies(&mut self, id: usize) {
        if let Some(link) = self.connections.get_mut(&id) {
            (link.to_client, link.break_after) = (Pipe::default(), None);
            self.send_down_end(id);
        }
    }

    /// Reports the end to the client, even if the server has already dropped the connection.
    fn send_down_end(&mut self, id: usize) {
        self.send_to_client(id, Message::End);
    }

    // Servers.

    /// Processes the output of a replica.
    fn process_replica(&mut self, server: usize) {
        while let Some(output) = self.cluster.servers[server].replica.poll() {
            match output {
                ReplicaOutput::ToClient(ConnectionAction::Send(id, bytes)) => {
                    self.send_to_client(id as usize, Message::Bytes(bytes));
                }
                ReplicaOutput::ToClient(ConnectionAction::Close(id)) => self.send_down_end(id as usize),
                ReplicaOutput::ToClient(ConnectionAction::Reset(id)) => self.reset(id as usize),
                ReplicaOutput::ToLeader(request) => {
                    if let Some(at) = self.cluster.send_to_leader(&mut self.rng, self.now, server, request) {
                        self.schedule(at, Event::DeliverToLeader(server));
                        self.schedule(at, Event::DeliverToReplica(server));
                    }
                }
            }
        }
        self.set_leader_timer();
    }

    fn schedule_deliveries(&mut self, deliveries: Vec<(usize, Time)>) {
        while self.history.is_some()
            && let Some(txn) = self.cluster.log.get(self.logged_txns)
        {
            self.logged_txns += 1;
            let text = describe(txn);
            self.log(|| text);
        }
        for (server, at) in deliveries {
            self.schedule(at, Event::DeliverToReplica(server));
        }
        self.set_leader_timer();
    }

    fn set_leader_timer(&mut self) {
        let Some(next) = self.cluster.next_timeout() else { return };
        let next = next.max(self.now);
        if self.leader_timer.is_none_or(|timer| next < timer) {
            self.leader_timer = Some(next);
            self.schedule(next, Event::LeaderTimer);
        }
    }

    fn stop_serving(&mut self, server: usize) {
        self.cluster.stop_serving(server);
        let links: Vec<usize> =
            self.connections.iter().filter(|(_, link)| link.server == server).map(|(&id, _)| id).collect();
        for id in links {
            if let Some(link) = self.connections.get_mut(&id) {
                link.to_server = Pipe::default();
            }
            self.send_down_end(id);
        }
    }

    fn elect(&mut self) {
        if self.cluster.leader.is_some() {
            return;
        }
        // All servers that take part in the election start again.
        for server in 0..self.cluster.servers.len() {
            let able = self.cluster.servers[server].is_alive && !self.cluster.servers[server].is_cut_off;
            if able && self.cluster.servers[server].is_serving {
                self.stop_serving(server);
            }
        }
        if self.cluster.elect(self.now) {
            self.paused_until.fill(self.now);
            let leader = self.cluster.leader.as_ref().map(|(leader, _)| *leader);
            self.log(|| format!("server {leader:?} leads"));
            self.set_leader_timer();
        } else {
            self.schedule(self.now + ms(200), Event::Elect);
        }
    }

    fn on_server_returned(&mut self, server: usize) {
        self.log(|| format!("server {server} is back"));
        let own = &mut self.cluster.servers[server];
        (own.is_alive, own.is_cut_off) = (true, false);
        self.stop_serving(server);
        if self.cluster.leader.is_some() {
            self.cluster.join(server);
        } else {
            self.schedule(self.now, Event::Elect);
        }
    }

    /// Starts an outage of a server, which stops or is isolated.
    fn begin_outage(&mut self, server: usize, length: Duration) -> u32 {
        self.outages[server] += 1;
        self.paused_until[server] = self.now;
        // Transactions that were not committed are lost with the leader.
        if self.is_leader(server) {
            self.cluster.is_commit_blocked = false;
        }
        let outage = self.outages[server];
        self.schedule(self.now + length, Event::ServerReturns(server, outage));
        outage
    }

    fn is_leader(&self, server: usize) -> bool {
        self.cluster.leader.as_ref().is_some_and(|(leader, _)| *leader == server)
    }

    fn restart(&mut self, server: usize, length: Duration) {
        self.begin_outage(server, length);
        self.cluster.servers[server].is_alive = false;
        let led = self.is_leader(server);
        self.stop_serving(server);
        if led {
            self.cluster.leader = None;
            let others: Vec<usize> = (0..self.cluster.servers.len())
                .filter(|&other| self.cluster.servers[other].is_serving && !self.cluster.servers[other].is_cut_off)
                .collect();
            others.into_iter().for_each(|other| self.stop_serving(other));
            let at = self.now + between(&mut self.rng, (ms(100), ms(1_500)));
            self.schedule(at, Event::Elect);
        }
    }

    fn isolate(&mut self, server: usize, notices: Duration, length: Duration) {
        if self.cluster.servers.len() == 1 || !self.cluster.servers[server].is_serving {
            return;
        }
        let outage = self.begin_outage(server, length);
        self.cluster.servers[server].is_cut_off = true;
        self.cluster.servers[server].from_leader.clear();
        self.cluster.servers[server].to_leader.clear();
        self.schedule(self.now + notices, Event::NoticeIsolation(server, outage));
        if self.is_leader(server) {
            if let Some((old, _)) = self.cluster.deposed_leader.take() {
                self.stop_serving(old);
            }
            self.cluster.deposed_leader = self.cluster.leader.take();
            // The other servers notice the isolation before they elect a leader.
            let at = self.now + between(&mut self.rng, (ms(100), ms(2_000)));
            self.schedule(at, Event::Elect);
        }
    }

    // Faults.

    fn fault(&mut self, number: usize) {
        let fault = self.plan.faults[number].1.clone();
        self.log(|| format!("FAULT {fault:?}"));
        let (clients, servers) = (self.clients.len(), self.cluster.servers.len());
        match fault {
            Fault::Cut { client } => {
                if let Some(link) = self.clients[client % clients].connection {
                    self.reset(link);
                }
            }
            Fault::Break { client, frames, is_reply, is_next } => {
                let (client, breaks) = (client % clients, Break { frames, is_reply });
                if is_next {
                    self.next_break.insert(client, breaks);
                } else if let Some(link) =
                    self.clients[client].connection.and_then(|link| self.connections.get_mut(&link))
                {
                    link.break_after = Some(breaks);
                }
            }
            Fault::BlackHole { client, up, down, thaw } => {
                let Some(id) = self.clients[client % clients].connection else { return };
                if let Some(link) = self.connections.get_mut(&id) {
                    (link.to_server.frozen, link.to_client.frozen) = (up, down);
                }
                if let Some(thaw) = thaw {
                    self.schedule(self.now + thaw, Event::Thaw(id));
                }
            }
            Fault::Unreachable { client, server, length } => {
                let client = client % clients;
                self.unreachable.insert(client, server.map(|server| server % servers));
                if let Some(link) = self.clients[client].connection {
                    self.reset(link);
                }
                self.schedule(self.now + length, Event::ReachableAgain(client));
            }
            Fault::Pause { client, length } => {
                self.clients_of_process(client % clients).into_iter().for_each(|client| self.pause(client, length));
            }
            Fault::Kill { client, noticed } => {
                self.clients_of_process(client % clients).into_iter().for_each(|client| self.kill(client, noticed));
            }
            Fault::Restart { server, length } => self.restart(server % servers, length),
            Fault::Isolate { server, notices, length } => self.isolate(server % servers, notices, length),
            Fault::IsolateLeader { notices, length } => {
                if let Some((leader, _)) = self.cluster.leader {
                    self.isolate(leader, notices, length);
                }
            }
            Fault::PauseServer { server, length } => {
                let leader = self.cluster.leader.as_ref().map(|(leader, _)| *leader);
                if let Some(server) = server.map(|server| server % servers).or(leader) {
                    // A lease does not allow for longer pauses of a leader.
                    let most = self.plan.session_timeout / 12;
                    let length = if Some(server) == leader { length.min(most) } else { length };
                    let until = self.paused_until[server].max(self.now + length);
                    self.paused_until[server] = until;
                    let at = until + between(&mut self.rng, (Duration::ZERO, ms(5)));
                    self.schedule(at, Event::ServerResumed(server));
                }
            }
            Fault::BlockCommits { stops, length } => {
                if let Some((leader, _)) = self.cluster.leader {
                    self.cluster.is_commit_blocked = true;
                    self.schedule(self.now + stops, Event::StopBlockedLeader(leader, self.outages[leader], length));
                }
            }
            Fault::RemoveDirectory { path } => {
                let all = || format!("{}/locks", self.plan.root);
                let path = path.map_or_else(all, |path| path_of(self.plan.root, path % self.plan.path_recipes.len()));
                let deliveries = self.cluster.delete_all(&mut self.rng, &mut self.checker, self.now, &path);
                self.schedule_deliveries(deliveries);
            }
            Fault::Foreign { path, recipe, length } => {
                self.create_foreign_node(path % self.plan.path_recipes.len(), recipe, length);
            }
            Fault::Forbid { path, perms, length } => {
                for directory in self.directories(path % self.plan.path_recipes.len()) {
                    let (rng, checker) = (&mut self.rng, &mut self.checker);
                    let deliveries = self.cluster.set_permissions(rng, checker, self.now, &directory, perms);
                    self.schedule_deliveries(deliveries);
                    self.checker.on_permissions_removed(&directory);
                    self.schedule(self.now + length, Event::RestorePermissions(directory.clone()));
                    self.restricted_directories.insert(directory);
                }
            }
            Fault::Lag { server, lag, length } => {
                self.cluster.servers[server % servers].lag = lag;
                self.schedule(self.now + length, Event::LagEnds(server % servers));
            }
            Fault::Slow { latency, length } => {
                self.latency = (Duration::ZERO, latency);
                self.schedule(self.now + length, Event::SlowEnds);
            }
            Fault::Expire { client } => {
                let session = self.clients[client % clients].engine.session_id();
                let deliveries = self.cluster.expire(&mut self.rng, &mut self.checker, self.now, session);
                self.schedule_deliveries(deliveries);
            }
            Fault::Delete { path, place } => {
                let Some(node) = self.node_at(path, place) else { return };
                let deliveries = self.cluster.delete(&mut self.rng, &mut self.checker, self.now, &node);
                self.schedule_deliveries(deliveries);
            }
            Fault::Revoke { path, place } => {
                let Some(node) = self.node_at(path, place) else { return };
                self.set(&node, REVOKE);
            }
            Fault::SetCount { path, value } => {
                self.set(&format!("{}{COUNTS_DIRECTORY}{path}", self.plan.root), &value.to_be_bytes());
            }
            Fault::PinToServer { client, length } => {
                let client = client % clients;
                let Some(link) = self.clients[client].connection.and_then(|link| self.connections.get(&link)) else {
                    return;
                };
                self.only_server.insert(client, link.server);
                self.schedule(self.now + length, Event::ReachableAgain(client));
            }
            Fault::RestartServerOf { client, length } => {
                let link = self.clients[client % clients].connection.and_then(|link| self.connections.get(&link));
                if let Some(server) = link.map(|link| link.server) {
                    self.restart(server, length);
                }
            }
            Fault::NewSession { client } => {
                self.force_new_session.insert(client % clients);
            }
            Fault::SetServers { client, servers } => self.set_servers(client % clients, servers),
            Fault::Sasl { server, fault } => self.cluster.servers[server % servers].replica.fail_sasl(fault),
            Fault::LoseReply { server, op } => self.cluster.servers[server % servers].replica.lose_reply(None, op),
        }
    }

    fn set_servers(&mut self, client: usize, servers: usize) {
        if self.clients[client].life == Life::Running && self.clients[client].paused_until <= self.now {
            self.clients[client].set_servers(self.now, self.plan.servers, servers);
            self.process_engine(client);
        }
    }

    fn pause(&mut self, client: usize, length: Duration) {
        let until = self.now + length;
        if self.clients[client].life == Life::Running && self.clients[client].paused_until < until {
            self.clients[client].paused_until = until;
            // This event is scheduled before all other events of the process at this time.
            self.schedule(until, Event::ClientResumed(client));
        }
    }

    fn kill(&mut self, client: usize, noticed: bool) {
        if self.clients[client].life != Life::Running {
            return;
        }
        self.clients[client].life = Life::Ended;
        self.checker.on_client_ended(client);
        self.checker.on_reports_stopped(client);
        if let Some(link) = self.clients[client].connection.take()
            && noticed
        {
            self.send_to_server(link, Message::End);
        }
    }

    /// Creates a node of another program with another recipe in a lock's directory.
    fn create_foreign_node(&mut self, path: usize, recipe: ForeignRecipe, length: Duration) {
        let path_recipe = self.plan.path_recipes[path];
        if !matches!(path_recipe, PathRecipe::Mutex | PathRecipe::ReadWrite) {
            return;
        }
        let number = self.rng.u128(..);
        let other = if path_recipe == PathRecipe::Mutex { "__WRIT__" } else { "lock-" };
        let prefix = match recipe {
            ForeignRecipe::Kazoo => format!("{number:032x}__lock__"),
            ForeignRecipe::KazooReader => format!("{number:032x}__rlock__"),
            ForeignRecipe::ZooKeeper => format!("x-{:x}-", number as u64),
            ForeignRecipe::OtherCurator => format!("_c_00000000-0000-4000-8000-{:012x}-{other}", number as u32),
            ForeignRecipe::None => "notes-".to_owned(),
        };
        let asked = format!("{}/{prefix}", path_of(self.plan.root, path));
        let mode = CreateMode::PersistentSequential;
        let deliveries = self.cluster.create(&mut self.rng, &mut self.checker, self.now, &asked, mode);
        let made = self.cluster.last_created().filter(|made| made.starts_with(&asked)).map(str::to_owned);
        self.schedule_deliveries(deliveries);
        let Some(made) = made else { return };
        if let (Some(node), true) = (self.cluster.committed.tree().get(&made), recipe != ForeignRecipe::None) {
            self.checker.on_foreign_created(&made, node.stat().czxid);
        }
        self.schedule(self.now + length, Event::DeleteForeignNode(made.clone()));
        self.foreign_nodes.insert(made);
    }

    fn delete_foreign_node(&mut self, node: &str) {
        if self.foreign_nodes.contains(node) {
            let deliveries = self.cluster.delete(&mut self.rng, &mut self.checker, self.now, node);
            self.schedule_deliveries(deliveries);
        }
        // If the delete was refused, the node stays until the permissions are restored.
        if self.cluster.committed.tree().get(node).is_none() {
            self.foreign_nodes.remove(node);
        }
    }

    fn restore_permissions(&mut self, directory: &str) {
        if self.cluster.has_leader() && self.restricted_directories.remove(directory) {
            let deliveries = self.cluster.set_permissions(&mut self.rng, &mut self.checker, self.now, directory, 31);
            self.schedule_deliveries(deliveries);
        }
    }

    /// Returns a node of a path by its position in the queue. For a semaphore, it is a node among the leases or in the
    /// inner mutex.
    fn node_at(&self, path: usize, place: usize) -> Option<String> {
        let mut directories = self.directories(path % self.plan.path_recipes.len());
        directories.rotate_left((path / 16) % 2);
        let mut nodes = directories.iter().flat_map(|directory| self.nodes_in(directory));
        nodes.nth(place)
    }

    fn directories(&self, path: usize) -> Vec<String> {
        let path_itself = path_of(self.plan.root, path);
        match self.plan.path_recipes[path] {
            PathRecipe::Mutex | PathRecipe::ReadWrite => vec![path_itself],
            _ => vec![format!("{path_itself}/leases"), format!("{path_itself}/locks")],
        }
    }

    fn nodes_in(&self, directory: &str) -> Vec<String> {
        let Some(node) = self.cluster.committed.tree().get(directory) else { return Vec::new() };
        let mut names: Vec<&String> = node.children.iter().filter(|name| name.starts_with("_c_")).collect();
        names.sort_by_key(|name| name[name.len().saturating_sub(10)..].to_owned());
        names.into_iter().map(|name| format!("{directory}/{name}")).collect()
    }

    fn set(&mut self, path: &str, data: &[u8]) {
        let deliveries = self.cluster.set(&mut self.rng, &mut self.checker, self.now, path, data);
        self.schedule_deliveries(deliveries);
    }

    // The end of the run.

    fn is_calm(&self) -> bool {
        self.now >= Time::default() + ms(1_000) + self.plan.faults_end
    }

    /// Ends all faults. Suspended processes continue at their scheduled time.
    fn end_faults(&mut self) {
        self.log(|| "all faults are over".to_owned());
        self.latency = (Duration::ZERO, ms(5));
        self.unreachable.clear();
        self.only_server.clear();
        self.force_new_session.clear();
        self.next_break.clear();
        self.connections.values_mut().for_each(|link| link.break_after = None);
        let links: Vec<usize> = self.connections.keys().copied().collect();
        links.into_iter().for_each(|link| self.thaw(link));
        self.paused_until.fill(self.now);
        if self.cluster.is_commit_blocked
            && let Some((leader, _)) = self.cluster.leader
        {
            self.restart(leader, Duration::ZERO);
        }
        for server in 0..self.cluster.servers.len() {
            self.cluster.servers[server].lag = Duration::ZERO;
            self.cluster.servers[server].replica.clear_reply_losses();
            let own = &self.cluster.servers[server];
            if !own.is_alive || own.is_cut_off {
                self.outages[server] += 1;
                self.on_server_returned(server);
            }
        }
        self.schedule(self.now + COMPLETION_LIMIT, Event::CheckQuiescence);
        self.schedule(self.now + self.plan.session_timeout, Event::RestoreResources);
        self.schedule_quiescence_check();
    }

    /// Restores what operators and other programs have restricted: leases, permissions and queues without foreign
    /// nodes.
    fn restore_resources(&mut self) {
        for path in 0..self.plan.path_recipes.len() {
            if let PathRecipe::Counted(initial) = self.plan.path_recipes[path] {
                self.set(&format!("{}{COUNTS_DIRECTORY}{path}", self.plan.root), &initial.to_be_bytes());
            }
        }
        if !self.cluster.has_leader() {
            return self.schedule(self.now + self.plan.session_timeout, Event::RestoreResources);
        }
        self.restricted_directories.clone().iter().for_each(|directory| self.restore_permissions(directory));
        self.foreign_nodes.clone().iter().for_each(|node| self.delete_foreign_node(node));
    }

    fn schedule_quiescence_check(&mut self) {
        let done = |client: &Client| client.life == Life::Ended || (client.life == Life::Running && client.is_done());
        if self.clients.iter().all(done) {
            // Unused sessions need time to expire. Clients repeat a refused delete after 30 seconds at the latest.
            let is_refused = self.plan.faults.iter().any(|(_, fault)| matches!(fault, Fault::Forbid { .. }));
            let retry = if is_refused { Duration::from_secs(70) } else { Duration::ZERO };
            let at = self.now + self.plan.session_timeout * 3 + retry;
            self.schedule(at, Event::CheckQuiescence);
        }
    }

    /// Checks the final state: all work is complete, and only directories are left.
    fn check_quiescence(&mut self) {
        let all = (0..self.plan.path_recipes.len()).flat_map(|path| self.directories(path));
        let left: Vec<String> = all.flat_map(|directory| self.nodes_in(&directory)).collect();
        self.log(|| format!("nodes that are left: {left:?}"));
        for (index, client) in self.clients.iter().enumerate() {
            if client.life != Life::Ended && !client.is_done() {
                let text = client.describe();
                self.checker.add_violation(|| format!("client {index} is stuck: {text}"));
            }
        }
        self.expect_no_nodes("after all holds were released");
        for client in 0..self.clients.len() {
            self.clients[client].check_metrics(&mut self.checker);
            let watches = self.clients[client].engine.watch_count();
            if self.clients[client].life == Life::Running && watches > 0 {
                self.checker
                    .add_violation(|| format!("client {client} still has {watches} watches, but waits for nothing"));
            }
        }
        for server in 0..self.cluster.servers.len() {
            let watches = self.cluster.servers[server].replica.watch_count();
            if watches > 0 {
                self.checker.add_violation(|| {
                    format!("server {server} still keeps {watches} watches after the end of all waits")
                });
            }
        }
        for client in 0..self.clients.len() {
            if self.clients[client].life == Life::Running {
                self.close(client);
            }
        }
        self.schedule(self.now + ms(2_500), Event::CheckClosed);
    }

    fn check_closed_clients(&mut self) {
        for index in 0..self.clients.len() {
            if self.clients[index].life != Life::Ended {
                self.checker.add_violation(|| format!("client {index} does not end"));
            }
        }
        let sessions = self.cluster.committed.sessions().count();
        if sessions > 0 {
            self.checker.add_violation(|| format!("{sessions} sessions are left"));
        }
        self.checker.finish();
        self.is_over = true;
    }

    fn expect_no_nodes(&mut self, when: &str) {
        for directory in (0..self.plan.path_recipes.len()).flat_map(|path| self.directories(path)).collect::<Vec<_>>() {
            let left = self.nodes_in(&directory).len();
            if left > 0 {
                self.checker.add_violation(|| format!("{left} nodes are left in {directory} {when}"));
            }
        }
    }
}

/// Describes a transaction for the history.
fn describe(txn: &Txn) -> String {
    let changes: Vec<String> = changes_of(&txn.body)
        .iter()
        .map(|change| match change {
            Change::Create { path, .. } => format!("creates {path}"),
            Change::Delete { path } => format!("deletes {path}"),
            Change::SetData { path, .. } => format!("writes {path}"),
            Change::SetAcl { .. } | Change::Check => "changes nothing".to_owned(),
        })
        .collect();
    let what = match &txn.body {
        TxnBody::CreateSession { .. } => "begins".to_owned(),
        TxnBody::CloseSession => "ends".to_owned(),
        TxnBody::Error(code) => format!("fails with {code:?}"),
        TxnBody::MultiError(codes) => format!("fails with {codes:?}"),
        TxnBody::Change(_) | TxnBody::Multi(_) => changes.join(", "),
    };
    format!("{} session {:#x} {what}", txn.zxid, txn.session)
}

/// Changes a handshake so that it requests a new session. Returns the session id that it contained.
fn forget_session(handshake: &mut Vec<u8>) -> Option<i64> {
    let asked = ConnectRequest::decode(&handshake[4..]).ok()?;
    let abandoned = asked.session_id;
    handshake.clear();
    ConnectRequest { session_id: 0, password: vec![0; 16], ..asked }.encode(handshake);
    Some(abandoned)
}

impl Connection {
    /// Returns the number of bytes that pass before the connection breaks, or `None` if it does not break within these
    /// bytes.
    fn bytes_before_break(&mut self, is_reply: bool, bytes: &[u8]) -> Option<usize> {
        let breaks = self.break_after.as_mut().filter(|breaks| breaks.is_reply == is_reply)?;
        let mut end = 0;
        while let (Some(length), 1..) = (bytes.get(end..end + 4), breaks.frames) {
            let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]);
            end += 4 + length as usize;
            breaks.frames -= 1;
        }
        (breaks.frames == 0).then_some(end)
    }
}

impl Pipe {
    /// Adds a message and returns its time of arrival. Messages arrive in the order in which they were sent.
    fn push(&mut self, at: Time, message: Message) -> Time {
        let at = self.queue.back().map_or(at, |&(last, _)| at.max(last));
        self.queue.push_back((at, message));
        at
    }

    fn pop(&mut self, now: Time) -> Option<Message> {
        if self.frozen || self.queue.front().is_none_or(|&(at, _)| at > now) {
            return None;
        }
        self.queue.pop_front().map(|(_, message)| message)
    }

    /// Releases all frozen messages. Returns how many of them have arrived.
    fn thaw(&mut self, now: Time) -> usize {
        self.frozen = false;
        self.queue.iter().filter(|&&(at, _)| at <= now).count()
    }
}
