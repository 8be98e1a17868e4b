//! What people type and what stands in a directory: connect strings, paths, the names of nodes.

use zklock::recipe::name::{self, Kind, Mode};
use zklock::session::ConnectString;

/// Reads the bytes as a text, and that as everything that a text can be.
pub fn run(data: &[u8]) {
    let text = &*String::from_utf8_lossy(data);
    connect_string(text);
    // A path is checked where it is a chroot.
    connect_string(&format!("host/{text}"));
    let (name, asked) = text.split_once('\n').unwrap_or((text, "_c_a-lock-"));
    for mode in [Mode::Mutex, Mode::Read, Mode::Write, Mode::Lease] {
        node_name(name, mode);
    }
    if let Some(number) = name::sequence(name, asked) {
        assert_eq!(name::sequence(&format!("{asked}{number:010}"), asked), Some(number));
    }
}

/// What is understood means the same when it is written as it was understood; what is not has a short and clear reason.
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
    assert_eq!(ConnectString::parse(&written).as_ref(), Ok(&understood), "{text:?} was understood as {written:?}");
}

fn node_name(name: &str, mode: Mode) {
    let number = name::number(name, mode);
    assert!(name.ends_with(number));
    match (name::classify(name, mode, false), name::classify(name, mode, true)) {
        (Kind::Contender(mark), with_kazoo) => {
            assert!(name.ends_with(mark.key) && mark.key == number);
            assert_eq!(with_kazoo, Kind::Contender(mark), "kazoo's locks change what ours are");
        }
        (Kind::Foreign(_), Kind::Plain) | (Kind::Plain, Kind::Contender(_)) => panic!("{name:?} is two things"),
        (_, Kind::Contender(mark)) => assert!(name.ends_with(mark.key)),
        _ => {}
    }
}
