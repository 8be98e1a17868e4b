//! Access control: the identities of connections and the access control lists of nodes. This file decides whether an
//! identity may access a node. It does not change nodes or connections.

use std::net::{IpAddr, Ipv4Addr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};
use zklock_proto::{Acl, Code, Identity};

const WORLD: &str = "world";
const ANYONE: &str = "anyone";
const AUTH: &str = "auth";
const DIGEST: &str = "digest";
const IP: &str = "ip";

/// The identity of a connection from `peer` before it authenticates.
pub(crate) fn identity_of(peer: IpAddr) -> Identity {
    Identity { scheme: IP.to_owned(), id: peer.to_canonical().to_string() }
}

/// Returns the identity that these credentials prove. Fails with AUTH_FAILED if the server does not support the scheme.
pub(crate) fn authenticate(scheme: &str, credentials: &[u8], peer: IpAddr) -> Result<Identity, Code> {
    match scheme {
        IP => Ok(identity_of(peer)),
        DIGEST => {
            let text = String::from_utf8_lossy(credentials);
            let user = text.split(':').next().unwrap_or_default();
            let hash = STANDARD.encode(Sha1::digest(text.as_bytes()));
            Ok(Identity { scheme: DIGEST.to_owned(), id: format!("{user}:{hash}") })
        }
        _ => Err(Code::AUTH_FAILED),
    }
}

/// The part of an identity that is not secret, for the reply to `whoami`.
pub(crate) fn without_password_hash(identity: &Identity) -> Identity {
    let id = match identity.scheme.as_str() {
        DIGEST => identity.id.split(':').next().unwrap_or_default().to_owned(),
        _ => identity.id.clone(),
    };
    Identity { scheme: identity.scheme.clone(), id }
}

/// Returns the access control list to store, in which the identities of the connection replace each `auth` entry. Fails
/// with INVALID_ACL if the list is empty or not valid.
pub(crate) fn resolve(requested: &[Acl], identities: &[Identity]) -> Result<Vec<Acl>, Code> {
    let mut resolved: Vec<Acl> = Vec::new();
    for (at, acl) in requested.iter().enumerate() {
        if requested.iter().take(at).any(|earlier| earlier == acl) {
            continue;
        }
        match acl.scheme.as_str() {
            WORLD if acl.id == ANYONE => resolved.push(acl.clone()),
            AUTH => {
                let mut authenticated = identities.iter().filter(|identity| identity.scheme != IP).peekable();
                authenticated.peek().ok_or(Code::INVALID_ACL)?;
                resolved.extend(authenticated.cloned().map(|Identity { scheme, id }| Acl {
                    perms: acl.perms,
                    scheme,
                    id,
                }));
            }
            DIGEST if is_digest(&acl.id) => resolved.push(acl.clone()),
            IP if Network::parse(&acl.id).is_some() => resolved.push(acl.clone()),
            _ => return Err(Code::INVALID_ACL),
        }
    }
    if resolved.is_empty() { Err(Code::INVALID_ACL) } else { Ok(resolved) }
}

/// Succeeds if one of these identities has the permission. Fails with NO_AUTH otherwise.
pub(crate) fn check(acl: &[Acl], permission: i32, identities: &[Identity]) -> Result<(), Code> {
    let allows = |acl: &Acl| {
        acl.perms & permission != 0 && (acl.scheme == WORLD || identities.iter().any(|identity| matches(acl, identity)))
    };
    if acl.is_empty() || acl.iter().any(allows) { Ok(()) } else { Err(Code::NO_AUTH) }
}

fn matches(acl: &Acl, identity: &Identity) -> bool {
    if acl.scheme != identity.scheme {
        return false;
    }
    match (acl.scheme.as_str(), identity.id.parse()) {
        (IP, Ok(address)) => Network::parse(&acl.id).is_some_and(|network| network.contains(address)),
        (IP, Err(_)) => false,
        _ => acl.id == identity.id,
    }
}

/// Whether the text has the form `name:hash`. Colons at the end are ignored.
fn is_digest(id: &str) -> bool {
    id.trim_end_matches(':').split(':').count() == 2
}

/// An IPv4 address, or a network such as `10.0.0.0/8`. IPv6 networks are not supported.
struct Network {
    address: Ipv4Addr,
    bits: u32,
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/').unwrap_or((text, "32"));
        let numbers: Option<Vec<u8>> = address.split('.').map(parse_octet).collect();
        let numbers: [u8; 4] = numbers?.try_into().ok()?;
        let bits = parse_octet(bits)?.into();
        (bits <= 32).then_some(Self { address: numbers.into(), bits })
    }

    fn contains(&self, other: Ipv4Addr) -> bool {
        (self.address.to_bits() ^ other.to_bits()).checked_shr(32 - self.bits).unwrap_or(0) == 0
    }
}

/// Parses a number of at most 255. Leading zeros and a sign are allowed.
fn parse_octet(text: &str) -> Option<u8> {
    text.parse::<i32>().ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(scheme: &str, id: &str) -> Acl {
        Acl { perms: 1, scheme: scheme.to_owned(), id: id.to_owned() }
    }

    #[test]
    fn a_digest_is_zookeepers() {
        // An example from ZooKeeper's documentation of the digest scheme, computed by its DigestAuthenticationProvider.
        let super_user = authenticate("digest", b"super:test", "127.0.0.1".parse().unwrap()).unwrap();
        assert_eq!(super_user.id, "super:D/InIHSb7yEEbrWz8b9l71RjZJU=");
    }

    #[test]
    fn ip_acl_matches_addresses_in_its_network() {
        let peer = identity_of("10.1.2.3".parse().unwrap());
        for (id, allowed) in
            [("10.1.2.3", true), ("10.0.0.0/8", true), ("10.1.2.4", false), ("11.0.0.0/8", false), ("0.0.0.0/0", true)]
        {
            assert_eq!(check(&[acl("ip", id)], 1, std::slice::from_ref(&peer)).is_ok(), allowed, "{id}");
        }
        assert_eq!(resolve(&[acl("ip", "10.0.0.0/33")], &[]), Err(Code::INVALID_ACL));
    }

    #[test]
    fn auth_acl_resolves_to_the_authenticated_identities() {
        let peer = "127.0.0.1".parse().unwrap();
        let identities = [identity_of(peer), authenticate("digest", b"a:b", peer).unwrap()];
        let resolved = resolve(&[acl("auth", "")], &identities).unwrap();
        assert_eq!(resolved, [acl("digest", &identities[1].id)]);
        assert_eq!(resolve(&[acl("auth", "")], &identities[..1]), Err(Code::INVALID_ACL));
        assert_eq!(resolve(&[], &identities), Err(Code::INVALID_ACL));
    }
}
