//! The world: a virtual clock, what happens next, the network, and the faults.

mod program;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use fastrand::Rng;
use zklock::Time;
use zklock::proto::{ConnectRequest, CreateMode};
use zklock::session::Command;
use zklock_standalone::{Action, Body, Change, Output, Txn};

use crate::client::{Client, Life, Wish, path_of};
use crate::cluster::{Cluster, between, changes_of};
use crate::judge::{COUNTS, Judge, REVOKE};
use crate::plan::{Fault, ForeignRecipe, Form, Plan, ms};

pub(crate) use program::{ProgramPlan, TaskCall};

/// What can happen.
#[derive(Debug)]
enum Happening {
    Birth(usize),
    Timer(usize),
    Act(usize, usize),
    Cancel(usize, usize, bool),
    /// A task of a program acts.
    Task(usize, usize),
    /// A task cancels what it waits for, or abandons it.
    GiveUp(usize, usize, bool),
    /// A process that stood still goes on: the first thing it does is to look at what it holds.
    Awake(usize),
    /// A connection attempt comes to its server.
    Dial {
        client: usize,
        attempt: u64,
        server: usize,
    },
    Up(usize),
    Down(usize),
    Thaw(usize),
    Hear(usize),
    Obey(usize),
    LeaderTimer,
    Relay,
    Fault(usize),
    Elect,
    /// A server that was cut off notices it.
    Notice(usize, u32),
    /// A server comes back.
    Return(usize, u32),
    LagEnds(usize),
    SlowEnds,
    /// A server that stood still answers the pings that its leader sent meanwhile.
    GoesOn(usize),
    /// A leader whose orders are not committed stops, for so long.
    Doom(usize, u32, Duration),
    ReachableAgain(usize),
    /// Another program deletes its node.
    Departs(String),
    /// Everything is allowed in a directory again.
    Allow(String),
    Calm,
    Plenty,
    Settled,
    Closed,
}

/// One connection.
struct Link {
    client: usize,
    server: usize,
    /// Nothing was sent on it yet: the handshake comes first.
    is_new: bool,
    up: Pipe,
    down: Pipe,
    breaks: Option<Break>,
}

/// A connection breaks once so many frames have come through, of requests or of replies.
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
    pub(crate) judge: Judge,
    pub(crate) steps: u64,
    /// What happened, if anybody wants to know.
    pub(crate) history: Option<Vec<String>>,
    plan: Plan,
    rng: Rng,
    now: Time,
    agenda: BTreeMap<(Time, u64), Happening>,
    sequence: u64,
    cluster: Cluster,
    clients: Vec<Client>,
    programs: Vec<program::Program>,
    /// The dice of programs: those of the others fall as without them.
    dice: Rng,
    links: BTreeMap<usize, Link>,
    last_link: usize,
    attempts: u64,
    latency: (Duration, Duration),
    /// Which servers a client can't reach: one, or all.
    unreachable: BTreeMap<usize, Option<usize>>,
    /// Which server alone a client can reach.
    stuck: BTreeMap<usize, usize>,
    /// Clients whose next connection breaks.
    breaks: BTreeMap<usize, Break>,
    /// Whose next handshake is for a new session, whatever he asks.
    reborn: BTreeSet<usize>,
    /// Sessions that a server made their clients forget.
    abandoned: BTreeSet<i64>,
    /// How often a server was cut off or stopped, so that what was planned for an earlier time is not done.
    troubles: Vec<u32>,
    leader_timer: Option<Time>,
    /// Until when servers stand still.
    paused: Vec<Time>,
    /// Nodes of other programs, and directories in which not everything is allowed.
    strangers: BTreeSet<String>,
    forbidden: BTreeSet<String>,
    /// How much of what was committed is in the history.
    written_down: usize,
    is_over: bool,
}

/// How long the clients have, once all faults are over, until everybody has got what he wants.
const PATIENCE: Duration = Duration::from_secs(3_000);

/// A run in which so much happens without a grant goes round in circles. The number of grants in a run is bounded.
const MOST_STEPS: u64 = 300_000;

impl World {
    pub(crate) fn new(seed: u64, with_history: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let plan = Plan::new(&mut rng);
        let now = Time::default() + ms(1_000);
        let cluster = Cluster::new(&plan, now);
        let clients =
            plan.clients.iter().enumerate().map(|(index, own)| Client::new(index, &plan, own, &mut rng, now)).collect();
        let mut world = Self {
            judge: Judge::default(),
            steps: 0,
            history: with_history.then(Vec::new),
            latency: plan.latency,
            troubles: vec![0; plan.servers],
            paused: vec![now; plan.servers],
            plan,
            rng,
            now,
            agenda: BTreeMap::new(),
            sequence: 0,
            cluster,
            clients,
            programs: Vec::new(),
            dice: Rng::with_seed(!seed),
            links: BTreeMap::new(),
            last_link: 0,
            attempts: 0,
            unreachable: BTreeMap::new(),
            stuck: BTreeMap::new(),
            breaks: BTreeMap::new(),
            reborn: BTreeSet::new(),
            abandoned: BTreeSet::new(),
            leader_timer: None,
            strangers: BTreeSet::new(),
            forbidden: BTreeSet::new(),
            written_down: 0,
            is_over: false,
        };
        world.prepare();
        world
    }

