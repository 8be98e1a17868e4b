//! Differential tests. Each test plays the same script of requests on a real ZooKeeper server and on the standalone
//! server. Both servers must send the same replies and the same notifications. Some scripts are written by hand, others
//! are random.
//!
//! The following differences are known and accepted. The scripts avoid them.
//!
//! | real server | standalone server | reason |
//! |---|---|---|
//! | distinguishes a null string from an empty string | treats both as the same | the protocol records of this project have no null string |
//! | accepts strings that are not UTF-8, and sends a character beyond the basic plane as two surrogates | rejects such strings, and sends UTF-8 | paths and names are text |
//! | reads only the type of a create request to recognize a container, and only the flags otherwise | rejects types and flags that disagree | no client sends such requests |
//! | does not answer a successful `check` outside of a multi | answers it | this is a bug of ZooKeeper |
//! | gives a zxid to some requests that it cannot decode | never does | the zxid has no meaning |
//! | supports the requests of servers and operators: createSession, deleteContainer, reconfig | does not support them | it is not part of an ensemble |
//! | counts the nodes below a node that has a quota | treats quota nodes as ordinary nodes | ZooKeeper's quotas only cause warnings |
//! | counts the root among the nodes below the empty path | does not count it | this is a bug of ZooKeeper |
//! | rejects nodes with a time to live by default | always accepts them | a client that requests a time to live needs it |
//! | omits the read-only flag from its connect response if the connect request has none | always sends it | only clients before 3.4 omit the flag |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "the configured exception for tests leaves out their helpers"
)]

mod player;
mod random;

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use player::{HOME, LAST_SEEN_ZXID, Script, Step, play};
use zklock_proto::{Acl, AddWatchMode, CreateMode, Request, WatcherType};
use zklock_standalone::{Server, Settings};
use zklock_test_support::ZooKeeper;

/// A real server and a standalone server, shared by all tests. Each script uses its own subtree.
struct ServerPair {
    real: ZooKeeper,
    ours: Server,
    /// Allows only one script at a time, because the requests of other scripts would change the zxids.
    script_lock: Mutex<()>,
}

impl ServerPair {
    fn shared() -> &'static Self {
        static SHARED: OnceLock<ServerPair> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(Duration::from_secs(3600)))
    }

    /// Starts both servers with this interval of the container check.
    fn start(sweep: Duration) -> Self {
        let real = ZooKeeper::options()
            .container_sweep_ms(sweep.as_millis() as u32)
            // Without this argument, the server rejects nodes with a time to live.
            .jvm_argument("-Dzookeeper.extendedTypesEnabled=true")
            .start();
        let settings = Settings {
            tick: Duration::from_millis(500),
            min_session_timeout: Some(Duration::from_millis(100)),
            max_session_timeout: Some(Duration::from_secs(600)),
            sweep,
            ..Settings::default()
        };
        Self { real, ours: Server::bind(("127.0.0.1", 0), settings).unwrap(), script_lock: Mutex::default() }
    }

    /// Plays a script on both servers. Returns the first difference, or `None` if there is none.
    fn difference(&self, script: &Script) -> Option<String> {
        let _turn = self.script_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let transcripts = play(script, &[&self.real.address(), &self.ours.address().to_string()]);
        let [real, ours] = transcripts.try_into().unwrap();
        let at = (0..real.len().max(ours.len())).find(|&at| real.get(at) != ours.get(at))?;
        let before = real[at.saturating_sub(6)..at].join("\n  ");
        let (real, ours) = (real.get(at), ours.get(at));
        Some(format!("after\n  {before}\nthe real server:\n  {real:?}\nthis one:\n  {ours:?}"))
    }

    #[track_caller]
    fn assert_same(&self, script: &Script) {
        if let Some(difference) = self.difference(script) {
            panic!("{difference}");
        }
    }
}

/// A path below the home node of the scripts.
fn at(path: &str) -> String {
    format!("{HOME}{path}")
}

fn ask(request: Request) -> (usize, Step) {
    (0, Step::Request(request))
}

/// The same step by another client.
fn by(client: usize, (_, step): (usize, Step)) -> (usize, Step) {
    (client, step)
}

