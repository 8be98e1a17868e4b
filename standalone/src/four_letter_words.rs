//! The four-letter words: commands by which operators and tools query the state of a server. A command only reads the
//! replica, and must not change it.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::replica::{Connection, ConnectionPhase, Replica};

/// The answer to a four-letter word. Returns `None` if `word` is not a known command. The bytes are then the beginning
/// of a frame.
pub(crate) fn respond(server: &Replica, word: [u8; 4]) -> Option<String> {
    Some(match &word {
        b"ruok" => "imok".to_owned(),
        b"isro" => "rw".to_owned(),
        b"srvr" => version() + &summary(server),
        b"stat" => format!("{}Clients:\n{}\n{}", version(), clients(server, brief), summary(server)),
        b"cons" => clients(server, full),
        b"conf" => configuration(server),
        b"envi" => format!("Environment:\nzookeeper.version={VERSION}\nhost.name=localhost\n"),
        b"mntr" => metrics(server),
        b"dump" => sessions(server),
        b"wchs" => {
            let (connections, watches): (Vec<_>, Vec<_>) = server.watches.of_data().unzip();
            let (paths, total) = (watches.iter().flatten().collect::<BTreeSet<_>>(), watches.iter().flatten().count());
            format!("{} connections watching {} paths\nTotal watches:{total}\n", connections.len(), paths.len())
        }
        b"wchc" => watches(server),
        _ => return None,
    })
}

/// Clients read this version to determine the features of a server. The standalone server has the features of this
/// ZooKeeper version.
const VERSION: &str = concat!("3.8.0-zklock-standalone-", env!("CARGO_PKG_VERSION"), ", built on Rust");

fn version() -> String {
    format!("Zookeeper version: {VERSION}\n")
}

fn summary(server: &Replica) -> String {
    let counters = &server.counters;
    format!(
        "Latency min/avg/max: 0/0.0/0\nReceived: {}\nSent: {}\nConnections: {}\nOutstanding: 0\nZxid: {:#x}\nMode: standalone\nNode count: {}\n",
        counters.received,
        counters.sent,
        server.connections.len(),
        server.zxid,
        server.tree.node_count(),
    )
}

fn clients(server: &Replica, describe: fn(&Connection) -> String) -> String {
    let mut text = String::new();
    for connection in server.connections.values() {
        let _ = writeln!(text, " /{}[1]({})", connection.peer, describe(connection));
    }
    text + "\n"
}

fn brief(connection: &Connection) -> String {
    format!("queued=0,recved={},sent={}", connection.received, connection.sent)
}

fn full(connection: &Connection) -> String {
    match connection.phase {
        ConnectionPhase::Established(session) => {
            format!("{},sid={session:#x},to={}", brief(connection), connection.timeout.as_millis())
        }
        _ => brief(connection),
    }
}

fn configuration(server: &Replica) -> String {
    let settings = &server.settings;
    format!(
        "tickTime={}\nmaxClientCnxns={}\nminSessionTimeout={}\nmaxSessionTimeout={}\nserverId=0\n",
        settings.tick.as_millis(),
        settings.connections_per_address.unwrap_or_default(),
        settings.min_timeout().as_millis(),
        settings.max_timeout().as_millis(),
    )
}

fn metrics(server: &Replica) -> String {
    let watches = server.watches.count();
    let counters = &server.counters;
    let sessions = server.sessions.len();
    let lines: [(&str, &dyn std::fmt::Display); 11] = [
        ("version", &VERSION),
        ("server_state", &"standalone"),
        ("packets_received", &counters.received),
        ("packets_sent", &counters.sent),
        ("num_alive_connections", &server.connections.len()),
        ("outstanding_requests", &0),
        ("znode_count", &server.tree.node_count()),
        ("watch_count", &watches),
        ("ephemerals_count", &server.tree.ephemeral_count()),
        ("approximate_data_size", &server.tree.data_size()),
        ("global_sessions", &sessions),
    ];
    lines.iter().map(|(name, value)| format!("zk_{name}\t{value}\n")).collect()
}

fn sessions(server: &Replica) -> String {
    let mut text = format!("Sessions ({}):\n", server.sessions.len());
    for session in server.sessions.keys() {
        let _ = writeln!(text, "{session:#x}");
    }
    text += "Sessions with Ephemerals:\n";
    for session in server.sessions.keys() {
        let paths: Vec<_> = server.tree.ephemerals_of(*session).collect();
        if !paths.is_empty() {
            let _ = writeln!(text, "{session:#x}:");
            text.extend(paths.iter().map(|path| format!("\t{path}\n")));
        }
    }
    text
}

fn watches(server: &Replica) -> String {
    let mut text = String::new();
    for (connection, paths) in server.watches.of_data() {
        let _ = writeln!(text, "{:#x}", server.session_of(connection).unwrap_or_default());
        text.extend(paths.iter().map(|path| format!("\t{path}\n")));
    }
    text
}