    fn prepare(&mut self) {
        let begin = self.now;
        let births: Vec<Duration> = self.plan.clients.iter().map(|own| own.begins).collect();
        for (client, begins) in births.into_iter().enumerate() {
            self.at(begin + begins, Happening::Birth(client));
        }
        let faults: Vec<Duration> = self.plan.faults.iter().map(|&(at, _)| at).collect();
        for (fault, at) in faults.into_iter().enumerate() {
            self.at(begin + at, Happening::Fault(fault));
        }
        for (path, &form) in self.plan.forms.iter().enumerate() {
            match form {
                Form::Semaphore(leases) | Form::Counted(leases) => self.judge.limit(begin, path, leases),
                Form::SemaphoreMutex => self.judge.limit(begin, path, 1),
                Form::Mutex | Form::ReadWrite => {}
            }
        }
        (self.judge.max_passes, self.judge.root) = (self.plan.max_passes, self.plan.root);
        self.judge.max_path_bytes = self.plan.max_path_bytes;
        if !self.plan.root.is_empty() {
            let mode = CreateMode::Persistent;
            self.cluster.create(&mut self.rng, &mut self.judge, begin, self.plan.root, mode);
            (0..self.cluster.servers.len()).for_each(|server| self.cluster.join(server));
        }
        self.open_programs();
        self.at(begin + self.plan.relay, Happening::Relay);
        self.at(begin + self.plan.calm, Happening::Calm);
        self.set_leader_timer();
        if self.history.is_some() {
            let text = format!("{:#?}", self.plan);
            self.say(|| text);
        }
    }

    /// Runs to the end, or to the first thing that must not be.
    pub(crate) fn run(&mut self) {
        let (mut grants, mut since) = (0, 0);
        while !self.is_over && self.judge.verdict.is_none() {
            let Some(((at, _), happening)) = self.agenda.pop_first() else { break };
            self.now = at;
            self.steps += 1;
            if self.judge.grants > grants {
                (grants, since) = (self.judge.grants, self.steps);
            }
            if self.steps > since + MOST_STEPS {
                self.judge.blame(|| "it does not come to rest".to_owned());
            }
            self.happen(happening);
        }
    }

    fn at(&mut self, time: Time, happening: Happening) {
        self.sequence += 1;
        self.agenda.insert((time, self.sequence), happening);
    }

    fn say(&mut self, what: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(history) = &mut self.history {
            let seconds = (now - Time::default()).as_secs_f64();
            history.push(format!("{seconds:10.4} {}", what()));
        }
    }

    fn happen(&mut self, happening: Happening) {
        if let Some(client) = self.concerned(&happening) {
            if self.clients[client].life == Life::Over {
                return;
            }
            // A process that stands still finds everything when it goes on, in its order.
            if self.clients[client].paused_until > self.now {
                return self.at(self.clients[client].paused_until, happening);
            }
        }
        // A server that stands still does, too.
        if let Some(until) =
            self.server_of(&happening).map(|server| self.paused[server]).filter(|&until| until > self.now)
        {
            return self.at(until, happening);
        }
        match happening {
            Happening::Birth(client) => self.birth(client),
            Happening::Timer(client) => self.timer(client),
            Happening::Act(client, actor) => {
                let wishes = self.clients[client].act(&mut self.rng, &mut self.judge, self.now, actor);
                self.grant(client, wishes);
                self.pump(client);
            }
            Happening::Cancel(client, actor, alone) => {
                let others = if alone { "" } else { " and those who wait with it" };
                self.say(|| format!("client {client}: thread {actor}{others} is canceled"));
                self.clients[client].cancel(self.now, actor, alone);
                self.pump(client);
            }
            Happening::Task(program, task) => self.act(program, task),
            Happening::GiveUp(program, task, abandons) => self.give_up(program, task, abandons),
            Happening::Awake(client) => {
                self.say(|| format!("client {client} goes on"));
                self.clients[client].wakes_up(self.now);
                self.clients[client].look(&mut self.judge, self.now);
                self.look_at_tasks(client);
            }
            Happening::Dial { client, attempt, server } => self.dial(client, attempt, server),
            Happening::Up(link) => self.up(link),
            Happening::Down(link) => self.down(link),
            Happening::Thaw(link) => self.thaw(link),
            Happening::Hear(server) => {
                let news = self.cluster.hear(&mut self.rng, &mut self.judge, self.now, server);
                self.spread(news);
            }
            Happening::Obey(server) => {
                self.cluster.obey(self.now, server);
                self.serve(server);
            }
            Happening::LeaderTimer => {
                self.leader_timer = None;
                let news = self.cluster.advance(&mut self.rng, &mut self.judge, self.now);
                self.spread(news);
            }
            Happening::Relay => {
                (0..self.cluster.servers.len()).for_each(|server| self.relay(server));
                self.at(self.now + self.plan.relay, Happening::Relay);
            }
            Happening::GoesOn(server) => self.relay(server),
            Happening::Fault(number) => self.fault(number),
            Happening::Elect => self.elect(),
            Happening::Notice(server, trouble) => {
                if self.troubles[server] == trouble && self.cluster.servers[server].is_cut_off {
                    self.say(|| format!("server {server} notices that it was cut off"));
                    self.stop_serving(server);
                }
            }
            Happening::Return(server, trouble) => {
                if self.troubles[server] == trouble {
                    self.come_back(server);
                }
            }
            Happening::LagEnds(server) => self.cluster.servers[server].lag = Duration::ZERO,
            Happening::SlowEnds => self.latency = self.plan.latency,
            Happening::Doom(server, trouble, length) => {
                if self.troubles[server] == trouble && self.cluster.is_doomed {
                    self.restart(server, length);
                }
            }
            Happening::ReachableAgain(client) => {
                self.unreachable.remove(&client);
                self.stuck.remove(&client);
            }
            Happening::Departs(node) => self.depart(&node),
            Happening::Allow(directory) => self.allow(&directory),
            Happening::Calm => self.calm(),
            Happening::Plenty => self.plenty(),
            Happening::Settled => self.settled(),
            Happening::Closed => self.closed(),
        }
    }

