//! Tests the parsing of connect strings, paths, node names and access control lists.

use zklock_core::acl::AccessList;
use zklock_core::recipe::name::{self, ChildKind, Mode};
use zklock_core::session::ConnectString;

/// Interprets the bytes as text, and parses the text as each kind of name.
pub fn run(data: &[u8]) {
    let text = &*String::from_utf8_lossy(data);
    connect_string(text);
    // A path is validated as part of a connect string.
    connect_string(&format!("host/{text}"));
    access_list(text);
    let (name, asked) = text.split_once('\n').unwrap_or((text, "_c_a-lock-"));
    for mode in [Mode::Mutex, Mode::Read, Mode::Write, Mode::Lease] {
        node_name(name, mode);
    }
    if let Some(number) = name::sequence_number(name, asked) {
        assert_eq!(name::sequence_number(&format!("{asked}{number:010}"), asked), Some(number));
    }
}

/// Checks that a valid connect string has the same meaning after it is written again, and that an invalid one gives a short error message.
fn connect_string(text: &str) {
    let understood = match ConnectString::parse(text) {
        Ok(understood) => understood,
        Err(error) => {
            let message = error.message();
            return assert!(!message.is_empty() && message.len() < 4096, "{message}");
        }
    };
    assert!(!understood.servers.is_empty());
    assert!(understood.servers.iter().all(|server| server.port > 0 && !server.host.is_empty()));
    let servers: Vec<String> = understood.servers.iter().map(ToString::to_string).collect();
    let written = servers.join(",") + &understood.chroot;
    assert_eq!(ConnectString::parse(&written).as_ref(), Ok(&understood), "{text:?} was parsed as {written:?}");
}

/// Checks that a valid list has the same meaning after it is written again, and that an invalid one gives a short error message.
fn access_list(text: &str) {
    let letters = |perms: i32| {
        let known = [(4, 'c'), (8, 'd'), (1, 'r'), (2, 'w'), (16, 'a')].into_iter();
        known.filter(move |(bit, _)| perms & bit != 0).map(|(_, letter)| letter).collect::<String>()
    };
    match AccessList::parse(text) {
        Ok(list) => {
            let entries = list.entries().iter().map(|acl| format!("{}:{}:{}", acl.scheme, acl.id, letters(acl.perms)));
            let written = entries.collect::<Vec<_>>().join(",");
            assert_eq!(AccessList::parse(&written).as_ref(), Ok(&list), "{text:?} was parsed as {written:?}");
        }
        Err(why) => assert!(!why.is_empty() && why.len() < 4096, "{why}"),
    }
}

fn node_name(name: &str, mode: Mode) {
    let number = name::sequence_text(name, mode);
    assert!(name.ends_with(number));
    match (name::classify(name, mode, false), name::classify(name, mode, true)) {
        (ChildKind::Contender(mark), with_kazoo) => {
            assert!(name.ends_with(mark.sequence) && mark.sequence == number);
            assert_eq!(
                with_kazoo,
                ChildKind::Contender(mark),
                "the setting for kazoo changes the class of a zklock node"
            );
        }
        (ChildKind::Foreign(_), ChildKind::Unrelated) | (ChildKind::Unrelated, ChildKind::Contender(_)) => {
            panic!("{name:?} has two classes")
        }
        (_, ChildKind::Contender(mark)) => assert!(name.ends_with(mark.sequence)),
        _ => {}
    }
}