fn script_with_clients(clients: usize) -> Script {
    let mut script: Script = (0..clients).map(|client| (client, Step::Open)).collect();
    script.push(create(&at(""), CreateMode::Persistent));
    script
}

fn create(path: &str, mode: CreateMode) -> (usize, Step) {
    create_with(path, mode, Acl::open())
}

fn create_with(path: &str, mode: CreateMode, acl: Vec<Acl>) -> (usize, Step) {
    ask(Request::Create { path: path.to_owned(), data: Some(b"data".to_vec()), acl, mode })
}

fn create2(path: &str, mode: CreateMode) -> (usize, Step) {
    ask(Request::Create2 { path: path.to_owned(), data: Some(b"data".to_vec()), acl: Acl::open(), mode })
}

fn create_ttl(path: &str, mode: CreateMode, ttl_ms: i64) -> (usize, Step) {
    ask(Request::CreateTtl { path: path.to_owned(), data: None, acl: Acl::open(), mode, ttl_ms })
}

fn delete(path: &str, version: i32) -> (usize, Step) {
    ask(Request::Delete { path: path.to_owned(), version })
}

fn exists(path: &str, watch: bool) -> (usize, Step) {
    ask(Request::Exists { path: path.to_owned(), watch })
}

fn get(path: &str, watch: bool) -> (usize, Step) {
    ask(Request::GetData { path: path.to_owned(), watch })
}

fn children(path: &str, watch: bool) -> (usize, Step) {
    ask(Request::GetChildren { path: path.to_owned(), watch })
}

fn children2(path: &str, watch: bool) -> (usize, Step) {
    ask(Request::GetChildren2 { path: path.to_owned(), watch })
}

fn set(path: &str, version: i32) -> (usize, Step) {
    ask(Request::SetData { path: path.to_owned(), data: Some(b"other".to_vec()), version })
}

fn check(path: &str, version: i32) -> (usize, Step) {
    ask(Request::Check { path: path.to_owned(), version })
}

fn get_acl(path: &str) -> (usize, Step) {
    ask(Request::GetAcl { path: path.to_owned() })
}

fn set_acl(path: &str, acl: Vec<Acl>, version: i32) -> (usize, Step) {
    ask(Request::SetAcl { path: path.to_owned(), acl, version })
}

fn auth(scheme: &str, auth: &[u8]) -> (usize, Step) {
    ask(Request::Auth { scheme: scheme.to_owned(), auth: auth.to_vec() })
}

fn add_watch(path: &str, mode: AddWatchMode) -> (usize, Step) {
    ask(Request::AddWatch { path: path.to_owned(), mode })
}

fn check_watches(path: &str, kind: WatcherType) -> (usize, Step) {
    ask(Request::CheckWatches { path: path.to_owned(), kind })
}

fn remove_watches(path: &str, kind: WatcherType) -> (usize, Step) {
    ask(Request::RemoveWatches { path: path.to_owned(), kind })
}

fn count(path: &str) -> (usize, Step) {
    ask(Request::GetAllChildrenNumber { path: path.to_owned() })
}

fn ephemerals(prefix: &str) -> (usize, Step) {
    ask(Request::GetEphemerals { prefix: prefix.to_owned() })
}

fn sync(path: &str) -> (usize, Step) {
    ask(Request::Sync { path: path.to_owned() })
}

/// Combines several of these requests into one multi.
fn multi(steps: Vec<(usize, Step)>) -> (usize, Step) {
    ask(Request::Multi(requests(steps)))
}

fn multi_read(steps: Vec<(usize, Step)>) -> (usize, Step) {
    ask(Request::MultiRead(requests(steps)))
}

fn requests(steps: Vec<(usize, Step)>) -> Vec<Request> {
    let request = |(_, step)| match step {
        Step::Request(request) => request,
        other => panic!("{other:?} can't be part of a multi"),
    };
    steps.into_iter().map(request).collect()
}

fn acl(perms: i32, scheme: &str, id: &str) -> Acl {
    Acl { perms, scheme: scheme.to_owned(), id: id.to_owned() }
}

