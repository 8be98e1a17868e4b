//! Access control lists: the lists of the nodes that a client creates, and the permissions that requests require.
//!
//! A client creates nodes in three places: the nodes of contenders, the directories of locks, and the ancestors of
//! these directories. A program can set a list for each place. This module parses the lists. The servers enforce them.

use std::fmt;
use std::net::IpAddr;

use zklock_proto::Acl;

use crate::path::quote;

/// The largest length of the text of a list in bytes. Each request that creates a node contains the list.
pub const MAX_LENGTH: usize = 4096;

/// The letters of the permissions, in ZooKeeper's usual order, with their bits.
const LETTERS: [(char, i32); 5] = [('c', 4), ('d', 8), ('r', 1), ('w', 2), ('a', 16)];

/// One access control list.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessList(Vec<Acl>);

/// The access control lists of the nodes that a client creates. A list that is not set has the default of its place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CreateAcls {
    /// The list of the nodes that contenders create. By default, all clients have all permissions.
    pub nodes: Option<AccessList>,
    /// The list of the ancestors of lock directories, and of the chroot. The default is the list in `nodes`.
    pub parents: Option<AccessList>,
    /// The list of lock directories, shared counts and the records beside locks. The default is the list in `parents`.
    pub lock_directories: Option<AccessList>,
}

/// The place of a node that a client creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// A node of a contender.
    Contender,
    /// A directory of a lock: the path of the lock, the inner directories of a semaphore, a shared count, or a record
    /// beside a lock.
    LockDirectory,
    /// An ancestor of a lock directory, or the chroot.
    Parent,
}

/// A permission on a node, which a server checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Permission {
    /// Creates children of the node.
    Create,
    /// Deletes children of the node.
    Delete,
    /// Reads the node and lists its children.
    Read,
    /// Changes the data of the node.
    Write,
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "c (create)",
            Self::Delete => "d (delete)",
            Self::Read => "r (read)",
            Self::Write => "w (write)",
        })
    }
}

impl AccessList {
    /// Returns the list that gives all permissions to all clients.
    pub fn open() -> Self {
        Self(Acl::open())
    }

    /// Returns the list that gives all permissions to the identities of the client that creates the node.
    pub fn creator_all() -> Self {
        let perms = LETTERS.iter().map(|(_, bit)| bit).sum();
        Self(vec![Acl { perms, scheme: "auth".to_owned(), id: String::new() }])
    }

    /// Parses `open`, `creator_all`, or entries of the form `scheme:id:permissions` with commas between them. Blanks
    /// may follow a comma.
    ///
    /// An id may contain colons and commas. An entry therefore ends only at a colon with permissions behind it, at the
    /// end of the text or before a comma and the scheme of the next entry.
    ///
    /// The error is a description of the first wrong entry. It does not contain the hash of a digest, because a program
    /// may have passed a password instead of the hash.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "open" => return Ok(Self::open()),
            "creator_all" => return Ok(Self::creator_all()),
            "" => return Err("the list is empty".to_owned()),
            _ if text.len() > MAX_LENGTH => {
                return Err(format!("the list is {} bytes long; at most {MAX_LENGTH} are allowed", text.len()));
            }
            _ => {}
        }
        let mut entries = Vec::new();
        let mut rest = Some(text);
        while let Some(text) = rest {
            let (entry, next) = split_entry(text);
            let acl = parse_entry(entry).map_err(|why| format!("entry {}: {why}", entries.len() + 1))?;
            entries.push(acl);
            rest = next;
        }
        Ok(Self(entries))
    }

    /// Returns the entries of the list.
    pub fn entries(&self) -> &[Acl] {
        &self.0
    }
}

/// Writes the list without the hashes of digests.
impl fmt::Display for AccessList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Acl { perms, scheme, id }) in self.0.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let id = match scheme.as_str() {
                "digest" => format!("{}:...", id.split(':').next().unwrap_or_default()),
                _ => id.clone(),
            };
            let letters: String =
                LETTERS.iter().filter(|(_, bit)| perms & bit != 0).map(|&(letter, _)| letter).collect();
            write!(f, "{comma}{scheme}:{id}:{letters}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for AccessList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AccessList({self})")
    }
}

impl CreateAcls {
    /// Returns the list for a new node in this place.
    pub(crate) fn entries(&self, place: Place) -> Vec<Acl> {
        self.list(place).map_or_else(Acl::open, |list| list.0.clone())
    }

