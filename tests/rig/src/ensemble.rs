//! Three real ZooKeeper servers, with the links between them in our hands.

use std::sync::Arc;
use std::time::Duration;

use crate::network::{Host, Network};
use crate::port::Port;
use crate::proxy::{Direction, Proxy};
use crate::wait_until;
use crate::zookeeper::{Options, ZooKeeper};

/// How many servers.
const SIZE: usize = 3;

/// An ensemble of three servers. On loopback each follower reaches its leader through a proxy of its own, so that a leader can
/// be cut off; the ports for elections are reached directly. On a [`Network`] each server is a host.
pub struct Ensemble {
    servers: Vec<ZooKeeper>,
    wiring: Wiring,
}

/// How the servers reach each other.
enum Wiring {
    /// `links[a][b]`: what server `a` takes for the address of server `b`.
    Proxies { links: Vec<Vec<Proxy>>, _ports: Vec<Port> },
    /// Server `a` is `hosts[a]`.
    Hosts(Vec<Arc<Host>>),
}

impl Ensemble {
    /// Starts three servers with this tick, in which a leader or a follower is missed after `sync_limit` ticks, and waits until
    /// all serve.
    pub fn start(tick_ms: u32, sync_limit: u32) -> Self {
        Self::start_with(&ZooKeeper::options().tick_ms(tick_ms), sync_limit)
    }

    /// The same with other options.
    pub fn start_with(options: &Options, sync_limit: u32) -> Self {
        let quorum: Vec<Port> = (0..SIZE).map(|_| Port::reserve()).collect();
        let election: Vec<Port> = (0..SIZE).map(|_| Port::reserve()).collect();
        let link = |to: &Port| Proxy::start_opaque(&to.address());
        let links: Vec<Vec<Proxy>> = (0..SIZE).map(|_| quorum.iter().map(link).collect()).collect();
        let servers = (0..SIZE).map(|own| {
            let peers = (0..SIZE).map(|peer| {
                let quorum = if peer == own { quorum[peer].address() } else { links[own][peer].address() };
                format!("{quorum}:{}", election[peer].number())
            });
            member(options, own, peers, sync_limit).prepare()
        });
        let servers = servers.collect();
        Self::launch(servers, Wiring::Proxies { links, _ports: quorum.into_iter().chain(election).collect() })
    }

    /// The same on hosts of a network.
    pub fn start_on(network: &mut Network, options: &Options, sync_limit: u32) -> Self {
        let hosts: Vec<Arc<Host>> = (0..SIZE).map(|_| network.add_host().expect("another host")).collect();
        let servers = (0..SIZE).map(|own| {
            let peers = hosts.iter().map(|host| format!("{}:2888:3888", host.address()));
            member(options, own, peers, sync_limit).host(&hosts[own]).prepare()
        });
        let servers = servers.collect();
        Self::launch(servers, Wiring::Hosts(hosts))
    }

    fn launch(servers: Vec<ZooKeeper>, wiring: Wiring) -> Self {
        servers.iter().for_each(ZooKeeper::launch);
        servers.iter().for_each(ZooKeeper::wait_ready);
        Self { servers, wiring }
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
            leader = self.find_leader();
            leader.is_some()
        });
        leader.unwrap()
    }

    /// The leader's index, if there is one now.
    pub fn find_leader(&self) -> Option<usize> {
        self.servers.iter().position(|server| server.mode().as_deref() == Some("leader"))
    }

    /// Whether all servers serve.
    pub fn is_whole(&self) -> bool {
        self.servers.iter().all(|server| server.mode().is_some())
    }

    /// Cuts the leader off without its noticing, before its sync limit is over: whatever its followers send or stop sending, it
    /// hears nothing. Clients still reach it.
    pub fn isolate(&self, leader: usize) {
        match &self.wiring {
            Wiring::Proxies { links, .. } => links.iter().for_each(|links| links[leader].black_hole(true)),
            Wiring::Hosts(hosts) => mute(hosts, leader, true),
        }
    }

    /// From now on a follower hears so late of what its leader tells it, and goes on answering from what it knows. Only on loopback.
    pub fn lag(&self, follower: usize, leader: usize, delay: Duration) {
        let Wiring::Proxies { links, .. } = &self.wiring else { panic!("a network of hosts is as fast as it is") };
        links[follower][leader].delay(Direction::ToClient, delay);
    }

    /// Ends an isolation: the links work again, and the leader hears that those it had are gone.
    pub fn rejoin(&self, leader: usize) {
        match &self.wiring {
            Wiring::Proxies { links, .. } => {
                for links in links {
                    links[leader].cut();
                    links[leader].black_hole(false);
                }
            }
            Wiring::Hosts(hosts) => mute(hosts, leader, false),
        }
    }

    /// Pulls a server's cable, or puts it back: neither servers nor clients reach it, and none of them is told. Only on a network.
    pub fn unplug(&self, server: usize, off: bool) {
        let Wiring::Hosts(hosts) = &self.wiring else { panic!("loopback has no cables") };
        hosts[server].unplug(off);
    }

    /// Restarts a server without waiting until it serves.
    pub fn relaunch(&self, server: usize) {
        self.servers[server].launch();
    }
}

fn member(options: &Options, own: usize, peers: impl Iterator<Item = String>, sync_limit: u32) -> Options {
    let options = options.clone().id(own + 1);
    // For three seconds a new leader waits for followers. One that comes before he listens is sent away by the proxy, where without one it
    // would try again, and then he waits in vain.
    let init_limit = 3_000_u32.div_ceil(options.tick_ms);
    let options =
        options.config_line(&format!("initLimit={init_limit}")).config_line(&format!("syncLimit={sync_limit}"));
    peers
        .enumerate()
        .fold(options, |options, (peer, address)| options.config_line(&format!("server.{}={address}", peer + 1)))
}

/// Has everything between a host and the others vanish, both ways.
fn mute(hosts: &[Arc<Host>], one: usize, on: bool) {
    for (number, other) in hosts.iter().enumerate() {
        if number != one {
            hosts[one].mute(other, on);
            other.mute(&hosts[one], on);
        }
    }
}