#[test]
fn nodes_of_all_modes() {
    let mut script = script_with_clients(1);
    for mode in CreateMode::ALL.iter().copied().filter(|mode| mode.to_wire() < 4) {
        script.extend([create(&at("/one"), mode), create2(&at("/two"), mode), create(&at("/seq-"), mode)]);
        script.extend([create(&at("/one"), mode), create(&at("/one/below"), mode), create(&at("/none/below"), mode)]);
        script.extend([children2(&at(""), false), get(&at("/one"), false), count(&at("")), ephemerals("/")]);
        script.extend([delete(&at("/one/below"), -1), delete(&at("/one"), 0), delete(&at("/two"), 1)]);
    }
    script
        .extend([create(&at("/container"), CreateMode::Container), create(&at("/container/a"), CreateMode::Ephemeral)]);
    script.extend([exists(&at("/container"), false), delete(&at("/container/a"), -1), delete(&at("/container"), -1)]);
    for (mode, ttl) in [
        (CreateMode::PersistentWithTtl, 1_000_000),
        (CreateMode::PersistentSequentialWithTtl, 1),
        (CreateMode::PersistentWithTtl, 0),
        (CreateMode::PersistentWithTtl, -1),
        (CreateMode::PersistentWithTtl, 0x00ff_ffff_ffff),
        (CreateMode::PersistentWithTtl, 0x0100_0000_0000),
    ] {
        script.extend([create_ttl(&at("/ttl"), mode, ttl), children(&at(""), false), exists(&at("/ttl"), false)]);
        script.extend([set(&at("/ttl"), 0), delete(&at("/ttl"), -1)]);
    }
    ServerPair::shared().assert_same(&script);
}

#[test]
fn bad_paths() {
    let mut script = script_with_clients(1);
    for path in [
        "",
        "/",
        "//",
        "a",
        "a/b",
        "/.",
        "/..",
        "/./a",
        "/a/../b",
        "/a/",
        "/a//b",
        "//a",
        "/a\0",
        "/a\u{1}",
        "/a\u{7f}",
        "/a\u{a0}",
        "/a\u{d7ff}",
        "/a\u{e000}",
        "/a\u{f900}",
        "/a\u{fff0}",
        "/...",
        "/a.b",
        "/.a",
        "/zookeeper/..",
        "/no/such",
    ] {
        script.extend([exists(path, true), get(path, true), children(path, true), children2(path, false)]);
        script.extend([delete(path, -1), set(path, 7), check(path, 7), get_acl(path), set_acl(path, Acl::open(), 7)]);
        script.extend([sync(path), multi(vec![check(path, 7)]), multi_read(vec![get(path, false)])]);
        let home = at(path);
        script.extend([create(&home, CreateMode::Persistent), create(&home, CreateMode::PersistentSequential)]);
        script.extend([get(&home, false), exists(&home, false), delete(&home, -1), set(&home, -1)]);
    }
    script.extend([
        create("a", CreateMode::Persistent),
        create("", CreateMode::Persistent),
        create("/", CreateMode::Ephemeral),
    ]);
    script.extend([create("//", CreateMode::Persistent), create("/a/", CreateMode::Persistent)]);
    script.extend([create(&at("/\u{1f512}"), CreateMode::Persistent), children2(&at(""), false), count("a")]);
    ServerPair::shared().assert_same(&script);
}

#[test]
fn versions() {
    let mut script = script_with_clients(1);
    script.push(create(&at("/a"), CreateMode::Persistent));
    for version in [1, 0, 0, 1, -1, 2, -2, 3, i32::MAX, i32::MIN] {
        script.extend([
            check(&at("/a"), version.wrapping_add(100)),
            set(&at("/a"), version),
            set_acl(&at("/a"), Acl::open(), version),
        ]);
    }
    script.extend([get(&at("/a"), false), get_acl(&at("/a")), delete(&at("/a"), 0), delete(&at("/a"), 4)]);
    script.extend([
        delete(&at(""), 1),
        create(&at("/b"), CreateMode::Persistent),
        delete(&at(""), -1),
        delete(&at(""), 1),
    ]);
    ServerPair::shared().assert_same(&script);
}

