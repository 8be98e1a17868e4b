//! Who may do what: identities of connections, and the access lists of nodes.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};
use zklock::proto::{Acl, Code, Identity};

const WORLD: &str = "world";
const ANYONE: &str = "anyone";
const AUTH: &str = "auth";
const DIGEST: &str = "digest";
const IP: &str = "ip";

/// Who a connection from `peer` is, before it has said anything.
pub(crate) fn identity_of(peer: IpAddr) -> Identity {
    Identity { scheme: IP.to_owned(), id: peer.to_canonical().to_string() }
}

/// Who shows these credentials; AUTH_FAILED if the scheme is none of ours or they are malformed.
pub(crate) fn authenticate(scheme: &str, credentials: &[u8], peer: IpAddr) -> Result<Identity, Code> {
    match scheme {
        IP => Ok(identity_of(peer)),
        DIGEST => {
            let text = str::from_utf8(credentials).map_err(|_| Code::AUTH_FAILED)?;
            let (user, _) = text.split_once(':').ok_or(Code::AUTH_FAILED)?;
            let hash = STANDARD.encode(Sha1::digest(credentials));
            Ok(Identity { scheme: DIGEST.to_owned(), id: format!("{user}:{hash}") })
        }
        _ => Err(Code::AUTH_FAILED),
    }
}

/// What `whoami` tells of an identity: the part that is no secret.
pub(crate) fn public(identity: &Identity) -> Identity {
    let id = match identity.scheme.as_str() {
        DIGEST => identity.id.split(':').next().unwrap_or_default().to_owned(),
        _ => identity.id.clone(),
    };
    Identity { scheme: identity.scheme.clone(), id }
}

/// The list as it is kept: `auth` stands for whoever asks. INVALID_ACL if it allows nobody anything, or makes no sense.
pub(crate) fn resolve(asked: &[Acl], identities: &[Identity]) -> Result<Vec<Acl>, Code> {
    let mut resolved = Vec::new();
    let mut add = |acl: Acl| {
        if !resolved.contains(&acl) {
            resolved.push(acl);
        }
    };
    for acl in asked {
        match acl.scheme.as_str() {
            WORLD if acl.id == ANYONE => add(acl.clone()),
            AUTH => {
                let authenticated: Vec<_> = identities.iter().filter(|identity| identity.scheme != IP).collect();
                if authenticated.is_empty() {
                    return Err(Code::INVALID_ACL);
                }
                for Identity { scheme, id } in authenticated {
                    add(Acl { perms: acl.perms, scheme: scheme.clone(), id: id.clone() });
                }
            }
            DIGEST if acl.id.split(':').count() == 2 => add(acl.clone()),
            IP if Network::parse(&acl.id).is_some() => add(acl.clone()),
            _ => return Err(Code::INVALID_ACL),
        }
    }
    if resolved.is_empty() { Err(Code::INVALID_ACL) } else { Ok(resolved) }
}

/// Whether one of these identities has the permission; NO_AUTH if not.
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
        _ => acl.id == identity.id,
    }
}

/// An address, or the addresses that begin with the same bits: `10.0.0.0/8`.
struct Network {
    address: IpAddr,
    bits: u32,
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Some(width), |bits| bits.parse().ok())?;
        (bits <= width).then_some(Self { address, bits })
    }

    fn contains(&self, other: IpAddr) -> bool {
        match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (own.to_bits() ^ other.to_bits()).checked_shr(32 - self.bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()).checked_shr(128 - self.bits).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(scheme: &str, id: &str) -> Acl {
        Acl { perms: 1, scheme: scheme.to_owned(), id: id.to_owned() }
    }

    #[test]
    fn a_digest_is_zookeepers() {
        // From ZooKeeper's documentation of the digest scheme, made by its DigestAuthenticationProvider.
        let super_user = authenticate("digest", b"super:test", "127.0.0.1".parse().unwrap()).unwrap();
        assert_eq!(super_user.id, "super:D/InIHSb7yEEbrWz8b9l71RjZJU=");
    }

    #[test]
    fn networks() {
        let peer = identity_of("10.1.2.3".parse().unwrap());
        for (id, allowed) in
            [("10.1.2.3", true), ("10.0.0.0/8", true), ("10.1.2.4", false), ("11.0.0.0/8", false), ("0.0.0.0/0", true)]
        {
            assert_eq!(check(&[acl("ip", id)], 1, std::slice::from_ref(&peer)).is_ok(), allowed, "{id}");
        }
        assert_eq!(resolve(&[acl("ip", "10.0.0.0/33")], &[]), Err(Code::INVALID_ACL));
    }

    #[test]
    fn auth_stands_for_who_asks() {
        let peer = "127.0.0.1".parse().unwrap();
        let identities = [identity_of(peer), authenticate("digest", b"a:b", peer).unwrap()];
        let resolved = resolve(&[acl("auth", "")], &identities).unwrap();
        assert_eq!(resolved, [acl("digest", &identities[1].id)]);
        assert_eq!(resolve(&[acl("auth", "")], &identities[..1]), Err(Code::INVALID_ACL));
        assert_eq!(resolve(&[], &identities), Err(Code::INVALID_ACL));
    }
}
