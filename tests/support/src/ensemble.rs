//! An ensemble of three real ZooKeeper servers, with control over the links between them.

use std::sync::Arc;
use std::time::Duration;

use crate::network::{Host, Network};
use crate::port::Port;
use crate::proxy::{Direction, Proxy};
use crate::zookeeper::{Options, ZooKeeper};
use crate::{TEST_TIMEOUT, wait_until};

/// The number of servers.
const SIZE: usize = 3;

/// An ensemble of three servers. On loopback, each follower reaches its leader through its own proxy, so that a test
/// can isolate the leader; the election ports are connected directly. On a [`Network`], each server is a host.
pub struct Ensemble {
    servers: Vec<ZooKeeper>,
    topology: Topology,
}

/// How the servers reach each other.
enum Topology {
    /// `links[a][b]` is the proxy that server `a` uses as the address of server `b`.
    Proxies { links: Vec<Vec<Proxy>>, _ports: Vec<Port> },
    /// Server `a` runs on `hosts[a]`.
    Hosts(Vec<Arc<Host>>),
}

impl Ensemble {
    /// Starts three servers with this tick and waits until all of them serve. After `sync_limit` ticks without a
    /// message, a follower abandons its leader, and a leader abandons its follower.
    pub fn start(tick_ms: u32, sync_limit: u32) -> Self {
        Self::start_with(&ZooKeeper::options().tick_ms(tick_ms), sync_limit)
    }

    /// Like [`start`](Self::start), with other options.
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
        Self::launch(servers, Topology::Proxies { links, _ports: quorum.into_iter().chain(election).collect() })
    }

    /// Like [`start_with`](Self::start_with), on the hosts of a network.
    pub fn start_on(network: &mut Network, options: &Options, sync_limit: u32) -> Self {
        let hosts: Vec<Arc<Host>> = (0..SIZE).map(|_| network.add_host().expect("another host")).collect();
        let servers = (0..SIZE).map(|own| {
            let peers = hosts.iter().map(|host| format!("{}:2888:3888", host.address()));
            member(options, own, peers, sync_limit).host(&hosts[own]).prepare()
        });
        let servers = servers.collect();
        Self::launch(servers, Topology::Hosts(hosts))
    }

    fn launch(servers: Vec<ZooKeeper>, topology: Topology) -> Self {
        servers.iter().for_each(ZooKeeper::start_process);
        servers.iter().for_each(ZooKeeper::wait_ready);
        Self { servers, topology }
    }

    /// The servers.
    pub fn servers(&self) -> &[ZooKeeper] {
        &self.servers
    }

    /// The connect string of all servers.
    pub fn address(&self) -> String {
        self.servers.iter().map(ZooKeeper::address).collect::<Vec<_>>().join(",")
    }

    /// Like [`address`](Self::address), of the ports that accept TLS.
    pub fn tls_address(&self) -> String {
        self.servers.iter().map(ZooKeeper::tls_address).collect::<Vec<_>>().join(",")
    }

    /// Waits until the ensemble has a leader, and returns its index.
    pub fn leader(&self) -> usize {
        let mut leader = None;
        wait_until(TEST_TIMEOUT, || {
            leader = self.find_leader();
            leader.is_some()
        });
        leader.unwrap()
    }

    /// The index of the leader, if the ensemble has one now.
    pub fn find_leader(&self) -> Option<usize> {
        self.servers.iter().position(|server| server.mode().as_deref() == Some("leader"))
    }

    /// Whether all servers serve.
    pub fn is_serving(&self) -> bool {
        self.servers.iter().all(|server| server.mode().is_some())
    }

    /// Isolates the leader: it receives nothing from its followers, and it does not notice this before its sync limit.
    /// Clients still reach it.
    pub fn isolate(&self, leader: usize) {
        match &self.topology {
            Topology::Proxies { links, .. } => links.iter().for_each(|links| links[leader].black_hole(true)),
            Topology::Hosts(hosts) => set_isolated(hosts, leader, true),
        }
    }

    /// Delays everything that a follower receives from its leader. The follower continues to answer reads from its own
    /// state. Only on loopback.
    pub fn delay_follower(&self, follower: usize, leader: usize, delay: Duration) {
        let Topology::Proxies { links, .. } = &self.topology else {
            panic!("the latency of a network of hosts cannot be set")
        };
        links[follower][leader].delay(Direction::ToClient, delay);
    }

    /// Ends an isolation. The links work again, and the leader learns that its old connections are closed.
    pub fn end_isolation(&self, leader: usize) {
        match &self.topology {
            Topology::Proxies { links, .. } => {
                for links in links {
                    links[leader].cut();
                    links[leader].black_hole(false);
                }
            }
            Topology::Hosts(hosts) => set_isolated(hosts, leader, false),
        }
    }

    /// Sets the network link of a server down (`off`) or up. Neither servers nor clients reach the server, and no
    /// connection is closed. Only on a network.
    pub fn set_link_down(&self, server: usize, off: bool) {
        let Topology::Hosts(hosts) = &self.topology else { panic!("loopback has no links to unplug") };
        hosts[server].set_link_down(off);
    }

    /// Restarts a server without waiting until it serves.
    pub fn relaunch(&self, server: usize) {
        self.servers[server].start_process();
    }
}

fn member(options: &Options, own: usize, peers: impl Iterator<Item = String>, sync_limit: u32) -> Options {
    let options = options.clone().id(own + 1);
    // A new leader waits three seconds for its followers. If a follower connects before the leader listens, the proxy
    // closes the connection. Without a proxy the follower would try again; with one, the leader waits in vain.
    let init_limit = 3_000_u32.div_ceil(options.tick_ms);
    let options =
        options.config_line(&format!("initLimit={init_limit}")).config_line(&format!("syncLimit={sync_limit}"));
    peers
        .enumerate()
        .fold(options, |options, (peer, address)| options.config_line(&format!("server.{}={address}", peer + 1)))
}

/// Drops everything between one host and the others, in both directions.
fn set_isolated(hosts: &[Arc<Host>], one: usize, on: bool) {
    for (number, other) in hosts.iter().enumerate() {
        if number != one {
            hosts[one].drop_packets_to(other, on);
            other.drop_packets_to(&hosts[one], on);
        }
    }
}