/// This test starts separate servers, because the replies about the root depend on all earlier requests.
#[test]
fn root_and_system_nodes_answer_like_zookeeper() {
    let pair = ServerPair::start(Duration::from_secs(3600));
    let mut script: Script = vec![(0, Step::Open)];
    for path in ["/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"] {
        script.extend([
            exists(path, true),
            get(path, true),
            children(path, true),
            children2(path, false),
            get_acl(path),
        ]);
        script.extend([count(path), sync(path), delete(path, -1), create(path, CreateMode::Persistent)]);
        script.extend([multi(vec![check(path, 0)]), multi(vec![check(path, -1)]), multi(vec![delete(path, -1)])]);
        script.extend([
            set(path, 5),
            set(path, -1),
            get(path, false),
            create(&format!("{path}/"), CreateMode::Persistent),
        ]);
        script
            .extend([create(&format!("{path}/below").replace("//", "/"), CreateMode::Persistent), exists(path, false)]);
        script.extend([set_acl(path, Acl::open(), 0), set_acl(path, Acl::open(), -1), get_acl(path)]);
    }
    script.extend([create("/seq-", CreateMode::PersistentSequential), create("/eph", CreateMode::Ephemeral)]);
    script.extend([children2("/", true), count("/"), delete("/below", -1), children2("/", false), ephemerals("/e")]);
    script.extend([get("", false), exists("", false), children2("", false), get_acl("")]);
    pair.assert_same(&script);
}

#[test]
fn watches_that_fire_once() {
    let mut script = script_with_clients(2);
    let (a, below) = (at("/a"), at("/a/below"));
    for change in [
        vec![create(&a, CreateMode::Persistent)],
        vec![set(&a, -1)],
        vec![set_acl(&a, Acl::open(), -1)],
        vec![create(&below, CreateMode::Ephemeral)],
        vec![set(&below, -1)],
        vec![delete(&below, -1)],
        vec![delete(&a, 77)],
        vec![multi(vec![set(&a, -1), create(&below, CreateMode::Persistent), set(&below, -1), delete(&below, -1)])],
        vec![multi(vec![set(&a, -1), delete(&below, -1)])],
        vec![delete(&a, -1)],
        vec![create(&a, CreateMode::Persistent), delete(&a, -1)],
    ] {
        for client in [0, 1] {
            script.extend([by(client, exists(&a, true)), by(client, get(&a, true)), by(client, children(&a, true))]);
            script.extend([
                by(client, exists(&below, true)),
                by(client, children2(&at(""), true)),
                by(client, children2(&below, true)),
            ]);
        }
        script.extend(change.clone());
        script.extend([by(1, ask(Request::Ping)), ask(Request::Ping)]);
        script.extend(change);
        script.extend([by(1, ask(Request::Ping)), ask(Request::Ping)]);
    }
    ServerPair::shared().assert_same(&script);
}

#[test]
fn persistent_watches_fire_like_zookeeper() {
    let mut script = script_with_clients(2);
    let (a, below) = (at("/a"), at("/a/below"));
    for mode in AddWatchMode::ALL {
        script.extend([by(1, add_watch(&a, *mode)), add_watch(&at(""), *mode), by(1, add_watch(&a, *mode))]);
        for _ in 0..2 {
            script.extend([create(&a, CreateMode::Persistent), set(&a, -1), create(&below, CreateMode::Persistent)]);
            script.extend([by(1, set(&below, -1)), create(&at("/a/below/it"), CreateMode::Ephemeral)]);
            script.extend([delete(&at("/a/below/it"), -1), by(1, delete(&below, -1)), delete(&a, -1)]);
            script.extend([by(1, get(&a, true)), by(1, exists(&a, true)), by(1, children(&at(""), true))]);
        }
        for kind in WatcherType::ALL {
            script.extend([by(1, check_watches(&a, *kind)), by(1, remove_watches(&a, *kind))]);
            script.extend([create(&a, CreateMode::Persistent), delete(&a, -1), by(1, ask(Request::Ping))]);
            script.extend([by(1, check_watches(&a, *kind)), by(1, remove_watches(&a, *kind))]);
        }
        script.push(remove_watches(&at(""), WatcherType::Any));
    }
    ServerPair::shared().assert_same(&script);
}

