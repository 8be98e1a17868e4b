//! Follows the configuration of the ensemble. Servers with dynamic reconfiguration store the list of all servers in the
//! node `/zookeeper/config`. This file parses the node, and decides which servers the client uses. The session reads
//! and watches the node.

use core::net::{IpAddr, Ipv6Addr};

use super::connect_string::{Server, parse_port};
use super::servers::ServerList;
use crate::path::quote;

/// The node with the configuration of the ensemble. The path does not depend on the chroot of the client.
pub(super) const CONFIG_PATH: &str = "/zookeeper/config";
/// The largest number of servers in a configuration. The ids of servers are numbers up to 255.
const MAX_SERVERS: usize = 255;

/// The ports to which a client connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientPorts {
    /// The ports for connections without TLS.
    Plain,
    /// The ports for connections with TLS.
    Secure,
}

/// The configuration of an ensemble.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EnsembleConfig {
    version: u64,
    entries: Vec<Entry>,
}

/// Checks data of the node `/zookeeper/config`. Returns the reason if the data is not a configuration. Only the fuzzer uses
/// this function.
#[doc(hidden)]
pub fn check_ensemble_config(data: &[u8]) -> Result<(), String> {
    EnsembleConfig::parse(data).map(drop)
}

/// The addresses of one server for clients. An address is `None` if the configuration does not contain it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    plain: Option<Server>,
    secure: Option<Server>,
}

impl EnsembleConfig {
    /// Parses the data of the node: lines like `server.1=host:2888:3888:participant;2181`, and a line with the version.
    /// Other lines have no meaning for clients. Returns the reason if the data is not a configuration.
    pub(super) fn parse(data: &[u8]) -> Result<Self, String> {
        let text = str::from_utf8(data).map_err(|_| "the node is not UTF-8 text".to_owned())?;
        let (mut version, mut entries) = (None, Vec::new());
        for line in text.lines() {
            let Some((name, value)) = line.split_once('=') else { continue };
            let (name, value) = (name.trim(), value.trim());
            if name == "version" {
                version = u64::from_str_radix(value, 16).ok();
            } else if name.strip_prefix("server.").is_some_and(|id| id.parse::<i64>().is_ok()) {
                entries.push(Entry::parse(value).ok_or_else(|| format!("{} is not a server", quote(line)))?);
            }
        }
        match version {
            _ if data.is_empty() => Err("the node is empty".to_owned()),
            _ if entries.is_empty() => Err("the node lists no server".to_owned()),
            _ if entries.len() > MAX_SERVERS => Err(format!("the node lists more than {MAX_SERVERS} servers")),
            None => Err("the node has no version".to_owned()),
            Some(version) => Ok(Self { version, entries }),
        }
    }
}

impl Entry {
    /// Parses `host:port:port[:role][|host:port:port...][;[address:]port][;[address:]port]`. The first address and port
    /// after a semicolon are for clients. ZooKeeper 3.10 adds an address and a port for clients with TLS. A role or an
    /// empty part has no effect here.
    fn parse(value: &str) -> Option<Self> {
        let mut parts = value.split(';');
        // A server can have several addresses for the quorum. Each of them reaches the server.
        let quorum = parts.next()?.split('|').next()?.trim();
        let (host, ports) = split_host(quorum)?;
        let mut ports = ports.split(':');
        (parse_port(ports.next()?).is_some() && parse_port(ports.next()?).is_some()).then_some(())?;
        let mut client_address = || match parts.next().map(str::trim) {
            None | Some("") => Some(None),
            Some(part) => client_server(host, part),
        };
        Some(Self { plain: client_address()?, secure: client_address()? })
    }
}

/// Parses `[address:]port`. The result is `Some(None)` if neither the address nor `host` names a machine.
fn client_server(host: &str, part: &str) -> Option<Option<Server>> {
    let (address, digits) = part.rsplit_once(':').unwrap_or(("", part));
    let address = address.strip_prefix('[').map_or(Some(address), |rest| rest.strip_suffix(']'))?;
    let port = parse_port(digits)?;
    // With a wildcard address, the server accepts clients on all addresses of its machine. A client that connected to
    // the wildcard address would reach its own machine.
    let host = if is_wildcard(address) { host } else { address };
    is_host(host).then(|| (!is_wildcard(host)).then(|| Server { host: host.to_owned(), port }))
}

/// Splits `host:rest` or `[host]:rest`.
fn split_host(text: &str) -> Option<(&str, &str)> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(text) => text.split_once("]:")?,
        None => text.split_once(':')?,
    };
    is_host(host).then_some((host, rest))
}

/// Returns whether the text can be a name or an address. A name contains no colon, because colons only occur in IPv6
/// addresses.
fn is_host(text: &str) -> bool {
    let is_invalid = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '[' | ']' | '/' | ',' | '=');
    let address = text.split_once('%').map_or(text, |(address, _zone)| address);
    let is_address = !text.contains(':') || address.parse::<Ipv6Addr>().is_ok();
    (1..=255).contains(&text.len()) && !text.contains(is_invalid) && is_address
}

