//! Loom models of handles. In each model, several threads use, free or make handles at the same time. Loom runs the model with every order
//! of these steps. In each order, a handle finds its own object or no object. Only one thread can free a handle, and a freed handle is
//! invalid.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread::{self, JoinHandle};

use super::*;

/// The object behind a handle.
struct Thing {
    name: u32,
    is_closed: AtomicBool,
}

enum Named {}

impl Handle for Named {
    type Object = Thing;
    const KIND: HandleKind = HandleKind::Lock;

    fn table() -> &'static Table<Thing> {
        loom::lazy_static! {
            static ref TABLE: Table<Thing> = Table::default();
        }
        &TABLE
    }
}

#[test]
fn get_during_free_and_reuse_gives_own_object_or_error() {
    loom::model(|| {
        let first = new(1);
        let user = on_a_thread(first, |first| get(first).map(|thing| thing.name));
        end(first).unwrap();
        let second = new(2);
        match user.join().unwrap() {
            Ok(name) => assert_eq!(name, 1),
            Err(error) => assert!(error.message().contains("was freed"), "{}", error.message()),
        }
        assert_eq!(get(second).unwrap().name, 2);
        assert!(get(first).is_err());
    });
}

#[test]
fn dead_handle_implies_closed_object() {
    loom::model(|| {
        let handle = new(1);
        let object = get(handle).unwrap();
        let freer = on_a_thread(handle, |handle| end(handle).is_ok());
        if get(handle).is_err() {
            assert!(object.is_closed.load(Ordering::SeqCst));
        }
        assert!(freer.join().unwrap());
    });
}

#[test]
fn concurrent_take_succeeds_once() {
    loom::model(|| {
        let handle = new(1);
        let other = on_a_thread(handle, |handle| take(handle).is_ok());
        let own = take(handle).is_ok();
        assert!(own != other.join().unwrap());
        assert!(get(handle).is_err());
    });
}

#[test]
fn concurrent_free_succeeds_once_and_frees_slot_once() {
    loom::model(|| {
        let handle = new(1);
        let other = on_a_thread(handle, |handle| end(handle).is_ok());
        let own = end(handle).is_ok();
        assert!(own != other.join().unwrap());
        let (second, third) = (new(2), new(3));
        assert_ne!(second, third);
        assert_eq!((get(second).unwrap().name, get(third).unwrap().name), (2, 3));
    });
}

#[test]
fn handles_made_at_the_same_time_are_different() {
    loom::model(|| {
        let freed = new(1);
        let maker = thread::spawn(|| new(2).addr());
        end(freed).unwrap();
        let own = new(3);
        let other = ptr::without_provenance_mut::<Named>(maker.join().unwrap());
        assert!(own != other && own != freed && other != freed);
        assert_eq!((get(other).unwrap().name, get(own).unwrap().name), (2, 3));
        assert!(get(freed).is_err());
    });
}

fn new(name: u32) -> *mut Named {
    insert(Thing { name, is_closed: AtomicBool::new(false) }).unwrap()
}

fn end(handle: *mut Named) -> Result<()> {
    free(handle, |thing| {
        thing.is_closed.store(true, Ordering::SeqCst);
        Ok(())
    })
}

/// Runs `work` on a new thread. A handle is a number, so any thread may use it.
fn on_a_thread<T: 'static>(handle: *mut Named, work: impl FnOnce(*mut Named) -> T + 'static) -> JoinHandle<T> {
    let address = handle.addr();
    thread::spawn(move || work(ptr::without_provenance_mut(address)))
}
