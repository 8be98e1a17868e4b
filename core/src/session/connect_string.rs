//! Parses connect strings: `host:port,host:port/chroot`.

use core::net::Ipv6Addr;

use crate::error::{Error, Result};
use crate::path::{self, quote};

/// The default port of ZooKeeper.
pub(super) const DEFAULT_PORT: u16 = 2181;

/// One server in a connect string. The client resolves the host name again for every connection attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
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
    /// The list contains at least one server.
    pub servers: Vec<Server>,
    /// The chroot is empty, or a valid path that the client prepends to all paths.
    pub chroot: String,
}

impl ConnectString {
    /// Parses `host[:port][,host[:port]...][/chroot]`. An IPv6 address must be in brackets: `[::1]:2181`.
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
            let why = format!("{} has brackets around {}, which is not an IPv6 address", quote(item), quote(host));
            return Err(refuse(text, &why));
        }
        match rest {
            "" => (host, None),
            _ => match rest.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None => {
                    return Err(refuse(text, &format!("{} has text after its bracket; expected ':port'", quote(item))));
                }
            },
        }
    } else {
        if item.contains([' ', ';']) {
            return Err(refuse(
                text,
                &format!("{} contains a space or a semicolon; separate servers with commas", quote(item)),
            ));
        }
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
        Some(digits) => parse_port(digits)
            .ok_or_else(|| refuse(text, &format!("{} is not a port; expected 1 to 65535", quote(digits))))?,
    };
    Ok(Server { host: host.to_owned(), port })
}

/// Parses a port, which consists of digits only.
pub(super) fn parse_port(digits: &str) -> Option<u16> {
    digits.parse().ok().filter(|port| *port > 0 && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Parses an IPv6 address. The address may have a zone, as in `fe80::1%eth0`.
fn parse_v6(host: &str) -> Option<Ipv6Addr> {
    let (address, zone) = host.split_once('%').unwrap_or((host, "0"));
    address.parse().ok().filter(|_| !zone.is_empty())
}

/// Returns whether a character is invalid in host names and addresses. If the parser accepted such a character, the end
/// of the host name would be ambiguous.
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
    fn valid_connect_strings_parse() {
        assert_eq!(parsed("zk1"), "zk1:2181 ");
        assert_eq!(parsed("zk1:1, zk2:65535 /app/a"), "zk1:1 zk2:65535 /app/a");
        assert_eq!(parsed("[::1]:2182,[fe80::1%eth0],127.0.0.1/"), "[::1]:2182 [fe80::1%eth0]:2181 127.0.0.1:2181 ");
    }

    #[test]
    fn invalid_connect_string_error_names_the_invalid_part() {
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
            ("b,[zk1]:2181", "\"[zk1]:2181\" has brackets around \"zk1\", which is not an IPv6 address"),
            ("[127.0.0.1]:2181", "\"127.0.0.1\", which is not an IPv6"),
            ("[]:2181", "\"\", which is not an IPv6"),
            ("[fe80::1%]", "which is not an IPv6"),
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