/// Returns whether the address is empty, `0.0.0.0` or `::`.
fn is_wildcard(address: &str) -> bool {
    address.is_empty() || address.parse().is_ok_and(|address: IpAddr| address.is_unspecified())
}

/// Keeps the configuration that a client follows.
#[derive(Debug)]
pub(super) struct Follower {
    ports: ClientPorts,
    /// The servers that the program named.
    given: Vec<Server>,
    /// The servers of the configuration that the client follows.
    followed: Vec<Server>,
    /// The version of the last configuration of this session.
    version: Option<u64>,
    /// The last reason why the client could not follow the configuration.
    refusal: Option<String>,
}

impl Follower {
    pub(super) fn new(ports: ClientPorts, given: Vec<Server>) -> Self {
        Self { ports, given, followed: Vec::new(), version: None, refusal: None }
    }

    /// Forgets the version, because the next session may belong to an ensemble that was set up again.
    pub(super) fn on_session_ended(&mut self) {
        self.version = None;
    }

    /// Handles the data of the node. Returns the new server list if the client must change its list. Fails with the
    /// reason if the data is unusable. The client then keeps its list.
    pub(super) fn on_data(&mut self, data: &[u8]) -> Result<Option<ServerList>, String> {
        let config = EnsembleConfig::parse(data)?;
        if self.version.is_some_and(|version| config.version <= version) {
            return Ok(None);
        }
        let found: Vec<Option<&Server>> = config.entries.iter().map(|entry| self.usable(entry)).collect();
        let is_complete = found.iter().all(Option::is_some);
        let mut servers: Vec<Server> = found.into_iter().flatten().cloned().collect();
        if servers.is_empty() {
            return Err(match self.ports {
                ClientPorts::Plain => "the node lists no port for clients".to_owned(),
                ClientPorts::Secure => "the node lists no port for clients with TLS".to_owned(),
            });
        }
        self.version = Some(config.version);
        self.refusal = None;
        if servers == self.followed {
            return Ok(None);
        }
        self.followed.clone_from(&servers);
        if !is_complete {
            // The program may have named the servers whose ports are unknown.
            servers.extend_from_slice(&self.given);
        }
        Ok(Some(ServerList { servers, fallback: self.given.clone() }))
    }