    fn concerned(&self, happening: &Happening) -> Option<usize> {
        match *happening {
            Happening::Timer(client)
            | Happening::Act(client, _)
            | Happening::Cancel(client, ..)
            | Happening::Awake(client)
            | Happening::Dial { client, .. } => Some(client),
            Happening::Task(program, _) | Happening::GiveUp(program, ..) => Some(self.client_of(program)),
            Happening::Down(link) => self.links.get(&link).map(|link| link.client),
            _ => None,
        }
    }

    /// A follower answers its leader's ping, unless it stands still.
    fn relay(&mut self, server: usize) {
        if self.paused[server] <= self.now
            && let Some(at) = self.cluster.relay(&mut self.rng, self.now, server)
        {
            self.at(at, Happening::Hear(server));
        }
    }

    /// The server whose process something happens in. The leader's pings make followers relay who is alive.
    fn server_of(&self, happening: &Happening) -> Option<usize> {
        let leader = || self.cluster.leader.as_ref().map(|(leader, _)| *leader);
        match *happening {
            Happening::Hear(_) | Happening::LeaderTimer | Happening::Relay => leader(),
            Happening::Obey(server) => Some(server),
            Happening::Up(link) => self.links.get(&link).map(|link| link.server),
            _ => None,
        }
    }

    // Clients.

    fn birth(&mut self, client: usize) {
        self.clients[client].life = Life::Running;
        for actor in 0..self.clients[client].actors() {
            let at = self.now + between(&mut self.rng, (Duration::ZERO, ms(500)));
            self.at(at, Happening::Act(client, actor));
        }
        let local = self.clients[client].local(self.now);
        self.clients[client].engine.advance(local);
        self.pump(client);
    }

    fn timer(&mut self, client: usize) {
        // An earlier one has taken its place.
        if self.clients[client].timer.is_none_or(|timer| timer > self.now) {
            return;
        }
        self.clients[client].timer = None;
        let local = self.clients[client].local(self.now);
        self.clients[client].engine.advance(local);
        self.pump(client);
    }

    fn grant(&mut self, client: usize, wishes: Vec<Wish>) {
        for wish in wishes {
            match wish {
                Wish::Act(actor, at) => self.at(at, Happening::Act(client, actor)),
                Wish::Cancel(actor, alone, at) => self.at(at, Happening::Cancel(client, actor, alone)),
            }
        }
    }

    /// Carries out what an engine says.
    fn pump(&mut self, client: usize) {
        if self.clients[client].life == Life::Unborn {
            return;
        }
        while let Some(command) = self.clients[client].engine.poll_command() {
            self.hang_up(client);
            if let Command::Connect(server) = command {
                let server: usize = server.host[1..].parse().unwrap_or_default();
                self.attempts += 1;
                let attempt = self.attempts;
                self.clients[client].dialing = Some(attempt);
                let at = self.now + between(&mut self.rng, self.latency);
                self.at(at, Happening::Dial { client, attempt, server });
            }
        }
        let mut bytes = std::mem::take(self.clients[client].engine.output());
        if let (Some(link), false) = (self.clients[client].link, bytes.is_empty()) {
            if self.links.get(&link).is_some_and(|link| link.is_new) && self.reborn.remove(&client) {
                self.abandoned.extend(forget_session(&mut bytes));
            }
            if let Some(link) = self.links.get_mut(&link) {
                link.is_new = false;
            }
            self.send_up(link, Message::Bytes(bytes));
        }
        let mut said = Vec::new();
        let wishes = self.clients[client].listen(&mut self.rng, &mut self.judge, self.now, &mut |text| said.push(text));
        if self.history.is_some() {
            for text in said {
                self.say(|| format!("client {client}: {text}"));
            }
        }
        self.grant(client, wishes);
        self.clients[client].look(&mut self.judge, self.now);
        self.look_at_tasks(client);
        self.set_timer(client);
        self.hear_tasks(client);
        match self.clients[client].life {
            Life::Running if self.clients[client].is_done() && self.is_calm() => self.check_all_done(),
            // Half of the programs end when they have nothing more to do, whatever is going on.
            Life::Running if self.clients[client].is_done() && client.is_multiple_of(2) => self.close(client),
            Life::Over => self.check_closed(client),
            _ => {}
        }
    }