/// For each client, a server keeps one watch on the data of a node and one watch on its children. The last request
/// determines the kind of the watch.
#[test]
fn watches_of_several_kinds_on_one_node() {
    let (a, below) = (at("/a"), at("/a/below"));
    type Ask = fn(&str) -> (usize, Step);
    let set_watches: [Ask; 5] = [
        |path| add_watch(path, AddWatchMode::Persistent),
        |path| add_watch(path, AddWatchMode::PersistentRecursive),
        |path| exists(path, true),
        |path| children(path, true),
        |path| get(path, true),
    ];
    for first in set_watches {
        for second in set_watches {
            let mut script = script_with_clients(2);
            script.push(create(&a, CreateMode::Persistent));
            script.extend([by(1, first(&a)), by(1, second(&a))]);
            for _ in 0..2 {
                script.extend([
                    set(&a, -1),
                    create(&below, CreateMode::Persistent),
                    set(&below, -1),
                    delete(&below, -1),
                ]);
                script.push(by(1, check_watches(&a, WatcherType::Any)));
            }
            script.extend([
                delete(&a, -1),
                create(&a, CreateMode::Persistent),
                by(1, remove_watches(&a, WatcherType::Data)),
            ]);
            script.extend([set(&a, -1), create(&below, CreateMode::Persistent), delete(&below, -1), delete(&a, -1)]);
            ServerPair::shared().assert_same(&script);
        }
    }
}

#[test]
fn watches_set_again() {
    let (a, b, below) = (at("/a"), at("/b"), at("/a/below"));
    let nodes = || vec![a.clone(), b.clone(), below.clone()];
    let again = |relative_zxid| Request::SetWatches { relative_zxid, data: nodes(), exist: nodes(), child: nodes() };
    let again2 = |relative_zxid| Request::SetWatches2 {
        relative_zxid,
        data: nodes(),
        exist: nodes(),
        child: nodes(),
        persistent: vec![at("")],
        persistent_recursive: vec![b.clone()],
    };
    for relative_zxid in [0, LAST_SEEN_ZXID, i64::MAX] {
        for set_watches in [again(relative_zxid), again2(relative_zxid)] {
            for changes in [
                vec![],
                vec![set(&a, -1)],
                vec![create(&below, CreateMode::Persistent)],
                vec![create(&below, CreateMode::Persistent), delete(&below, -1)],
                vec![create(&b, CreateMode::Persistent), delete(&a, -1)],
            ] {
                let mut script = script_with_clients(2);
                script.extend([create(&a, CreateMode::Persistent), by(1, get(&a, true)), by(1, exists(&b, true))]);
                script.extend([by(1, children(&a, true)), (1, Step::Disconnect)]);
                script.extend(changes);
                script.extend([(1, Step::Resume(true)), by(1, ask(set_watches.clone()))]);
                script.extend([set(&a, -1), create(&b, CreateMode::Persistent), delete(&b, -1)]);
                script.extend([create(&below, CreateMode::Persistent), delete(&below, -1), delete(&a, -1)]);
                script.push(create(&a, CreateMode::Ephemeral));
                ServerPair::shared().assert_same(&script);
            }
        }
    }
}

#[test]
fn several_changes_at_once() {
    let good = || {
        vec![
            create(&at("/a"), CreateMode::Persistent),
            create2(&at("/a/b"), CreateMode::EphemeralSequential),
            create(&at("/a/b"), CreateMode::Container),
            create_ttl(&at("/a/t"), CreateMode::PersistentWithTtl, 1_000_000),
            check(&at("/a"), 0),
            set(&at("/a"), 0),
            check(&at("/a"), 1),
            delete(&at("/a/b"), 0),
            create(&at("/a/s-"), CreateMode::PersistentSequential),
        ]
    };
    let mut script = script_with_clients(2);
    script.extend([multi(vec![]), multi_read(vec![])]);
    for bad in [
        create(&at("/no/such"), CreateMode::Persistent),
        create(&at(""), CreateMode::Persistent),
        create("bad", CreateMode::Persistent),
        create_with(&at("/x"), CreateMode::Persistent, vec![]),
        create_ttl(&at("/x"), CreateMode::PersistentWithTtl, 0),
        delete(&at("/no"), -1),
        delete(&at(""), -1),
        delete("/", -1),
        set(&at("/a"), 17),
        check(&at("/no"), -1),
        check(&at(""), 4),
    ] {
        for position in 0..=good().len() {
            let mut steps = good();
            steps.insert(position, bad.clone());
            script.push(multi(steps));
        }
        script.extend([children2(&at(""), false), exists(&at("/a"), false)]);
    }
    script.extend([multi(good()), get(&at("/a"), false), children2(&at("/a"), false), multi(good())]);
    script.push(multi_read(vec![
        get(&at("/a"), true),
        get(&at("/no"), true),
        children(&at("/a"), true),
        children(&at("/no"), false),
        get("bad", false),
    ]));
    script.extend([set(&at("/a"), -1), create(&at("/a/new"), CreateMode::Persistent), ask(Request::Ping)]);
    ServerPair::shared().assert_same(&script);
}