    fn list(&self, place: Place) -> Option<&AccessList> {
        let parents = || self.parents.as_ref().or(self.nodes.as_ref());
        match place {
            Place::Contender => self.nodes.as_ref(),
            Place::LockDirectory => self.lock_directories.as_ref().or_else(parents),
            Place::Parent => parents(),
        }
    }

    /// Returns the number of bytes that a request needs for the list of one node, beyond the bytes of an open list.
    pub(crate) fn node_bytes(&self) -> usize {
        let size = |acl: &Acl| 12 + acl.scheme.len() + acl.id.len();
        self.nodes.as_ref().map_or(0, |list| list.0.iter().map(size).fold(0, usize::saturating_add))
    }

    /// Says why a server may have refused the list of a new node, and what the program can do.
    pub(crate) fn refusal_hint(&self, place: Place) -> String {
        let list = AccessList(self.entries(place));
        let option = match place {
            Place::Contender => "acl",
            Place::LockDirectory if self.lock_directories.is_some() => "acl.lock_directory",
            Place::LockDirectory | Place::Parent if self.parents.is_some() => "acl.parents",
            Place::LockDirectory | Place::Parent => "acl",
        };
        let mut hint = format!("it refuses the access control list {list} of the option {option}");
        if list.0.iter().any(|acl| acl.scheme == "auth") {
            hint.push_str(
                "; creator_all and auth require credentials: set the option auth.digest or sasl.mechanism, or use a client certificate that the servers accept",
            );
        }
        if list.0.iter().any(|acl| !matches!(acl.scheme.as_str(), "auth" | "world")) {
            hint.push_str("; the servers must support each scheme and the form of each id");
        }
        hint
    }
}

/// Splits the first entry from a text. Returns the entry and the text after its comma.
fn split_entry(text: &str) -> (&str, Option<&str>) {
    let ends = text.match_indices(',').filter_map(|(at, comma)| {
        let (before, after) = (text.get(..at)?, text.get(at + comma.len()..)?.trim_start_matches(' '));
        let (_, permissions) = before.rsplit_once(':')?;
        (is_permissions(permissions) && starts_with_scheme(after)).then_some((before, Some(after)))
    });
    ends.into_iter().next().unwrap_or((text, None))
}

fn is_permissions(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|letter| bit(letter).is_some())
}

fn bit(letter: char) -> Option<i32> {
    LETTERS.iter().find(|(known, _)| *known == letter).map(|&(_, bit)| bit)
}

/// Returns whether a text begins with the name of a scheme and a colon. The distinguished name of a certificate has no
/// such part, because each of its parts contains an equals sign.
fn starts_with_scheme(text: &str) -> bool {
    let is_scheme = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    text.split_once(':').is_some_and(|(name, _)| is_scheme(name))
}

fn parse_entry(entry: &str) -> Result<Acl, String> {
    let Some((scheme, rest)) = entry.split_once(':') else {
        return Err(format!("{} has no colon; expected scheme:id:permissions", quote(entry)));
    };
    let Some((id, permissions)) = rest.rsplit_once(':') else {
        return Err(format!("after the scheme {} is no second colon; expected scheme:id:permissions", quote(scheme)));
    };
    if id.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(format!("the id of the scheme {} contains a control character", quote(scheme)));
    }
    check_id(scheme, id)?;
    Ok(Acl { perms: parse_permissions(permissions)?, scheme: scheme.to_owned(), id: id.to_owned() })
}

fn parse_permissions(text: &str) -> Result<i32, String> {
    const EXPECTED: &str = "expected each of the letters c, d, r, w and a at most once";
    let mut perms = 0;
    for letter in text.chars() {
        match bit(letter) {
            Some(bit) if perms & bit == 0 => perms |= bit,
            // The text may be a part of a password, so the message contains only the letter.
            _ => return Err(format!("the permissions contain a wrong or repeated letter {letter:?}; {EXPECTED}")),
        }
    }
    if perms == 0 { Err(format!("the permissions are empty; {EXPECTED}")) } else { Ok(perms) }
}

