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
        let begin = text.trim_start();
        if begin.starts_with(['"', '\'']) || (begin.starts_with(['[', '{']) && begin.contains(['"', '\''])) {
            return Err(refuse(text, "contains quotation marks; expected host:port,host:port/chroot without them"));
        }
        let (list, chroot) = match text.find('/') {
            Some(at) => text.split_at(at),
            None => (text, ""),
        };
        if chroot.starts_with("//") && list.ends_with(':') {
            let scheme = list.rsplit(',').next().unwrap_or(list).trim_start();
            let why = format!("contains {}; expected host:port without a scheme", quote(&format!("{scheme}//")));
            return Err(refuse(text, &why));
        }
        let chroot = if chroot == "/" { "" } else { chroot };
        check_chroot(text, list, chroot)?;
        let servers = list.split(',').map(|item| server(item.trim(), text)).collect::<Result<_>>()?;
        Ok(Self { servers, chroot: chroot.to_owned() })
    }
}

/// Checks a chroot. ZooKeeper allows the refused characters in a path. But in a chroot, such a character almost always
/// belongs to a further server: in `h1:2181/team,h2:2181/team`, it would make `/team,h2:2181/team` the chroot. A client
/// with such a chroot would not exclude the clients with the intended chroot.
fn check_chroot(text: &str, list: &str, chroot: &str) -> Result<()> {
    if chroot.is_empty() {
        return Ok(());
    }
    let named = quote(chroot);
    let refuse = |why: &str| Err(refuse(text, &format!("the chroot {named} {why}")));
    if let Some((first, _)) = chroot.split_once(is_list_separator) {
        let rest = chroot.split(is_list_separator).skip(1).map(str::trim).filter(|item| !item.is_empty());
        let mut servers = vec![list.trim()];
        let mut is_same = chroot.contains([',', ';', ':']);
        for item in rest {
            let (server, further) = item.split_at(item.find('/').unwrap_or(item.len()));
            is_same &= further.is_empty() || further == first;
            servers.push(server);
        }
        return match is_same && servers.len() > 1 {
            true => refuse(&format!(
                "is not at the end of the list; write it once, after the last server: {}",
                quote(&format!("{}{first}", servers.join(",")))
            )),
            false => refuse("contains a comma, a semicolon or a blank; expected host:port,host:port/chroot"),
        };
    }
    if let Some((before, port)) = chroot.rsplit_once(':')
        && parse_port(port).is_some()
    {
        let list = list.trim();
        return refuse(&format!(
            "ends with a port; write it after the host: {}",
            quote(&format!("{list}:{port}{before}"))
        ));
    }
    path::validate(chroot).map_err(|e| self::refuse(text, &format!("chroot: {e}")))
}

fn server(item: &str, text: &str) -> Result<Server> {
    if item.is_empty() {
        return Err(refuse(text, "\"\" is not a server; expected host:port, and no comma without a server"));
    }
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
                let why = format!("{} has two colons; write host:port, or an IPv6 address as [::1]:2181", quote(item));
                return Err(refuse(text, &why));
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

/// Returns whether a character separates the servers of a list, as a comma does, or is used for it by mistake.
fn is_list_separator(c: char) -> bool {
    c.is_whitespace() || matches!(c, ',' | ';')
}

/// Parses a port, which consists of digits only.
pub(super) fn parse_port(digits: &str) -> Option<u16> {
    digits.parse().ok().filter(|port| *port > 0 && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Parses an IPv6 address. The address may have a zone, as in `fe80::1%eth0`.
fn parse_v6(host: &str) -> Option<Ipv6Addr> {
    let (address, zone) = host.split_once('%').unwrap_or((host, "0"));
    address.parse().ok().filter(|_| !zone.is_empty() && !zone.contains('%'))
}

/// Returns whether a character is invalid in host names and addresses. A name has letters, digits, `-`, `_` and `.`. An
/// address with a zone has `:` and `%` too.
fn is_out_of_place(c: char) -> bool {
    c.is_whitespace() || c.is_control() || (c.is_ascii_punctuation() && !matches!(c, '-' | '_' | '.' | ':' | '%'))
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
        assert_eq!(parsed("zk_1.example,zk-2/a:b/c:d"), "zk_1.example:2181 zk-2:2181 /a:b/c:d");
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
            ("::1:2181", "write host:port, or an IPv6 address as [::1]:2181"),
            ("[::1", "bracket"),
            ("[::1]2181", "bracket"),
            ("[[a]", "\"[[a]\""),
            ("b,[zk1]:2181", "\"[zk1]:2181\" has brackets around \"zk1\", which is not an IPv6 address"),
            ("[127.0.0.1]:2181", "\"127.0.0.1\", which is not an IPv6"),
            ("[]:2181", "\"\", which is not an IPv6"),
            ("[fe80::1%]", "which is not an IPv6"),
            ("a]", "\"a]\""),
            ("a b", "\"a b\""),
            ("a,", "\"\" is not a server; expected host:port, and no comma without a server"),
            ("a,,b", "no comma without a server"),
            ("/x", "no comma without a server"),
            ("a:1:1", "\"a:1:1\" has two colons; write host:port"),
            ("a;b", "separate servers with commas"),
            ("'a'", "quotation marks"),
            ("\"a:1\"", "quotation marks"),
            ("[\"a:1\",\"b:1\"]", "quotation marks"),
            ("user@a:1", "\"user@a:1\" is not a server"),
            ("a=1", "\"a=1\" is not a server"),
            ("zk://a:1/x", "contains \"zk://\"; expected host:port without a scheme"),
            ("a:1,zk://b:1", "contains \"zk://\"; expected host:port without a scheme"),
            ("[fe80::1%a%b]", "which is not an IPv6"),
            ("a:1/x//y", "chroot"),
            ("a:1//x", "chroot"),
            ("a:1/x:1", "the chroot \"/x:1\" ends with a port; write it after the host: \"a:1:1/x\""),
            ("a:1/x/", "chroot"),
        ] {
            let error = ConnectString::parse(text).unwrap_err();
            assert!(error.message().contains(piece), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_chroot_that_is_not_at_the_end_of_the_list_is_refused_with_the_correct_string() {
        for (text, corrected) in [
            ("h1:2181/team,h2:2181/team", "h1:2181,h2:2181/team"),
            ("h1/team,h2", "h1,h2/team"),
            ("h1,h2/team, h3/team", "h1,h2,h3/team"),
            ("h1/a/b,h2/a/b,h3/a/b", "h1,h2,h3/a/b"),
            ("h1:1/team;h2:1/team", "h1:1,h2:1/team"),
            ("h1:1/team h2:1/team", "h1:1,h2:1/team"),
            ("[::1]:1/team,[::2]:1/team", "[::1]:1,[::2]:1/team"),
        ] {
            let error = ConnectString::parse(text).unwrap_err();
            let expected = format!("write it once, after the last server: {corrected:?}");
            assert!(error.message().contains(&expected), "{text:?}: {error}");
            ConnectString::parse(corrected).unwrap();
        }
        for text in ["h1:1/team,", "h1:1/team ", "h1:1/team\n", "h1:1/team,h2:1/other", "h1:1/a b/c", "h1/,h2/x"] {
            let error = ConnectString::parse(text).unwrap_err();
            assert!(error.message().contains("the chroot"), "{text:?}: {error}");
            assert!(error.message().contains("expected host:port,host:port/chroot"), "{text:?}: {error}");
        }
    }
}