    fn close(&mut self, client: usize) {
        self.say(|| format!("client {client} closes"));
        self.clients[client].close(&mut self.judge, self.now);
        self.pump(client);
    }

    /// A client that was closed before its time was up has nothing left on the servers.
    fn check_closed(&mut self, client: usize) {
        let (session, given_up) = self.clients[client].closing;
        let disowned = self.abandoned.contains(&session) || self.cluster.disowned.contains(&session);
        let ended = session != 0 && self.now < given_up && !disowned;
        if ended && self.cluster.truth.sessions().any(|(id, _)| id == session) {
            self.judge.blame(|| format!("client {client} was closed, and its session {session:#x} goes on"));
        }
        if self.is_calm() {
            self.check_all_done();
        }
    }

    fn set_timer(&mut self, client: usize) {
        let owner = &self.clients[client];
        let Some(next) = owner.engine.next_timeout() else { return };
        let next = owner.global(next).max(self.now);
        if owner.life != Life::Over && owner.timer.is_none_or(|timer| next < timer) {
            self.clients[client].timer = Some(next);
            self.at(next, Happening::Timer(client));
        }
    }

    // The network.

    fn hang_up(&mut self, client: usize) {
        self.clients[client].dialing = None;
        if let Some(link) = self.clients[client].link.take() {
            self.send_up(link, Message::End);
        }
    }

