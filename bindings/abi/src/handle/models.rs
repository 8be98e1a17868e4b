//! Threads that use, free and make handles at the same time. Loom tries every order. In each a handle gives its own object or none, is
//! freed once, and is dead afterwards.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread::{self, JoinHandle};

use super::*;

/// What a handle stands for: its name, and whether it was closed.
struct Thing {
    name: u32,
    is_closed: AtomicBool,
}

enum Named {}

impl Handle for Named {
    type Object = Thing;
    const KIND: Kind = Kind::Lock;

    fn table() -> &'static Table<Thing> {
        loom::lazy_static! {
            static ref TABLE: Table<Thing> = Table::default();
        }
        &TABLE
    }
}

#[test]
fn a_handle_is_used_while_it_is_freed_and_its_slot_lives_again() {
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
fn who_finds_a_handle_dead_finds_its_object_closed() {
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
fn of_two_who_take_one_succeeds() {
    loom::model(|| {
        let handle = new(1);
        let other = on_a_thread(handle, |handle| take(handle).is_ok());
        let own = take(handle).is_ok();
        assert!(own != other.join().unwrap());
        assert!(get(handle).is_err());
    });
}

#[test]
fn of_two_who_free_one_succeeds_and_the_slot_is_free_once() {
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

/// A handle is a number, which any thread may have.
fn on_a_thread<T: 'static>(handle: *mut Named, work: impl FnOnce(*mut Named) -> T + 'static) -> JoinHandle<T> {
    let address = handle.addr();
    thread::spawn(move || work(ptr::without_provenance_mut(address)))
}