#[test]
fn access_lists() {
    // ZooKeeper's digest of `alice:secret`, as in `acl.rs`.
    let hash = "alice:xbhLfZLFrK8ZcwMn7hh6l2tH7eQ=";
    let mut script = script_with_clients(3);
    script.extend([ask(Request::WhoAmI), auth("digest", b"alice:secret"), auth("digest", b"alice:secret")]);
    script.extend([auth("digest", b"bob:other"), auth("ip", b"whatever"), ask(Request::WhoAmI)]);
    // Neither server is set up for SASL.
    script.extend([ask(Request::Sasl { token: vec![] }), ask(Request::Sasl { token: b"token".to_vec() })]);
    script.extend([by(1, auth("digest", b"without a colon")), by(1, ask(Request::WhoAmI)), by(1, auth("digest", b""))]);
    script.push(by(1, ask(Request::WhoAmI)));
    let lists = [
        vec![],
        vec![acl(31, "world", "anyone")],
        vec![acl(31, "world", "someone")],
        vec![acl(0, "world", "anyone")],
        vec![acl(1, "world", "anyone"), acl(1, "world", "anyone"), acl(31, "auth", "")],
        vec![acl(31, "auth", "whoever"), acl(31, "digest", hash), acl(30, "auth", "")],
        vec![acl(31, "digest", "alice:nohash")],
        vec![acl(31, "digest", "alice")],
        vec![acl(31, "digest", "alice:")],
        vec![acl(31, "digest", ":hash")],
        vec![acl(31, "digest", "a:b:")],
        vec![acl(31, "digest", "a:b:c")],
        vec![acl(31, "ip", "127.0.0.1")],
        vec![acl(31, "ip", "127.0.0.0/8"), acl(-1, "ip", "10.0.0.0/0")],
        vec![acl(31, "ip", "127.0.0.1/33")],
        vec![acl(31, "ip", "127.0.0.1/-1")],
        vec![acl(31, "ip", "127.0.0.1/")],
        vec![acl(31, "ip", "127.0.0.01")],
        vec![acl(31, "ip", "127.0.0")],
        vec![acl(31, "ip", "127.0.0.256")],
        vec![acl(31, "ip", "::1")],
        vec![acl(31, "ip", "10.1.2.3/8")],
        vec![acl(31, "sasl", "alice")],
        vec![acl(31, "nosuch", "alice")],
        vec![acl(31, "", "")],
    ];
    for (number, list) in lists.into_iter().enumerate() {
        let path = at(&format!("/{number}"));
        script
            .extend([create_with(&path, CreateMode::Persistent, list.clone()), create(&path, CreateMode::Persistent)]);
        script.extend([set_acl(&path, list, -1), get_acl(&path), by(2, get_acl(&path)), by(2, get(&path, true))]);
        script.extend([by(2, exists(&path, false)), by(2, children(&path, true)), by(2, count(&path))]);
        let below = format!("{path}/below");
        script.extend([
            by(2, create(&below, CreateMode::Persistent)),
            by(2, delete(&below, -1)),
            by(2, set(&path, -1)),
        ]);
        script.extend([by(2, set_acl(&path, Acl::open(), -1)), by(2, multi(vec![check(&path, 0), set(&path, -1)]))]);
        script.extend([create(&below, CreateMode::Persistent), get_acl(&below), set(&path, -1), delete(&below, -1)]);
    }
    ServerPair::shared().assert_same(&script);
}