    fn dial(&mut self, client: usize, attempt: u64, server: usize) {
        if self.clients[client].dialing != Some(attempt) {
            return;
        }
        let unreachable = self.unreachable.get(&client).is_some_and(|only| only.is_none_or(|only| only == server));
        if unreachable || self.stuck.get(&client).is_some_and(|&only| only != server) {
            // Nobody answers; the client gives up by itself.
            return;
        }
        let local = self.clients[client].local(self.now);
        self.clients[client].dialing = None;
        if !self.cluster.servers[server].serves {
            self.clients[client].engine.disconnected(local, "connection refused");
            return self.pump(client);
        }
        self.last_link += 1;
        let id = self.last_link;
        let (up, down, breaks) = (Pipe::default(), Pipe::default(), self.breaks.remove(&client));
        self.links.insert(id, Link { client, server, is_new: true, up, down, breaks });
        self.clients[client].link = Some(id);
        self.clients[client].connected_at = self.now;
        let peer = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, client as u8 + 1)), 1);
        self.cluster.servers[server].replica.accept(id as u64, peer);
        self.say(|| format!("client {client} connects to server {server}: connection {id}"));
        self.clients[client].engine.connected(local, "10.0.0.1");
        self.pump(client);
    }

    fn send_up(&mut self, id: usize, message: Message) {
        let delay = between(&mut self.rng, self.latency);
        let Some(link) = self.links.get_mut(&id) else { return };
        let at = link.up.push(self.now + delay, message);
        self.at(at, Happening::Up(id));
    }

    fn send_down(&mut self, id: usize, message: Message) {
        let delay = between(&mut self.rng, self.latency);
        let Some(link) = self.links.get_mut(&id) else { return };
        let at = link.down.push(self.now + delay, message);
        self.at(at, Happening::Down(id));
    }

    fn up(&mut self, id: usize) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let (server, Some(message)) = (link.server, link.up.pop(self.now)) else { return };
        match message {
            Message::Bytes(bytes) => {
                let through = link.lets_through(false, &bytes);
                let replica = &mut self.cluster.servers[server].replica;
                replica.received(id as u64, &bytes[..through.unwrap_or(bytes.len())]);
                if through.is_some() {
                    self.reset(id);
                }
            }
            Message::End => {
                self.cluster.servers[server].replica.closed(id as u64);
                self.links.remove(&id);
            }
        }
        self.serve(server);
    }

    fn down(&mut self, id: usize) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let (client, Some(message)) = (link.client, link.down.pop(self.now)) else { return };
        if self.clients[client].link != Some(id) || self.clients[client].life == Life::Over {
            return;
        }
        let local = self.clients[client].local(self.now);
        match message {
            Message::Bytes(bytes) => {
                let through = link.lets_through(true, &bytes);
                let _ = self.clients[client].engine.received(local, &bytes[..through.unwrap_or(bytes.len())]);
                if through.is_some() {
                    self.lose_replies(id);
                }
            }
            Message::End => {
                self.say(|| format!("client {client} loses connection {id}"));
                self.clients[client].link = None;
                // The server hears of it too, if it does not know.
                self.send_up(id, Message::End);
                self.clients[client].engine.disconnected(local, "it closed the connection");
            }
        }
        self.pump(client);
    }

    fn thaw(&mut self, id: usize) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let (up, down) = (link.up.thaw(self.now), link.down.thaw(self.now));
        let now = self.now;
        (0..up).for_each(|_| self.at(now, Happening::Up(id)));
        (0..down).for_each(|_| self.at(now, Happening::Down(id)));
    }

    /// Resets a connection: both ends hear of it soon, and nothing else arrives.
    fn reset(&mut self, id: usize) {
        if let Some(link) = self.links.get_mut(&id) {
            (link.up, link.down) = (Pipe::default(), Pipe::default());
            self.send_up(id, Message::End);
            self.send_down_end(id);
        }
    }

    /// A connection ends for its client, and nothing else arrives there. What the client sent before still arrives at the server.
    fn lose_replies(&mut self, id: usize) {
        if let Some(link) = self.links.get_mut(&id) {
            (link.down, link.breaks) = (Pipe::default(), None);
            self.send_down_end(id);
        }
    }

    /// The client hears of the end though the server may have forgotten the connection first.
    fn send_down_end(&mut self, id: usize) {
        self.send_down(id, Message::End);
    }

    // Servers.

    /// Carries out what a replica says.
    fn serve(&mut self, server: usize) {
        while let Some(output) = self.cluster.servers[server].replica.poll() {
            match output {
                Output::Act(Action::Send(id, bytes)) => self.send_down(id as usize, Message::Bytes(bytes)),
                Output::Act(Action::Close(id)) => self.send_down_end(id as usize),
                Output::Act(Action::Reset(id)) => self.reset(id as usize),
                Output::Ask(upcall) => {
                    if let Some(at) = self.cluster.ask(&mut self.rng, self.now, server, upcall) {
                        self.at(at, Happening::Hear(server));
                        self.at(at, Happening::Obey(server));
                    }
                }
            }
        }
        self.set_leader_timer();
    }

    fn spread(&mut self, news: Vec<(usize, Time)>) {
        while self.history.is_some()
            && let Some(txn) = self.cluster.log.get(self.written_down)
        {
            self.written_down += 1;
            let text = describe(txn);
            self.say(|| text);
        }
        for (server, at) in news {
            self.at(at, Happening::Obey(server));
        }
        self.set_leader_timer();
    }

    fn set_leader_timer(&mut self) {
        let Some(next) = self.cluster.next_timeout() else { return };
        let next = next.max(self.now);
        if self.leader_timer.is_none_or(|timer| next < timer) {
            self.leader_timer = Some(next);
            self.at(next, Happening::LeaderTimer);
        }
    }

    fn stop_serving(&mut self, server: usize) {
        self.cluster.stop_serving(server);
        let links: Vec<usize> =
            self.links.iter().filter(|(_, link)| link.server == server).map(|(&id, _)| id).collect();
        for id in links {
            if let Some(link) = self.links.get_mut(&id) {
                link.up = Pipe::default();
            }
            self.send_down_end(id);
        }
    }

    fn elect(&mut self) {
        if self.cluster.leader.is_some() {
            return;
        }
        // Who takes part begins anew.
        for server in 0..self.cluster.servers.len() {
            let able = self.cluster.servers[server].is_alive && !self.cluster.servers[server].is_cut_off;
            if able && self.cluster.servers[server].serves {
                self.stop_serving(server);
            }
        }
        if self.cluster.elect(self.now) {
            self.paused.fill(self.now);
            let leader = self.cluster.leader.as_ref().map(|(leader, _)| *leader);
            self.say(|| format!("server {leader:?} leads"));
            self.set_leader_timer();
        } else {
            self.at(self.now + ms(200), Happening::Elect);
        }
    }

    fn come_back(&mut self, server: usize) {
        self.say(|| format!("server {server} is back"));
        let own = &mut self.cluster.servers[server];
        (own.is_alive, own.is_cut_off) = (true, false);
        self.stop_serving(server);
        if self.cluster.leader.is_some() {
            self.cluster.join(server);
        } else {
            self.at(self.now, Happening::Elect);
        }
    }

    /// A server stops, or is cut off.
    fn lose_server(&mut self, server: usize, length: Duration) -> u32 {
        self.troubles[server] += 1;
        self.paused[server] = self.now;
        // What it ordered in vain goes with it.
        if self.is_leader(server) {
            self.cluster.is_doomed = false;
        }
        let trouble = self.troubles[server];
        self.at(self.now + length, Happening::Return(server, trouble));
        trouble
    }

    fn is_leader(&self, server: usize) -> bool {
        self.cluster.leader.as_ref().is_some_and(|(leader, _)| *leader == server)
    }

    fn restart(&mut self, server: usize, length: Duration) {
        self.lose_server(server, length);
        self.cluster.servers[server].is_alive = false;
        let led = self.is_leader(server);
        self.stop_serving(server);
        if led {
            self.cluster.leader = None;
            let others: Vec<usize> = (0..self.cluster.servers.len())
                .filter(|&other| self.cluster.servers[other].serves && !self.cluster.servers[other].is_cut_off)
                .collect();
            others.into_iter().for_each(|other| self.stop_serving(other));
            let at = self.now + between(&mut self.rng, (ms(100), ms(1_500)));
            self.at(at, Happening::Elect);
        }
    }

    fn isolate(&mut self, server: usize, notices: Duration, length: Duration) {
        if self.cluster.servers.len() == 1 || !self.cluster.servers[server].serves {
            return;
        }
        let trouble = self.lose_server(server, length);
        self.cluster.servers[server].is_cut_off = true;
        self.cluster.servers[server].decrees.clear();
        self.cluster.servers[server].upcalls.clear();
        self.at(self.now + notices, Happening::Notice(server, trouble));
        if self.is_leader(server) {
            if let Some((old, _)) = self.cluster.stale.take() {
                self.stop_serving(old);
            }
            self.cluster.stale = self.cluster.leader.take();
            // The others notice before they can elect.
            let at = self.now + between(&mut self.rng, (ms(100), ms(2_000)));
            self.at(at, Happening::Elect);
        }
    }

    // Faults.

    fn fault(&mut self, number: usize) {
        let fault = self.plan.faults[number].1.clone();
        self.say(|| format!("FAULT {fault:?}"));
        let (clients, servers) = (self.clients.len(), self.cluster.servers.len());
        match fault {
            Fault::Cut { client } => {
                if let Some(link) = self.clients[client % clients].link {
                    self.reset(link);
                }
            }
            Fault::Break { client, frames, is_reply, is_next } => {
                let (client, breaks) = (client % clients, Break { frames, is_reply });
                if is_next {
                    self.breaks.insert(client, breaks);
                } else if let Some(link) = self.clients[client].link.and_then(|link| self.links.get_mut(&link)) {
                    link.breaks = Some(breaks);
                }
            }
            Fault::BlackHole { client, up, down, thaw } => {
                let Some(id) = self.clients[client % clients].link else { return };
                if let Some(link) = self.links.get_mut(&id) {
                    (link.up.frozen, link.down.frozen) = (up, down);
                }
                if let Some(thaw) = thaw {
                    self.at(self.now + thaw, Happening::Thaw(id));
                }
            }
            Fault::Unreachable { client, server, length } => {
                let client = client % clients;
                self.unreachable.insert(client, server.map(|server| server % servers));
                if let Some(link) = self.clients[client].link {
                    self.reset(link);
                }
                self.at(self.now + length, Happening::ReachableAgain(client));
            }
            Fault::Pause { client, length } => {
                self.process_of(client % clients).into_iter().for_each(|client| self.pause(client, length));
            }
            Fault::Kill { client, noticed } => {
                self.process_of(client % clients).into_iter().for_each(|client| self.kill(client, noticed));
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
                    // A leader that stands still for longer is not what leases allow for.
                    let most = self.plan.session_timeout / 12;
                    let length = if Some(server) == leader { length.min(most) } else { length };
                    let until = self.paused[server].max(self.now + length);
                    self.paused[server] = until;
                    let at = until + between(&mut self.rng, (Duration::ZERO, ms(5)));
                    self.at(at, Happening::GoesOn(server));
                }
            }
            Fault::DoomLeader { stops, length } => {
                if let Some((leader, _)) = self.cluster.leader {
                    self.cluster.is_doomed = true;
                    self.at(self.now + stops, Happening::Doom(leader, self.troubles[leader], length));
                }
            }
            Fault::RemoveDirectory { path } => {
                let all = || format!("{}/locks", self.plan.root);
                let path = path.map_or_else(all, |path| path_of(self.plan.root, path % self.plan.forms.len()));
                let news = self.cluster.delete_all(&mut self.rng, &mut self.judge, self.now, &path);
                self.spread(news);
            }
            Fault::Foreign { path, recipe, length } => self.foreign(path % self.plan.forms.len(), recipe, length),
            Fault::Forbid { path, perms, length } => {
                for directory in self.directories(path % self.plan.forms.len()) {
                    let (rng, judge) = (&mut self.rng, &mut self.judge);
                    let news = self.cluster.allow(rng, judge, self.now, &directory, perms);
                    self.spread(news);
                    self.judge.forbid(&directory);
                    self.at(self.now + length, Happening::Allow(directory.clone()));
                    self.forbidden.insert(directory);
                }
            }
            Fault::Lag { server, lag, length } => {
                self.cluster.servers[server % servers].lag = lag;
                self.at(self.now + length, Happening::LagEnds(server % servers));
            }
            Fault::Slow { latency, length } => {
                self.latency = (Duration::ZERO, latency);
                self.at(self.now + length, Happening::SlowEnds);
            }
            Fault::Expire { client } => {
                let session = self.clients[client % clients].engine.session_id();
                let news = self.cluster.expire(&mut self.rng, &mut self.judge, self.now, session);
                self.spread(news);
            }
            Fault::Delete { path, place } => {
                let Some(node) = self.node_at(path, place) else { return };
                let news = self.cluster.delete(&mut self.rng, &mut self.judge, self.now, &node);
                self.spread(news);
            }
            Fault::Revoke { path, place } => {
                let Some(node) = self.node_at(path, place) else { return };
                self.set(&node, REVOKE);
            }
            Fault::SetCount { path, value } => {
                self.set(&format!("{}{COUNTS}{path}", self.plan.root), &value.to_be_bytes());
            }
            Fault::Stick { client, length } => {
                let client = client % clients;
                let Some(link) = self.clients[client].link.and_then(|link| self.links.get(&link)) else { return };
                self.stuck.insert(client, link.server);
                self.at(self.now + length, Happening::ReachableAgain(client));
            }
            Fault::RestartServerOf { client, length } => {
                let link = self.clients[client % clients].link.and_then(|link| self.links.get(&link));
                if let Some(server) = link.map(|link| link.server) {
                    self.restart(server, length);
                }
            }
            Fault::NewSession { client } => {
                self.reborn.insert(client % clients);
            }
            Fault::LoseReply { server, op } => self.cluster.servers[server % servers].replica.lose_reply(None, op),
        }
    }

    fn pause(&mut self, client: usize, length: Duration) {
        let until = self.now + length;
        if self.clients[client].life == Life::Running && self.clients[client].paused_until < until {
            self.clients[client].paused_until = until;
            // Before everything that piles up.
            self.at(until, Happening::Awake(client));
        }
    }

    fn kill(&mut self, client: usize, noticed: bool) {
        if self.clients[client].life != Life::Running {
            return;
        }
        self.clients[client].life = Life::Over;
        self.judge.died(client);
        self.judge.forgotten(client);
        if let Some(link) = self.clients[client].link.take()
            && noticed
        {
            self.send_up(link, Message::End);
        }
    }

    /// Another program queues with a recipe that is none of the clients'.
    fn foreign(&mut self, path: usize, recipe: ForeignRecipe, length: Duration) {
        let form = self.plan.forms[path];
        if !matches!(form, Form::Mutex | Form::ReadWrite) {
            return;
        }
        let number = self.rng.u128(..);
        let other = if form == Form::Mutex { "__WRIT__" } else { "lock-" };
        let prefix = match recipe {
            ForeignRecipe::Kazoo => format!("{number:032x}__lock__"),
            ForeignRecipe::KazooReader => format!("{number:032x}__rlock__"),
            ForeignRecipe::ZooKeeper => format!("x-{:x}-", number as u64),
            ForeignRecipe::OtherCurator => format!("_c_00000000-0000-4000-8000-{:012x}-{other}", number as u32),
            ForeignRecipe::None => "notes-".to_owned(),
        };
        let asked = format!("{}/{prefix}", path_of(self.plan.root, path));
        let mode = CreateMode::PersistentSequential;
        let news = self.cluster.create(&mut self.rng, &mut self.judge, self.now, &asked, mode);
        let made = self.cluster.last_created().filter(|made| made.starts_with(&asked)).map(str::to_owned);
        self.spread(news);
        let Some(made) = made else { return };
        if let (Some(node), true) = (self.cluster.truth.tree().get(&made), recipe != ForeignRecipe::None) {
            self.judge.stranger(&made, node.stat().czxid);
        }
        self.at(self.now + length, Happening::Departs(made.clone()));
        self.strangers.insert(made);
    }

    fn depart(&mut self, node: &str) {
        if self.strangers.contains(node) {
            let news = self.cluster.delete(&mut self.rng, &mut self.judge, self.now, node);
            self.spread(news);
        }
        // Where that was refused, it stays until there is plenty.
        if self.cluster.truth.tree().get(node).is_none() {
            self.strangers.remove(node);
        }
    }

    fn allow(&mut self, directory: &str) {
        if self.cluster.has_leader() && self.forbidden.remove(directory) {
            let news = self.cluster.allow(&mut self.rng, &mut self.judge, self.now, directory, 31);
            self.spread(news);
        }
    }

    /// One of the nodes of a path, by its place in the queue; of a semaphore among the leases or the locks.
    fn node_at(&self, path: usize, place: usize) -> Option<String> {
        let mut directories = self.directories(path % self.plan.forms.len());
        directories.rotate_left((path / 16) % 2);
        let mut nodes = directories.iter().flat_map(|directory| self.nodes_in(directory));
        nodes.nth(place)
    }

    fn directories(&self, path: usize) -> Vec<String> {
        let path_itself = path_of(self.plan.root, path);
        match self.plan.forms[path] {
            Form::Mutex | Form::ReadWrite => vec![path_itself],
            _ => vec![format!("{path_itself}/leases"), format!("{path_itself}/locks")],
        }
    }

    fn nodes_in(&self, directory: &str) -> Vec<String> {
        let Some(node) = self.cluster.truth.tree().get(directory) else { return Vec::new() };
        let mut names: Vec<&String> = node.children.iter().filter(|name| name.starts_with("_c_")).collect();
        names.sort_by_key(|name| name[name.len().saturating_sub(10)..].to_owned());
        names.into_iter().map(|name| format!("{directory}/{name}")).collect()
    }

    fn set(&mut self, path: &str, data: &[u8]) {
        let news = self.cluster.set(&mut self.rng, &mut self.judge, self.now, path, data);
        self.spread(news);
    }

    // The end.

    fn is_calm(&self) -> bool {
        self.now >= Time::default() + ms(1_000) + self.plan.calm
    }

    /// From now on nothing goes wrong any more; processes that stand still go on in their time.
    fn calm(&mut self) {
        self.say(|| "all faults are over".to_owned());
        self.latency = (Duration::ZERO, ms(5));
        self.unreachable.clear();
        self.stuck.clear();
        self.reborn.clear();
        self.breaks.clear();
        self.links.values_mut().for_each(|link| link.breaks = None);
        let links: Vec<usize> = self.links.keys().copied().collect();
        links.into_iter().for_each(|link| self.thaw(link));
        self.paused.fill(self.now);
        if self.cluster.is_doomed
            && let Some((leader, _)) = self.cluster.leader
        {
            self.restart(leader, Duration::ZERO);
        }
        for server in 0..self.cluster.servers.len() {
            self.cluster.servers[server].lag = Duration::ZERO;
            self.cluster.servers[server].replica.forget_losses();
            let own = &self.cluster.servers[server];
            if !own.is_alive || own.is_cut_off {
                self.troubles[server] += 1;
                self.come_back(server);
            }
        }
        self.at(self.now + PATIENCE, Happening::Settled);
        self.at(self.now + self.plan.session_timeout, Happening::Plenty);
        self.check_all_done();
    }

    /// What operators and other programs took away is there again: leases for all who want some, permissions, places.
    fn plenty(&mut self) {
        for path in 0..self.plan.forms.len() {
            if let Form::Counted(initial) = self.plan.forms[path] {
                self.set(&format!("{}{COUNTS}{path}", self.plan.root), &initial.to_be_bytes());
            }
        }
        if !self.cluster.has_leader() {
            return self.at(self.now + self.plan.session_timeout, Happening::Plenty);
        }
        self.forbidden.clone().iter().for_each(|directory| self.allow(directory));
        self.strangers.clone().iter().for_each(|node| self.depart(node));
    }

    fn check_all_done(&mut self) {
        let done = |client: &Client| client.life == Life::Over || (client.life == Life::Running && client.is_done());
        if self.clients.iter().all(done) {
            // Sessions that nobody uses any more have time to end.
            // Clients repeat a delete that was refused after half a minute at the latest.
            let is_refused = self.plan.faults.iter().any(|(_, fault)| matches!(fault, Fault::Forbid { .. }));
            let retry = if is_refused { Duration::from_secs(70) } else { Duration::ZERO };
            let at = self.now + self.plan.session_timeout * 3 + retry;
            self.at(at, Happening::Settled);
        }
    }

    /// Everybody has had his turn. Nothing may be left but directories.
    fn settled(&mut self) {
        let all = (0..self.plan.forms.len()).flat_map(|path| self.directories(path));
        let left: Vec<String> = all.flat_map(|directory| self.nodes_in(&directory)).collect();
        self.say(|| format!("nodes that are left: {left:?}"));
        for (index, client) in self.clients.iter().enumerate() {
            if client.life != Life::Over && !client.is_done() {
                let text = client.describe();
                self.judge.blame(|| format!("client {index} is stuck: {text}"));
            }
        }
        self.expect_no_nodes("after everybody had released");
        for client in 0..self.clients.len() {
            self.clients[client].check_metrics(&mut self.judge);
            let watches = self.clients[client].engine.watch_count();
            if self.clients[client].life == Life::Running && watches > 0 {
                self.judge.blame(|| format!("client {client} has {watches} watches and nothing to wait for"));
            }
        }
        for server in 0..self.cluster.servers.len() {
            let watches = self.cluster.servers[server].replica.watch_count();
            if watches > 0 {
                self.judge.blame(|| format!("server {server} keeps {watches} watches that nobody needs"));
            }
        }
        for client in 0..self.clients.len() {
            if self.clients[client].life == Life::Running {
                self.close(client);
            }
        }
        self.at(self.now + ms(2_500), Happening::Closed);
    }

    fn closed(&mut self) {
        for index in 0..self.clients.len() {
            if self.clients[index].life != Life::Over {
                self.judge.blame(|| format!("client {index} does not end"));
            }
        }
        let sessions = self.cluster.truth.sessions().count();
        if sessions > 0 {
            self.judge.blame(|| format!("{sessions} sessions are left"));
        }
        self.judge.ended();
        self.is_over = true;
    }

    fn expect_no_nodes(&mut self, when: &str) {
        for directory in (0..self.plan.forms.len()).flat_map(|path| self.directories(path)).collect::<Vec<_>>() {
            let left = self.nodes_in(&directory).len();
            if left > 0 {
                self.judge.blame(|| format!("{left} nodes are left in {directory} {when}"));
            }
        }
    }
}

