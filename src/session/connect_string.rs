//! The connect string: `host:port,host:port/chroot`.

use core::net::Ipv6Addr;

use crate::error::{Error, Result};
use crate::path::{self, quote};

/// The port that ZooKeeper listens on by convention.
pub const DEFAULT_PORT: u16 = 2181;

/// One server as the user named it. The name is resolved anew at every try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// A host name, an IPv4 address, or an IPv6 address without its brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// A parsed connect string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectString {
    /// At least one server.
    pub servers: Vec<Server>,
    /// Empty, or a valid path that is put before every path.
    pub chroot: String,
}

impl ConnectString {
    /// Parses `host[:port][,host[:port]...][/chroot]`. IPv6 addresses stand in brackets: `[::1]:2181`.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some((scheme, _)) = text.split_once("://") {
            return Err(refuse(
                text,
                &format!("begins with {}; expected host:port without a scheme", quote(&format!("{scheme}://"))),
            ));
        }
        let (list, chroot) = match text.find('/') {
            Some(at) => text.split_at(at),
            None => (text, ""),
        };
        let chroot = if chroot == "/" { "" } else { chroot };
        if !chroot.is_empty() {
            path::validate(chroot).map_err(|e| refuse(text, &format!("chroot: {e}")))?;
        }
        let servers = list.split(',').map(|item| server(item.trim(), text)).collect::<Result<_>>()?;
        Ok(Self { servers, chroot: chroot.to_owned() })
    }
}

fn server(item: &str, text: &str) -> Result<Server> {
    let (host, port) = if let Some(rest) = item.strip_prefix('[') {
        let Some((host, rest)) = rest.split_once(']') else {
            return Err(refuse(text, &format!("{} has no closing bracket", quote(item))));
        };
        if parse_v6(host).is_none() {
            let why = format!("{} has brackets around {}, which is no IPv6 address", quote(item), quote(host));
            return Err(refuse(text, &why));
        }
        match rest {
            "" => (host, None),
            _ => match rest.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None => {
                    return Err(refuse(
                        text,
                        &format!("{} has something else than ':port' behind its bracket", quote(item)),
                    ));
                }
            },
        }
    } else {
        match item.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err(refuse(
                    text,
                    &format!("{} has two colons; write an IPv6 address as [::1]:2181", quote(item)),
                ));
            }
            Some((host, port)) => (host, Some(port)),
            None => (item, None),
        }
    };
    if host.is_empty() || host.len() > 255 || host.contains(is_out_of_place) {
        return Err(refuse(text, &format!("{} is not a server; expected host:port", quote(item))));
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(digits) => match digits.parse::<u16>() {
            Ok(port) if port > 0 && digits.bytes().all(|b| b.is_ascii_digit()) => port,
            _ => return Err(refuse(text, &format!("{} is not a port; expected 1 to 65535", quote(digits)))),
        },
    };
    Ok(Server { host: host.to_owned(), port })
}

/// An IPv6 address, perhaps with a zone, like `fe80::1%eth0`.
fn parse_v6(host: &str) -> Option<Ipv6Addr> {
    let (address, zone) = host.split_once('%').unwrap_or((host, "0"));
    address.parse().ok().filter(|_| !zone.is_empty())
}

/// What can be in no name and no address. Whoever reads such a thing would have to guess where it ends.
fn is_out_of_place(c: char) -> bool {
    c.is_whitespace() || c.is_control() || matches!(c, '[' | ']')
}

fn refuse(text: &str, why: &str) -> Error {
    Error::invalid(format!("connect string {}: {why}", quote(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> String {
        let ConnectString { servers, chroot } = ConnectString::parse(text).unwrap();
        format!("{} {chroot}", servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn good() {
        assert_eq!(parsed("zk1"), "zk1:2181 ");
        assert_eq!(parsed("zk1:1, zk2:65535 /app/a"), "zk1:1 zk2:65535 /app/a");
        assert_eq!(parsed("[::1]:2182,[fe80::1%eth0],127.0.0.1/"), "[::1]:2182 [fe80::1%eth0]:2181 127.0.0.1:2181 ");
    }

    #[test]
    fn bad_ones_name_the_piece() {
        for (text, piece) in [
            ("", "\"\" is not a server"),
            (",a", "\"\" is not a server"),
            ("a:", "\"\" is not a port"),
            ("a:0", "\"0\""),
            ("a:65536", "\"65536\""),
            ("a:+1", "\"+1\""),
            ("a:x", "\"x\""),
            ("::1:2181", "write an IPv6"),
            ("[::1", "bracket"),
            ("[::1]2181", "bracket"),
            ("[[a]", "\"[[a]\""),
            ("b,[zk1]:2181", "\"[zk1]:2181\" has brackets around \"zk1\", which is no IPv6 address"),
            ("[127.0.0.1]:2181", "\"127.0.0.1\", which is no IPv6"),
            ("[]:2181", "\"\", which is no IPv6"),
            ("[fe80::1%]", "which is no IPv6"),
            ("a]", "\"a]\""),
            ("a b", "\"a b\""),
            ("a:1/x//y", "chroot"),
            ("a:1/x/", "chroot"),
        ] {
            let error = ConnectString::parse(text).unwrap_err();
            assert!(error.message().contains(piece), "{text:?}: {error}");
        }
    }
}
