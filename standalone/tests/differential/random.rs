//! Random scripts: a few clients send random requests for a few nodes.

use std::hash::{BuildHasher as _, RandomState};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use zklock_proto::{Acl, AddWatchMode, CreateMode, Request, WatcherType};

use crate::player::{LAST_SEEN_ZXID, Script, Step};
use crate::{ServerPair, acl, at, script_with_clients};

const CLIENTS: usize = 3;
const SCRIPTS: u32 = 300;
const STEPS: usize = 40;

/// Plays random scripts on both servers. The environment variable `ZKLOCK_SEED` sets the seed; `any` selects a new
/// seed. By default, the seed is always the same. The panic message of a failure contains the seed and the shortest
/// script that fails.
pub(crate) fn assert_same_for_random_scripts(pair: &ServerPair) {
    let seed = match std::env::var("ZKLOCK_SEED").as_deref() {
        Err(_) => 1,
        Ok("any") => any_seed(),
        Ok(text) => text.parse().unwrap(),
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&u64::to_be_bytes(seed));
    let config = Config { cases: SCRIPTS, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let outcome = runner.run(&vec((0..CLIENTS, step()), 1..STEPS), |steps| {
        let script: Script = script_with_clients(CLIENTS).into_iter().chain(steps).collect();
        pair.difference(&script).map_or(Ok(()), |difference| Err(TestCaseError::fail(difference)))
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(difference, script)) => panic!("ZKLOCK_SEED={seed}\n{script:#?}\n{difference}"),
        Err(other) => panic!("ZKLOCK_SEED={seed}: {other}"),
    }
}

fn any_seed() -> u64 {
    RandomState::new().hash_one(())
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        30 => prop_oneof![change(), change(), read(), watches()].prop_map(Step::Request),
        3 => vec(part_of_multi(), 0..5).prop_map(|parts| Step::Request(Request::Multi(parts))),
        // The script must not send an auth request here, because servers answer auth requests out of order.
        5 => vec(prop_oneof![change(), read()].prop_filter("one in turn", |ask| !matches!(ask, Request::Auth { .. })), 2..6)
            .prop_map(Step::RequestAll),
        1 => Just(Step::Disconnect),
        2 => Just(Step::Resume(true)),
        1 => Just(Step::Resume(false)),
        1 => Just(Step::Request(Request::CloseSession)),
        1 => Just(Step::Open),
    ]
}

fn change() -> impl Strategy<Value = Request> {
    prop_oneof![
        4 => (path(), list(), mode()).prop_map(|(path, acl, mode)| Request::Create { path, data: Some(vec![1]), acl, mode }),
        2 => (path(), list(), mode()).prop_map(|(path, acl, mode)| Request::Create2 { path, data: None, acl, mode }),
        3 => (path(), version()).prop_map(|(path, version)| Request::Delete { path, version }),
        3 => (path(), data(), version()).prop_map(|(path, data, version)| Request::SetData { path, data, version }),
        1 => (path(), list(), version()).prop_map(|(path, acl, version)| Request::SetAcl { path, acl, version }),
    ]
}

fn part_of_multi() -> impl Strategy<Value = Request> {
    prop_oneof![
        4 => change().prop_filter("what a multi takes", |change| !matches!(change, Request::SetAcl { .. })),
        1 => (path(), version()).prop_map(|(path, version)| Request::Check { path, version }),
    ]
}

fn read() -> impl Strategy<Value = Request> {
    prop_oneof![
        (path(), any::<bool>()).prop_map(|(path, watch)| Request::Exists { path, watch }),
        (path(), any::<bool>()).prop_map(|(path, watch)| Request::GetData { path, watch }),
        (path(), any::<bool>()).prop_map(|(path, watch)| Request::GetChildren { path, watch }),
        (path(), any::<bool>()).prop_map(|(path, watch)| Request::GetChildren2 { path, watch }),
        path().prop_map(|path| Request::GetAcl { path }),
        path().prop_map(|path| Request::GetAllChildrenNumber { path }),
        path().prop_map(|prefix| Request::GetEphemerals { prefix }),
        select(&["a:1", "b:2"][..])
            .prop_map(|client| Request::Auth { scheme: "digest".to_owned(), auth: client.as_bytes().to_vec() }),
        (path(), path()).prop_map(|(one, two)| {
            Request::MultiRead(vec![
                Request::GetData { path: one, watch: true },
                Request::GetChildren { path: two, watch: true },
            ])
        }),
        Just(Request::WhoAmI),
        Just(Request::Ping),
    ]
}

/// The scripts contain no `checkWatches` request. Such a request also finds the watches of other connections, and a
/// server removes the watches of a closed connection at an arbitrary time.
fn watches() -> impl Strategy<Value = Request> {
    let kinds = || select(WatcherType::ALL);
    let since = select(&[0, LAST_SEEN_ZXID, i64::MAX][..]);
    prop_oneof![
        (path(), select(AddWatchMode::ALL)).prop_map(|(path, mode)| Request::AddWatch { path, mode }),
        (path(), kinds()).prop_map(|(path, kind)| Request::RemoveWatches { path, kind }),
        (since, vec(paths(), 5)).prop_map(|(relative_zxid, paths)| {
            let [data, exist, child, persistent, persistent_recursive] = paths.try_into().unwrap();
            Request::SetWatches2 { relative_zxid, data, exist, child, persistent, persistent_recursive }
        }),
    ]
}

fn paths() -> impl Strategy<Value = Vec<String>> {
    vec(path(), 0..3)
}

fn path() -> impl Strategy<Value = String> {
    select(&["/a", "/a/b", "/a/b/c", "/d", "/d/e", "/a0000000000", "/a0000000001", "/d0000000000", ""][..]).prop_map(at)
}

/// The result is never a container, because a separate type of request creates containers.
fn mode() -> impl Strategy<Value = CreateMode> {
    select(CreateMode::ALL).prop_filter("one of four", |mode| mode.to_wire() < 4)
}

fn version() -> impl Strategy<Value = i32> {
    prop_oneof![3 => Just(-1), 1 => 0..3]
}

fn data() -> impl Strategy<Value = Option<Vec<u8>>> {
    select(vec![Some(vec![2, 2]), Some(vec![]), None])
}

/// Usually returns the open access control list.
fn list() -> impl Strategy<Value = Vec<Acl>> {
    prop_oneof![
        8 => Just(Acl::open()),
        1 => (0..32).prop_map(|perms| vec![acl(perms, "world", "anyone"), acl(31, "ip", "127.0.0.1/8")]),
        1 => (0..32).prop_map(|perms| vec![acl(perms, "world", "anyone"), acl(31, "auth", "")]),
    ]
}