fn check_id(scheme: &str, id: &str) -> Result<(), String> {
    let (is_valid, expected) = match scheme {
        "world" => (id == "anyone", "the id anyone"),
        "auth" => (
            id.is_empty(),
            "an empty id, as in auth::cdrwa; the options auth.digest and sasl.mechanism set the credentials",
        ),
        "digest" => {
            (is_digest(id), "user:hash, where hash is the SHA-1 of user:password in base64, which has 28 characters")
        }
        "ip" => (is_network(id), "an address such as 10.1.2.3, or a network such as 10.0.0.0/8"),
        "sasl" => (!id.is_empty(), "the name of a user"),
        "x509" => (!id.is_empty(), "the distinguished name of a certificate"),
        _ => {
            let scheme = quote(scheme);
            return Err(format!("the scheme {scheme} is unknown; expected world, auth, digest, ip, sasl or x509"));
        }
    };
    match (is_valid, scheme) {
        (true, _) => Ok(()),
        // The id may be a password by mistake, so the message does not contain it.
        (false, "auth" | "digest") => Err(format!("the id of the scheme {scheme} is wrong; expected {expected}")),
        (false, _) => Err(format!("the id {} of the scheme {scheme} is wrong; expected {expected}", quote(id))),
    }
}

/// Returns whether an id has the form `user:hash`, with the base64 text of 20 bytes.
fn is_digest(id: &str) -> bool {
    let Some((user, hash)) = id.split_once(':') else { return false };
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    !user.is_empty() && hash.strip_suffix('=').is_some_and(|text| text.len() == 27 && text.bytes().all(is_base64))
}

