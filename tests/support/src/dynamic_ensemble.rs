//! An ensemble of real ZooKeeper servers whose members change at run time.

use std::time::Duration;

use crate::port::Port;
use crate::raw_client::RawClient;
use crate::wait_until;
use crate::zookeeper::{Options, ZooKeeper};

/// The number of servers that start together.
const INITIAL: usize = 3;
const LIMIT: Duration = Duration::from_secs(60);

/// An ensemble with dynamic reconfiguration on loopback. Three servers start together. Further servers can join.
pub struct DynamicEnsemble {
    servers: Vec<ZooKeeper>,
    /// The ports of each server for the quorum and for elections.
    ports: Vec<[Port; 2]>,
}

impl DynamicEnsemble {
    /// Prepares `count` servers, starts the first three, and waits until they serve.
    pub fn start(options: &Options, count: usize) -> Self {
        let lines = ["reconfigEnabled=true", "skipACL=yes", "standaloneEnabled=false", "initLimit=10", "syncLimit=10"];
        let options = lines.iter().fold(options.clone(), |options, line| options.config_line(line));
        let ensemble = Self {
            servers: (1..=count).map(|id| options.clone().id(id).prepare()).collect(),
            ports: (0..count).map(|_| [Port::reserve(), Port::reserve()]).collect(),
        };
        let members: Vec<String> = (0..INITIAL).map(|member| ensemble.line(member)).collect();
        for (number, server) in ensemble.servers.iter().enumerate() {
            server.add_config_lines(&members);
            if number >= INITIAL {
                // A server that joins later lists itself beside the members.
                server.add_config_lines(&[ensemble.line(number)]);
            }
        }
        ensemble.servers[..INITIAL].iter().for_each(ZooKeeper::start_process);
        ensemble.servers[..INITIAL].iter().for_each(ZooKeeper::wait_ready);
        ensemble
    }

    /// The servers, including those that have not joined.
    pub fn servers(&self) -> &[ZooKeeper] {
        &self.servers
    }

    /// Starts a server and adds it to the ensemble, with the help of a member.
    pub fn join(&self, joining: usize, helper: usize) {
        self.servers[joining].start_process();
        self.reconfigure(helper, &self.line(joining), "");
        self.servers[joining].wait_ready();
    }

    /// Removes a server from the ensemble, with the help of another member. The server continues to run.
    pub fn remove(&self, leaving: usize, helper: usize) {
        self.reconfigure(helper, "", &(leaving + 1).to_string());
    }

    /// Repeats the request until it succeeds. The leader refuses it until the joining server has caught up.
    fn reconfigure(&self, helper: usize, joining: &str, leaving: &str) {
        let connect = || {
            self.servers[helper].wait_ready();
            RawClient::connect(&self.servers[helper].address(), 60_000)
        };
        let mut admin = connect();
        wait_until(LIMIT, || match admin.reconfigure(joining, leaving) {
            Ok(result) => result.is_ok(),
            Err(_) => {
                // If the leader leaves, the others elect another leader and close their connections.
                admin = connect();
                false
            }
        });
    }

    /// The line of the configuration that describes a server.
    fn line(&self, server: usize) -> String {
        let [quorum, election] = &self.ports[server];
        let client = self.servers[server].address();
        format!("server.{}={}:{}:participant;{client}", server + 1, quorum.address(), election.number())
    }
}