    /// Returns the address that the client uses for a server. The address of a client with TLS is the address for TLS.
    /// Without it, the client uses the other address only if the program has named its port, as with `portUnification`.
    fn usable<'a>(&self, entry: &'a Entry) -> Option<&'a Server> {
        let is_named = |server: &&Server| self.given.iter().any(|given| given.port == server.port);
        match self.ports {
            ClientPorts::Plain => entry.plain.as_ref(),
            ClientPorts::Secure => entry.secure.as_ref().or_else(|| entry.plain.as_ref().filter(is_named)),
        }
    }

    /// Returns whether a configuration listed the server. The program may name a server that the configuration lists
    /// under another name. Such a server is not part of the configuration, so its absence does not mean that the server
    /// has left the ensemble.
    pub(super) fn lists(&self, server: &Server) -> bool {
        self.followed.contains(server)
    }

    /// Records why the client cannot follow the configuration. Returns true if the reason is new.
    pub(super) fn record_refusal(&mut self, cause: &str) -> bool {
        self.refusal.replace(cause.to_owned()).as_deref() != Some(cause)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(servers: &[Server]) -> String {
        servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    fn server(host: &str, port: u16) -> Server {
        Server { host: host.to_owned(), port }
    }

    fn follower(ports: ClientPorts) -> Follower {
        Follower::new(ports, vec![server("seed", 2181)])
    }

    /// Returns the servers that a client uses after it has read this line.
    fn used(ports: ClientPorts, line: &str) -> Result<String, String> {
        let data = format!("server.1={line}\nversion=100000000");
        follower(ports).on_data(data.as_bytes()).map(|list| shown(&list.unwrap().servers))
    }

    #[test]
    fn client_addresses_are_taken_from_each_form_of_an_entry() {
        for (line, expected) in [
            ("zk1:2888:3888:participant;0.0.0.0:2181", "zk1:2181"),
            ("zk1:2888:3888;2181", "zk1:2181"),
            ("zk1.example.com:2888:3888:observer;2182", "zk1.example.com:2182"),
            ("10.0.0.1:2888:3888:participant;zk1:2181", "zk1:2181"),
            ("zk1:2888:3888:participant;[::]:2181", "zk1:2181"),
            ("zk1:2888:3888:participant;0:0:0:0:0:0:0:0:2181", "zk1:2181"),
            ("zk1:2888:3888:participant;[0:0:0:0:0:0:0:0]:2181", "zk1:2181"),
            ("[fd00::1]:2888:3888:participant;[fd00::2]:2181", "[fd00::2]:2181"),
            ("[fd00::1]:2888:3888;2181", "[fd00::1]:2181"),
            ("zk1:2888:3888|zk1-b:2888:3888:participant;2181", "zk1:2181"),
            ("zk1:2888:3888:participant;2181;2281", "zk1:2181"),
        ] {
            assert_eq!(used(ClientPorts::Plain, line).as_deref(), Ok(expected), "{line}");
        }
    }

    #[test]
    fn clients_with_tls_use_ports_for_tls() {
        for (line, expected) in [
            ("zk1:2888:3888:participant;2182;2281", Ok("zk1:2281")),
            ("zk1:2888:3888;;0.0.0.0:2281", Ok("zk1:2281")),
            ("zk1:2888:3888;2181", Ok("zk1:2181")),
            ("zk1:2888:3888;2182", Err("the node lists no port for clients with TLS")),
        ] {
            assert_eq!(used(ClientPorts::Secure, line), expected.map(Into::into).map_err(Into::into), "{line}");
        }
    }

    #[test]
    fn unusable_configurations_are_refused_with_the_reason() {
        for (data, reason) in [
            ("", "the node is empty"),
            ("version=1", "the node lists no server"),
            ("server.1=zk1:2888:3888;2181", "the node has no version"),
            ("server.1=zk1:2888:3888;2181\nversion=x", "the node has no version"),
            ("server.1=zk1:2888:3888\nversion=1", "the node lists no port for clients"),
            ("server.1=0.0.0.0:2888:3888;2181\nversion=1", "the node lists no port for clients"),
            ("server.1=zk1\nversion=1", "\"server.1=zk1\" is not a server"),
            ("server.1=zk1:2888;2181\nversion=1", "is not a server"),
            ("server.1=zk 1:2888:3888;2181\nversion=1", "is not a server"),
            ("server.1=zk1:2888:3888;0\nversion=1", "is not a server"),
            ("server.1=zk1:2888:3888;a/b:2181\nversion=1", "is not a server"),
            ("server.1=zk1:2888:3888;a:b:2181\nversion=1", "is not a server"),
            ("server.1=[zk1:2888:3888;2181\nversion=1", "is not a server"),
        ] {
            let mut follower = follower(ClientPorts::Plain);
            let refused = follower.on_data(data.as_bytes()).unwrap_err();
            assert!(refused.ends_with(reason), "{data:?}: {refused}");
            assert!(follower.record_refusal(&refused) && !follower.record_refusal(&refused), "logged once");
        }
        assert_eq!(follower(ClientPorts::Plain).on_data(b"\xff").unwrap_err(), "the node is not UTF-8 text");
    }

    #[test]
    fn only_newer_versions_change_the_list() {
        let mut follower = follower(ClientPorts::Plain);
        let mut read = |version: &str, hosts: &[&str]| {
            let lines: Vec<String> = hosts.iter().map(|host| format!("server.1={host}:1:2;2181\n")).collect();
            let data = format!("{}version={version}", lines.concat());
            follower.on_data(data.as_bytes()).unwrap().map(|list| (shown(&list.servers), shown(&list.fallback)))
        };
        let list = |servers: &str| Some((servers.to_owned(), "seed:2181".to_owned()));
        assert_eq!(read("9", &["a", "b"]), list("a:2181 b:2181"));
        assert_eq!(read("9", &["c"]), None);
        assert_eq!(read("8", &["c"]), None);
        assert_eq!(read("a", &["a", "b"]), None, "the same servers");
        assert_eq!(read("100000000", &["c"]), list("c:2181"), "versions are hexadecimal numbers");
        follower.on_session_ended();
        let data = b"server.1=d:1:2;2181\nversion=0";
        assert_eq!(shown(&follower.on_data(data).unwrap().unwrap().servers), "d:2181");
        assert!(follower.lists(&server("d", 2181)) && !follower.lists(&server("seed", 2181)));
    }

    /// A server that was configured with a static file lists client ports only for itself.
    #[test]
    fn servers_of_the_program_remain_equal_if_client_ports_are_missing() {
        let data = b"server.1=a:1:2:participant;2181\nserver.2=b:1:2:participant\nversion=0";
        let list = follower(ClientPorts::Plain).on_data(data).unwrap().unwrap();
        assert_eq!(shown(&list.servers), "a:2181 seed:2181");
    }

    proptest! {
        /// No data causes a panic, and a client never gets an empty list or a wildcard address.
        #[test]
        fn any_data_gives_a_reason_or_usable_servers(
            data in "(server\\.[0-9a]{1,2}=[a0:.;|\\[\\]1-9]{0,24}\n|version=[0-9a-g]{0,17}\n|[ -~]{0,9}\n){0,6}",
            is_secure in any::<bool>(),
        ) {
            let ports = if is_secure { ClientPorts::Secure } else { ClientPorts::Plain };
            if let Ok(Some(list)) = follower(ports).on_data(data.as_bytes()) {
                prop_assert!(!list.servers.is_empty());
                for server in list.servers {
                    prop_assert!(!is_wildcard(&server.host) && server.port > 0 && is_host(&server.host));
                }
            }
        }

        #[test]
        fn bytes_that_are_no_configuration_cause_no_panic(data in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = follower(ClientPorts::Plain).on_data(&data);
        }
    }
}