#[test]
fn one_permission_at_a_time() {
    let mut script = script_with_clients(1);
    for perms in 0..32 {
        let (path, below) = (at(&format!("/{perms}")), at(&format!("/{perms}/below")));
        script.extend([create(&path, CreateMode::Persistent), create(&below, CreateMode::Persistent)]);
        script.extend([set_acl(&path, vec![acl(perms, "world", "anyone")], 0), get(&path, true), exists(&path, true)]);
        script.extend([
            children(&path, true),
            children2(&path, true),
            count(&path),
            get_acl(&path),
            set(&path, 5),
            set(&path, 0),
        ]);
        script.extend([
            multi(vec![check(&path, 1)]),
            check(&path, 7),
            delete(&format!("{path}/none"), -1),
            delete(&below, 7),
        ]);
        script.extend([delete(&below, -1), create(&format!("{path}/seq-"), CreateMode::EphemeralSequential)]);
        script.extend([multi_read(vec![get(&path, false), children(&path, false)]), sync(&path)]);
        script.extend([set_acl(&path, vec![acl(31, "world", "anyone")], 0), set_acl(&path, Acl::open(), 1)]);
    }
    ServerPair::shared().assert_same(&script);
}

#[test]
fn bad_credentials() {
    for (scheme, credentials) in
        [("nosuch", &b"a:b"[..]), ("", b""), ("world", b"anyone"), ("sasl", b""), ("auth", b"")]
    {
        let mut script = script_with_clients(2);
        script.extend([create(&at("/e"), CreateMode::Ephemeral), by(1, exists(&at("/e"), true))]);
        script.extend([auth(scheme, credentials), get(&at(""), false), (0, Step::Resume(true)), ephemerals("/")]);
        ServerPair::shared().assert_same(&script);
    }
}

#[test]
fn sessions() {
    let (a, b) = (at("/a"), at("/b"));
    let mut script = script_with_clients(2);
    script.extend([create(&a, CreateMode::Ephemeral), by(1, create(&b, CreateMode::Ephemeral)), get(&b, true)]);
    script.extend([
        ask(Request::Ping),
        ephemerals(""),
        ephemerals("/"),
        ephemerals(&a),
        ephemerals(&b),
        ephemerals("x"),
    ]);
    // A second connection resumes the session. The server then removes the watches of the first connection.
    script.extend([(0, Step::Resume(true)), by(1, set(&b, -1)), ask(Request::Ping), get(&b, true)]);
    // A handshake with a wrong password closes the connection of the session, but does not end the session.
    script.extend([(0, Step::Resume(false)), by(1, get(&a, true)), (0, Step::Resume(true)), ephemerals("")]);
    script.extend([
        (0, Step::Disconnect),
        (0, Step::Resume(false)),
        (0, Step::Resume(true)),
        get(&a, true),
        children(&at(""), true),
    ]);
    // The server notifies all clients of the end of the session. The session cannot be resumed.
    script.extend([by(1, children(&at(""), true)), ask(Request::CloseSession), (0, Step::Resume(true))]);
    script.extend([
        by(1, ephemerals("")),
        (0, Step::Resume(false)),
        by(1, ask(Request::CloseSession)),
        (1, Step::Open),
    ]);
    script.extend([by(1, exists(&a, false)), by(1, exists(&b, false)), by(1, children2(&at(""), false))]);
    ServerPair::shared().assert_same(&script);
}

#[test]
fn handshakes() {
    let mut script = vec![(0, Step::Handshake(i64::MAX, 5000)), (0, Step::Handshake(-1, 5000))];
    for (client, timeout_ms) in
        [(1, 0), (2, -1), (3, 99), (4, 100), (5, 101), (6, 600_000), (7, i32::MAX), (8, i32::MIN)]
    {
        script.push((client, Step::Handshake(0, timeout_ms)));
    }
    ServerPair::shared().assert_same(&script);
}