fn is_network(id: &str) -> bool {
    let (address, bits) = id.split_once('/').map_or((id, None), |(address, bits)| (address, Some(bits)));
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let most = if address.is_ipv4() { 32 } else { 128 };
    bits.is_none_or(|bits| {
        bits.bytes().all(|byte| byte.is_ascii_digit()) && bits.parse().is_ok_and(|bits: u8| bits <= most)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HASH: &str = "D/InIHSb7yEEbrWz8b9l71RjZJU=";

    fn acl(perms: i32, scheme: &str, id: &str) -> Acl {
        Acl { perms, scheme: scheme.to_owned(), id: id.to_owned() }
    }

    fn refusal(text: &str) -> String {
        AccessList::parse(text).unwrap_err()
    }

    #[test]
    fn lists_have_names_or_entries() {
        assert_eq!(AccessList::parse("open").unwrap().entries(), [acl(31, "world", "anyone")]);
        assert_eq!(AccessList::parse("creator_all").unwrap().entries(), [acl(31, "auth", "")]);
        assert_eq!(AccessList::parse("auth::cdrwa"), Ok(AccessList::creator_all()));
        assert_eq!(AccessList::parse("world:anyone:awrdc"), Ok(AccessList::open()));
        let list =
            AccessList::parse(&format!("world:anyone:r, digest:super:{HASH}:cd,ip:10.0.0.0/8:rw,auth::a")).unwrap();
        let expected = [
            acl(1, "world", "anyone"),
            acl(12, "digest", &format!("super:{HASH}")),
            acl(3, "ip", "10.0.0.0/8"),
            acl(16, "auth", ""),
        ];
        assert_eq!(list.entries(), expected);
    }

    #[test]
    fn ids_may_contain_colons_commas_and_equals_signs() {
        let name = "CN=locks:r,OU=a b,O=Example\\, Inc:cdrwa,C=DE";
        let list = AccessList::parse(&format!("x509:{name}:cdr,sasl:zk/host.example@REALM:r,ip:fe80::1/64:w")).unwrap();
        let expected = [acl(13, "x509", name), acl(1, "sasl", "zk/host.example@REALM"), acl(2, "ip", "fe80::1/64")];
        assert_eq!(list.entries(), expected);
        // The last colon ends the id.
        assert_eq!(AccessList::parse("sasl:a:r:w").unwrap().entries(), [acl(2, "sasl", "a:r")]);
    }

    #[test]
    fn errors_say_what_is_wrong() {
        for (text, why) in [
            ("", "the list is empty"),
            ("OPEN", "entry 1: \"OPEN\" has no colon; expected scheme:id:permissions"),
            ("world:anyone", "entry 1: after the scheme \"world\" is no second colon"),
            ("world:anyone:", "entry 1: the permissions are empty; expected each of the letters c, d, r, w and a"),
            ("world:anyone:rx", "entry 1: the permissions contain a wrong or repeated letter 'x'"),
            ("world:anyone:rr", "repeated letter 'r'"),
            ("world:all:r", "the id \"all\" of the scheme world is wrong; expected the id anyone"),
            ("auth:me:r", "the id of the scheme auth is wrong; expected an empty id, as in auth::cdrwa"),
            ("auth::r,digests:a:b:r", "entry 2: the scheme \"digests\" is unknown; expected world, auth, digest"),
            ("auth::r,", "entry 1: the permissions contain a wrong or repeated letter ','"),
            ("auth::r,,auth::r", "entry 1: the id of the scheme auth is wrong"),
            ("ip:10.0.0:r", "the id \"10.0.0\" of the scheme ip is wrong; expected an address"),
            ("ip:10.0.0.0/33:r", "wrong"),
            ("ip:::1/129:r", "wrong"),
            ("ip:10.0.0.0/+8:r", "wrong"),
            ("sasl::r", "expected the name of a user"),
            ("x509::r", "expected the distinguished name"),
            ("sasl:a\nb:r", "control character"),
            ("digest::r", "the id of the scheme digest is wrong; expected user:hash"),
        ] {
            assert!(refusal(text).contains(why), "{text:?}: {}", refusal(text));
        }
        assert!(!refusal("auth:bob:hunter2:cdrwa").contains("hunter2"));
        assert_eq!(refusal(&"x".repeat(MAX_LENGTH + 1)), "the list is 4097 bytes long; at most 4096 are allowed");
    }

    #[test]
    fn neither_errors_nor_debug_output_contain_the_secret_of_a_digest() {
        for text in
            ["digest:user:secret:r", "digest:user:secret", "digest:user:secret:rwx", "auth::r,digest:u:secret:r"]
        {
            assert!(!refusal(text).contains("secret"), "{}", refusal(text));
        }
        let list = AccessList::parse(&format!("digest:super:{HASH}:r,auth::cdrwa")).unwrap();
        assert_eq!(format!("{list} {list:?}").matches(HASH).count(), 0);
        assert_eq!(list.to_string(), "digest:super:...:r,auth::cdrwa");
    }

    #[test]
    fn places_without_a_list_take_the_list_of_the_place_below() {
        let list = |text| Some(AccessList::parse(text).unwrap());
        let places = |acls: &CreateAcls| {
            [Place::Contender, Place::LockDirectory, Place::Parent]
                .map(|place| AccessList(acls.entries(place)).to_string())
        };
        let mut acls = CreateAcls::default();
        assert_eq!(places(&acls), ["world:anyone:cdrwa"; 3]);
        acls.nodes = list("auth::r");
        assert_eq!(places(&acls), ["auth::r"; 3]);
        acls.parents = list("auth::c");
        assert_eq!(places(&acls), ["auth::r", "auth::c", "auth::c"]);
        assert!(
            acls.refusal_hint(Place::LockDirectory).contains("of the option acl.parents; creator_all and auth require")
        );
        acls.lock_directories = list("auth::d");
        assert_eq!(places(&acls), ["auth::r", "auth::d", "auth::c"]);
        assert!(acls.refusal_hint(Place::LockDirectory).contains("auth::d of the option acl.lock_directory;"));
        acls = CreateAcls { lock_directories: list("sasl:a:d"), ..CreateAcls::default() };
        assert_eq!(places(&acls), ["world:anyone:cdrwa", "sasl:a:d", "world:anyone:cdrwa"]);
        assert!(
            acls.refusal_hint(Place::LockDirectory)
                .ends_with("the servers must support each scheme and the form of each id")
        );
    }

    proptest! {
        #[test]
        fn lists_are_parsed_as_they_were_written(
            entries in prop::collection::vec(("(sasl|x509)", "[A-Za-z0-9=./@\\\\ ]{1,12}(, ?[A-Z]{1,2}=[a-z:]{0,6}){0,3}", "[cdrwa]"), 1..6)
        ) {
            let text = entries.iter().map(|(scheme, id, perms)| format!("{scheme}:{id}:{perms}")).collect::<Vec<_>>().join(",");
            let list = AccessList::parse(&text).unwrap();
            let found: Vec<(String, String)> = list.entries().iter().map(|acl| (acl.scheme.clone(), acl.id.clone())).collect();
            let written: Vec<(String, String)> = entries.into_iter().map(|(scheme, id, _)| (scheme, id)).collect();
            prop_assert_eq!(found, written);
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC{0,40}|[cdrwa:,a-z0-9 ]{0,40}") {
            let _ = AccessList::parse(&text);
        }
    }
}
