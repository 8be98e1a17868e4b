//! zklock and other libraries in a closed group: all participants have the same digest identity, and no other client
//! may join. The other side either creates its nodes for its own identity only, or with its default list.

use std::time::Duration;

use zklock::{Client, Status};
use zklock_test_support::{RawClient, flags, permissions, wait_until};

use crate::common::{OwnerCalls as _, TEST_TIMEOUT};
use crate::fixture::CheckContext;
use crate::queued_acquire::{LockKind, ME, lock};
use crate::queues::{LONG_WAIT, TRY_ONCE, assert_other_is_refused, refusal};
use crate::table::CheckResult;

const CREDENTIALS: &str = "team:secret";

/// Each side creates only nodes that the group may use, directories included.
pub(crate) fn creator_all(cx: &CheckContext<'_>) -> CheckResult {
    let ours = client(cx, &[("acl", "creator_all")]);
    cx.run(&format!("client $team digest={CREDENTIALS} acl=creator"));
    for kind in kinds(cx) {
        let path = format!("{}/{kind:?} of a group", cx.root()).replace(' ', "-");
        if cx.is_kazoo() {
            create_directory(cx, &path);
        }
        take_turns(cx, &ours, kind, &path);
    }
    CheckResult::Same
}

/// The directory is closed, and the other side creates open nodes in it.
pub(crate) fn closed_directory(cx: &CheckContext<'_>) -> CheckResult {
    let (ours, path) = (client(cx, &[]), format!("{}/closed", cx.root()));
    create_directory(cx, &path);
    cx.run(&format!("client $team digest={CREDENTIALS}"));
    take_turns(cx, &ours, LockKind::Mutex, &path);
    CheckResult::Same
}

fn kinds(cx: &CheckContext<'_>) -> Vec<LockKind> {
    match cx.is_kazoo() {
        true => vec![LockKind::Mutex, LockKind::Write],
        false => vec![LockKind::Mutex, LockKind::Write, LockKind::SemaphoreMutex],
    }
}

fn client(cx: &CheckContext<'_>, options: &[(&str, &str)]) -> Client {
    cx.client_with(|mut config| {
        options.iter().for_each(|(name, value)| config.set(name, value).unwrap());
        config.add_auth("digest", CREDENTIALS).wait_for_kazoo(cx.is_kazoo())
    })
}

fn member(cx: &CheckContext<'_>) -> RawClient {
    let mut raw = cx.raw();
    raw.authenticate("digest", CREDENTIALS).unwrap();
    raw
}

fn create_directory(cx: &CheckContext<'_>, path: &str) {
    member(cx).create_with_acl(path, b"", flags::PERSISTENT, &[(permissions::ALL, "auth", "")]).unwrap();
}

/// The other side holds and zklock waits. Then zklock holds and the other side waits. A client without credentials may
/// neither join nor list the directory.
fn take_turns(cx: &CheckContext<'_>, ours: &Client, kind: LockKind, path: &str) {
    let ours = lock(ours, kind, path);
    let theirs = cx.define(kind, "$m", &format!("{path} client=$team"));
    cx.run(&format!("acquire $t {theirs}"));
    assert_eq!(refusal(|| ours.acquire(TRY_ONCE)), Status::Timeout);
    let waiting = ours.start_acquire(ME, LONG_WAIT).unwrap();
    wait_until(TEST_TIMEOUT, || ours.queue().unwrap().len() > 1);
    assert!(waiting.wait_for(Duration::ZERO).is_none());
    cx.run(&format!("release $t {theirs}"));
    waiting.wait().unwrap().leave_to_owner();
    assert_other_is_refused(cx, &theirs);
    let wanted = cx.send(&format!("acquire $t {theirs}"));
    wait_until(TEST_TIMEOUT, || ours.queue().unwrap().len() > 1);
    let stranger = lock(&cx.client(), kind, path);
    assert_eq!(refusal(|| stranger.acquire(LONG_WAIT)), Status::Denied);
    assert_eq!(stranger.participants().unwrap_err().status(), Status::Denied);
    let acl = member(cx).acl(path).unwrap();
    assert!(acl.len() == 1 && acl[0].starts_with("31 digest:team:"), "{acl:?}");
    ours.release_as(ME).unwrap();
    assert_eq!(wanted.wait(TEST_TIMEOUT), "true");
    cx.run(&format!("release $t {theirs}"));
}
