//! Four-letter words: questions that a server answers without a session, if its configuration allows them.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The longest answer that is read.
const LARGEST: usize = 4 << 20;

/// The answer of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Text(String),
    /// The configuration of the server does not allow the word.
    NotAllowed,
    /// The server belongs to an ensemble without a quorum.
    NotServing,
}

/// What the word `srvr` says about a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerState {
    /// The version, for example `3.9.4`.
    pub(crate) version: String,
    /// `leader`, `follower`, `observer` or `standalone`.
    pub(crate) mode: String,
    pub(crate) connections: String,
    /// The smallest, the average and the largest latency in milliseconds.
    pub(crate) latency: String,
    /// True for the standalone server of zklock, which has its own history of faults.
    pub(crate) is_standalone_of_zklock: bool,
}

/// Asks a server.
pub(crate) fn ask(address: &SocketAddr, word: &str, limit: Duration) -> io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(address, limit)?;
    stream.set_write_timeout(Some(limit))?;
    stream.write_all(word.as_bytes())?;
    let (mut answer, mut piece, deadline) = (Vec::new(), [0; 8192], Instant::now() + limit);
    while answer.len() < LARGEST {
        // A program that sends one byte after the other must not extend the limit.
        let left = deadline.saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(_) if left.is_zero() => return Err(io::ErrorKind::TimedOut.into()),
            Ok(count) => answer.extend(piece.iter().take(count)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let text = String::from_utf8_lossy(&answer).into_owned();
    Ok(if text.contains("is not executed because it is not in the whitelist") {
        Answer::NotAllowed
    } else if text.contains("not currently serving requests") {
        Answer::NotServing
    } else {
        Answer::Text(text)
    })
}

impl ServerState {
    /// Parses the answer to `srvr`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let value =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned());
        let version = value("Zookeeper version:")?;
        let version = version.split(['-', ',', ' ']).next().unwrap_or_default().to_owned();
        Some(Self {
            version,
            mode: value("Mode:")?,
            connections: value("Connections:").unwrap_or_default(),
            latency: value("Latency min/avg/max:").unwrap_or_default(),
            is_standalone_of_zklock: text.contains("-zklock-standalone"),
        })
    }

    /// Returns whether this server knows all sessions.
    pub(crate) fn knows_all_sessions(&self) -> bool {
        matches!(self.mode.as_str(), "leader" | "standalone")
    }

    /// Returns whether the version is older than `wanted`. A version that is no number is not older.
    pub(crate) fn is_older_than(&self, wanted: [u32; 3]) -> bool {
        let mut parts = self.version.split('.').map(str::parse::<u32>);
        let own = [parts.next(), parts.next(), parts.next()].map(|part| part.and_then(Result::ok));
        match own {
            [Some(major), Some(minor), patch] => [major, minor, patch.unwrap_or_default()] < wanted,
            _ => false,
        }
    }
}

/// Reads the ids of all sessions from the answer to `dump` of a leader. Returns `None` if the answer has another form.
pub(crate) fn sessions(dump: &str) -> Option<Vec<i64>> {
    let (sets, _) = dump.split_once("ephemeral nodes dump:")?;
    let (_, sets) = sets.split_once("Session Sets (")?;
    let ids = sets.lines().filter_map(|line| line.trim().strip_prefix("0x"));
    // A session id is a number without a sign in this text.
    ids.map(|id| u64::from_str_radix(id, 16).ok().map(u64::cast_signed)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_srvr_is_parsed() {
        let text = "Zookeeper version: 3.9.3-c26634f, built on 2024\nLatency min/avg/max: 0/2.5/96\nConnections: 5\nMode: leader\n";
        let state = ServerState::parse(text).unwrap();
        assert_eq!((&*state.version, &*state.mode, &*state.connections), ("3.9.3", "leader", "5"));
        assert!(state.is_older_than([3, 9, 4]) && !state.is_older_than([3, 9, 3]) && !state.is_older_than([3, 5, 0]));
        assert!(!state.is_standalone_of_zklock);
        let own = ServerState::parse(&text.replace("3.9.3-c26634f", "3.8.0-zklock-standalone-0.1.0")).unwrap();
        assert!(own.is_standalone_of_zklock && own.version == "3.8.0");
        assert_eq!(ServerState::parse("something else"), None);
    }

    #[test]
    fn the_sessions_are_parsed_from_the_dump_of_a_leader() {
        let text = "SessionTracker dump:\nSession Sets (2)/(2):\n1 expire at Mon:\n\t0x1\n1 expire at Mon:\n\tffff\n\t0xf000000000000001\n\
                    ephemeral nodes dump:\nSessions with Ephemerals (1):\n0x7:\n";
        assert_eq!(sessions(text), Some(vec![1, 0xf000_0000_0000_0001_u64.cast_signed()]));
        assert_eq!(sessions("SessionTracker dump:\nGlobal Sessions(1):\n0x1\t10000ms\nephemeral nodes dump:\n"), None);
    }
}
