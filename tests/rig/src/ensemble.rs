//! Three real ZooKeeper servers, with the links between them in our hands.

use std::time::Duration;

use crate::port::Port;
use crate::proxy::{Direction, Proxy};
use crate::wait_until;
use crate::zookeeper::ZooKeeper;

/// How many servers.
const SIZE: usize = 3;

/// An ensemble of three servers on loopback. Each follower reaches its leader through a proxy of its own, so that a leader can
/// be cut off; the ports for elections are reached directly.
pub struct Ensemble {
    servers: Vec<ZooKeeper>,
    /// `links[a][b]`: what server `a` takes for the address of server `b`.
    links: Vec<Vec<Proxy>>,
    _ports: Vec<Port>,
}

impl Ensemble {
    /// Starts three servers with this tick, in which a leader or a follower is missed after `sync_limit` ticks, and waits until
    /// all serve.
    pub fn start(tick_ms: u32, sync_limit: u32) -> Self {
        let quorum: Vec<Port> = (0..SIZE).map(|_| Port::reserve()).collect();
        let election: Vec<Port> = (0..SIZE).map(|_| Port::reserve()).collect();
        let link = |to: &Port| Proxy::start_opaque(&to.address());
        let links: Vec<Vec<Proxy>> = (0..SIZE).map(|_| quorum.iter().map(link).collect()).collect();
        let servers = (0..SIZE).map(|own| {
            let mut options = ZooKeeper::options().tick_ms(tick_ms).id(own + 1);
            options = options.config_line("initLimit=20").config_line(&format!("syncLimit={sync_limit}"));
            for peer in 0..SIZE {
                let (id, election) = (peer + 1, election[peer].number());
                let quorum = if peer == own { quorum[peer].address() } else { links[own][peer].address() };
                options = options.config_line(&format!("server.{id}={quorum}:{election}"));
            }
            options.prepare()
        });
        let servers: Vec<ZooKeeper> = servers.collect();
        servers.iter().for_each(ZooKeeper::launch);
        servers.iter().for_each(ZooKeeper::wait_ready);
        Self { servers, links, _ports: quorum.into_iter().chain(election).collect() }
    }

    /// The servers.
    pub fn servers(&self) -> &[ZooKeeper] {
        &self.servers
    }

    /// The connect string of all servers.
    pub fn address(&self) -> String {
        self.servers.iter().map(ZooKeeper::address).collect::<Vec<_>>().join(",")
    }

    /// The leader's index; waits until there is one.
    pub fn leader(&self) -> usize {
        let mut leader = None;
        wait_until(Duration::from_secs(30), || {
            leader = self.servers.iter().position(|server| server.mode().as_deref() == Some("leader"));
            leader.is_some()
        });
        leader.unwrap()
    }

    /// Cuts the leader off without its noticing, before its sync limit is over: whatever its followers send or stop sending, it
    /// hears nothing.
    pub fn isolate(&self, leader: usize) {
        for links in &self.links {
            links[leader].black_hole(true);
        }
    }

    /// From now on a follower hears so late of what its leader tells it, and goes on answering from what it knows.
    pub fn lag(&self, follower: usize, leader: usize, delay: Duration) {
        self.links[follower][leader].delay(Direction::ToClient, delay);
    }

    /// Ends an isolation: the links work again, and the leader hears that those it had are gone.
    pub fn rejoin(&self, leader: usize) {
        for links in &self.links {
            links[leader].cut();
            links[leader].black_hole(false);
        }
    }

    /// Restarts a server without waiting until it serves.
    pub fn relaunch(&self, server: usize) {
        self.servers[server].launch();
    }
}