/// What a transaction does, for the history.
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
        Body::OpenSession { .. } => "begins".to_owned(),
        Body::CloseSession => "ends".to_owned(),
        Body::Failed(code) => format!("fails with {code:?}"),
        Body::ManyFailed(codes) => format!("fails with {codes:?}"),
        Body::One(_) | Body::Many(_) => changes.join(", "),
    };
    format!("{} session {:#x} {what}", txn.zxid, txn.session)
}

/// Makes a handshake ask for a new session; gives the one it would have asked for.
fn forget_session(handshake: &mut Vec<u8>) -> Option<i64> {
    let asked = ConnectRequest::decode(&handshake[4..]).ok()?;
    let abandoned = asked.session_id;
    handshake.clear();
    ConnectRequest { session_id: 0, password: vec![0; 16], ..asked }.encode(handshake);
    Some(abandoned)
}

impl Link {
    /// How many of these bytes come through before the connection breaks; none if it does not break here.
    fn lets_through(&mut self, is_reply: bool, bytes: &[u8]) -> Option<usize> {
        let breaks = self.breaks.as_mut().filter(|breaks| breaks.is_reply == is_reply)?;
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
    /// When the message arrives: not before those that were sent before it.
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

    /// Lets everything through that stood still; gives how much has arrived.
    fn thaw(&mut self, now: Time) -> usize {
        self.frozen = false;
        self.queue.iter().filter(|&&(at, _)| at <= now).count()
    }
}