#[test]
fn malformed_requests_answer_like_zookeeper() {
    let path = [&4_i32.to_be_bytes()[..], b"/nox"].concat();
    // Unknown requests, and requests that only servers send.
    for op in [0, 10, 23, 55, 99, 108, 1000, -1, -2, i32::MIN] {
        let mut script = script_with_clients(1);
        script.extend([(0, Step::Raw(op, path.clone())), exists(&at(""), false), (0, Step::Resume(true))]);
        ServerPair::shared().assert_same(&script);
    }
    // Request bodies that end too early, and bodies that are too long.
    let mut script = script_with_clients(1);
    for op in [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15, 17, 18, 19, 21, 22, 101, 103, 104, 105, 106] {
        script.extend([(0, Step::Raw(op, vec![])), (0, Step::Raw(op, path[..6].to_vec()))]);
        if op != 9 && op != 103 && op != 104 && op != 6 {
            script.push((0, Step::Raw(op, path.clone())));
        }
        script.push((0, Step::Raw(op, vec![0x80, 0, 0, 0])));
    }
    // Every client has already received this zxid.
    script.push(set(&at(""), -1));
    for op in [3, 4, 6, 8, 9, 12, 103, 104, 17, 18] {
        script.push((0, Step::Raw(op, [&path[..], &[0, 0, 0, 2, 9, 9, 9]].concat())));
    }
    script.extend([
        (0, Step::Raw(17, [&path[..], &[0, 0, 0, 9]].concat())),
        (0, Step::Raw(106, [&path[..], &[0, 0, 0, 9]].concat())),
    ]);
    script.extend([(0, Step::Raw(107, vec![1, 2, 3])), exists(&at(""), false)]);
    ServerPair::shared().assert_same(&script);
}

#[test]
fn malformed_frames_answer_like_zookeeper() {
    for (length, body) in
        [(0, vec![]), (-1, vec![]), (i32::MIN, vec![]), (0x10_0000, vec![]), (3, vec![0; 3]), (7, vec![0; 7])]
    {
        let mut script = script_with_clients(1);
        script.extend([(0, Step::Frame(length, body)), (0, Step::Resume(true)), exists(&at(""), false)]);
        ServerPair::shared().assert_same(&script);
    }
    // This auth packet ends too early.
    let mut script = script_with_clients(1);
    script.extend([
        (0, Step::Frame(8, [&(-4_i32).to_be_bytes()[..], &100_i32.to_be_bytes()].concat())),
        (0, Step::Resume(true)),
    ]);
    ServerPair::shared().assert_same(&script);
    // The longest data that fits into a frame.
    let mut script = script_with_clients(1);
    let create_long = |len: usize| {
        ask(Request::Create {
            path: at("/long"),
            data: Some(vec![7; len]),
            acl: Acl::open(),
            mode: CreateMode::Persistent,
        })
    };
    let fixed = 8 + 4 + at("/long").len() + 4 + 4 + 4 + 4 + 5 + 4 + 6 + 4;
    script.extend([create_long(0xf_ffff - fixed), exists(&at("/long"), false), create_long(0xf_ffff - fixed + 1)]);
    ServerPair::shared().assert_same(&script);
}

/// The server itself deletes empty containers, nodes whose time to live has passed, and the ephemeral nodes of an
/// expired session. The node and the session exist until the next steps have been answered, and end before the player
/// stops reading.
#[test]
fn time_passes() {
    let pair = ServerPair::start(Duration::from_millis(50));
    let (container, ttl, ephemeral) = (at("/container"), at("/ttl"), at("/ephemeral"));
    let mut script = script_with_clients(2);
    script.extend([create(&container, CreateMode::Container), create(&at("/container/a"), CreateMode::Persistent)]);
    script.extend([create(&at("/container/b"), CreateMode::Container), delete(&at("/container/a"), -1)]);
    // The server keeps a container that never had a child, and the containers above it.
    script.extend([by(1, exists(&container, true)), by(1, children(&at(""), true)), count(&at(""))]);
    script.extend([delete(&at("/container/b"), -1), (1, Step::AwaitEvents(2)), count(&at(""))]);
    script.extend([create_ttl(&ttl, CreateMode::PersistentWithTtl, 4000), by(1, get(&ttl, true))]);
    script.extend([by(1, children(&at(""), true)), (1, Step::AwaitEvents(2)), count(&at(""))]);
    script.extend([(2, Step::Handshake(0, 4000)), by(2, create(&ephemeral, CreateMode::Ephemeral))]);
    script.extend([by(1, exists(&ephemeral, true)), by(1, children(&at(""), true)), (2, Step::Disconnect)]);
    // After the events, ZooKeeper still closes each connection of the session, and then handles the next request.
    script.extend([(1, Step::AwaitEvents(2)), count(&at("")), (2, Step::Resume(true)), children2(&at(""), true)]);
    pair.assert_same(&script);
}

#[test]
fn random_scripts_answer_like_zookeeper() {
    random::assert_same_for_random_scripts(ServerPair::shared());
}
