//! Handles: opaque pointers that the library never dereferences. The value of a handle identifies a slot in a table. A call
//! with an invalid handle therefore fails and does not crash. A handle is invalid if it was freed, is of another kind, belongs
//! to the parent of a forked process, or is not a handle at all.
//!
//! ```text
//! 63      60 59         52 51                 24 23              0
//!    kind       fork epoch       generation            index
//! ```
//!
//! The number of a kind is never 0, so no handle is NULL. On common 64-bit machines, no handle is the address of readable
//! memory.
//!
//! This module must not use the objects behind the handles. It only stores the objects, and decides when a handle is invalid.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::{Arc, PoisonError};
#[cfg(not(zklock_loom))]
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(zklock_loom)]
use loom::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use zklock_core::error::{Error, Result, Status};
use zklock_process::ForkEpoch;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("a handle takes 64 bits");

const INDEX_BITS: u32 = 24;
const GENERATION_BITS: u32 = 28;
const EPOCH_BITS: u32 = 8;
const LAST_INDEX: usize = (1 << INDEX_BITS) - 1;
const LAST_GENERATION: u32 = (1 << GENERATION_BITS) - 1;

/// A C type whose pointers are handles.
pub trait Handle: Sized + 'static {
    /// The type of the object behind a handle.
    type Object: Send + Sync + 'static;
    /// The tag of this kind of handle.
    const KIND: HandleKind;

    /// The table in which this process keeps the objects.
    fn table() -> &'static Table<Self::Object>;
}

/// The kinds of handles. The value of each kind is its tag in a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum HandleKind {
    /// `zkl_config`
    Config = 1,
    /// `zkl_client`
    Client = 2,
    /// `zkl_lock`
    Lock = 3,
    /// `zkl_standalone`
    Standalone = 4,
    /// `zkl_semaphore`
    Semaphore = 5,
    /// `zkl_hold`
    Hold = 6,
    /// `zkl_op`
    Op = 7,
    /// `zkl_listener`
    Listener = 8,
    /// `zkl_completion_queue`
    CompletionQueue = 9,
    /// `zkl_run`
    Run = 10,
}

/// Makes a handle for an object.
pub fn insert<H: Handle>(object: H::Object) -> Result<*mut H> {
    let Some((index, generation)) = H::table().insert(object) else {
        let message = format!(
            "the process already has {} handles of one kind, which is the maximum; it cannot make {}",
            LAST_INDEX + 1,
            H::KIND.name()
        );
        return Err(Error::new(Status::Exhausted, message));
    };
    Ok(ptr::without_provenance_mut(HandleKey { kind: H::KIND, epoch: this_epoch(), index, generation }.pack()))
}

/// Finds the object behind a live handle. The object stays alive for the caller, even if another thread frees the handle in the
/// meantime.
pub fn get<H: Handle>(handle: *const H) -> Result<Arc<H::Object>> {
    let HandleKey { index, generation, .. } = check::<H>(handle.addr())?;
    H::table().get(index, generation).map_err(|why| refuse::<H>(handle.addr(), why))
}

/// Closes an object, then invalidates its handle, even if `close` panics. If a thread finds the handle invalid, the object is therefore
/// already closed. The function ignores a NULL handle and a handle of the parent process.
pub fn free<H: Handle>(handle: *mut H, close: impl FnOnce(&H::Object) -> Result<()>) -> Result<()> {
    if handle.is_null() {
        return Ok(());
    }
    let HandleKey { index, generation, .. } = match check::<H>(handle.addr()) {
        Ok(key) => key,
        Err(error) if error.status() == Status::Forked => return Ok(()),
        Err(error) => return Err(error),
    };
    let missing = |why| refuse::<H>(handle.addr(), why);
    let object = H::table().get(index, generation).map_err(missing)?;
    let closed = catch_unwind(AssertUnwindSafe(|| close(&object)));
    H::table().remove(index, generation).map_err(missing)?;
    closed.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Invalidates a handle and returns its object. If several threads take the same handle, only one thread succeeds.
pub fn take<H: Handle>(handle: *mut H) -> Result<Arc<H::Object>> {
    let HandleKey { index, generation, .. } = check::<H>(handle.addr())?;
    H::table().remove(index, generation).map_err(|why| refuse::<H>(handle.addr(), why))
}

/// The objects of one kind. A new object gets the slot that has been free for the longest time.
pub struct Table<T>(RwLock<Slots<T>>);

struct Slots<T> {
    all: Vec<Slot<T>>,
    free: VecDeque<usize>,
}

struct Slot<T> {
    /// The generation of the object in the slot. If the slot is empty, this is the generation of the next object.
    generation: u32,
    object: Option<Arc<T>>,
}

/// The reason why a table has no object for a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LookupError {
    Freed,
    Unknown,
}

type LookupResult<T> = std::result::Result<Arc<T>, LookupError>;

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(RwLock::new(Slots { all: Vec::new(), free: VecDeque::new() }))
    }
}

impl<T> Table<T> {
    fn insert(&self, object: T) -> Option<(usize, u32)> {
        let object = Some(Arc::new(object));
        let mut slots = self.write();
        if let Some(index) = slots.free.pop_front() {
            let slot = slots.all.get_mut(index)?;
            slot.object = object;
            return Some((index, slot.generation));
        }
        let index = slots.all.len();
        if index > LAST_INDEX {
            return None;
        }
        slots.all.push(Slot { generation: 0, object });
        Some((index, 0))
    }

    fn get(&self, index: usize, generation: u32) -> LookupResult<T> {
        let slots = self.read();
        let slot = slots.all.get(index).ok_or(LookupError::Unknown)?;
        slot.object
            .as_ref()
            .filter(|_| slot.generation == generation)
            .map(Arc::clone)
            .ok_or_else(|| slot.lookup_error(generation))
    }

    fn remove(&self, index: usize, generation: u32) -> LookupResult<T> {
        let mut slots = self.write();
        let slot = slots.all.get_mut(index).ok_or(LookupError::Unknown)?;
        let missing = slot.lookup_error(generation);
        let object = slot.object.take_if(|_| slot.generation == generation).ok_or(missing)?;
        // After the last generation, the table does not use the slot again.
        if slot.generation < LAST_GENERATION {
            slot.generation += 1;
            slots.free.push_back(index);
        }
        Ok(object)
    }

    fn read(&self) -> RwLockReadGuard<'_, Slots<T>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Slots<T>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Slot<T> {
    /// Returns the reason why the slot has no object of this generation.
    fn lookup_error(&self, generation: u32) -> LookupError {
        let used_up = self.generation == LAST_GENERATION && self.object.is_none();
        if generation < self.generation || used_up { LookupError::Freed } else { LookupError::Unknown }
    }
}

/// The decoded value of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HandleKey {
    kind: HandleKind,
    epoch: u8,
    generation: u32,
    index: usize,
}

impl HandleKey {
    const fn pack(self) -> usize {
        let head = (self.kind as usize) << EPOCH_BITS | self.epoch as usize;
        (head << GENERATION_BITS | self.generation as usize) << INDEX_BITS | self.index
    }

    fn unpack(value: usize) -> Option<Self> {
        let head = value >> (INDEX_BITS + GENERATION_BITS);
        Some(Self {
            kind: HandleKind::from_tag(head >> EPOCH_BITS)?,
            epoch: low_byte(head),
            generation: u32::try_from(value >> INDEX_BITS & LAST_GENERATION as usize).ok()?,
            index: value & LAST_INDEX,
        })
    }
}

impl HandleKind {
    const ALL: [Self; 10] = [
        Self::Config,
        Self::Client,
        Self::Lock,
        Self::Standalone,
        Self::Semaphore,
        Self::Hold,
        Self::Op,
        Self::Listener,
        Self::CompletionQueue,
        Self::Run,
    ];

    fn from_tag(tag: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|&kind| kind as usize == tag)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Config => "a config",
            Self::Client => "a client",
            Self::Lock => "a lock",
            Self::Standalone => "a standalone server",
            Self::Semaphore => "a semaphore",
            Self::Hold => "a hold",
            Self::Op => "an operation",
            Self::Listener => "a listener",
            Self::CompletionQueue => "a completion queue",
            Self::Run => "a run",
        }
    }
}

/// Checks a handle without the table. This function must not lock the table: in a forked child, the lock can be held by a
/// thread that does not exist in the child.
fn check<H: Handle>(value: usize) -> Result<HandleKey> {
    let expected = H::KIND.name();
    if value == 0 {
        return Err(Error::new(Status::Handle, format!("handle is NULL; expected {expected}")));
    }
    let key = HandleKey::unpack(value).ok_or_else(|| refuse::<H>(value, LookupError::Unknown))?;
    // The handle of an ancestor process has a smaller epoch, if this process has fewer than 256 ancestors.
    let forks = ForkEpoch::current().fork_count();
    if key.epoch != this_epoch() {
        if forks < 1 << EPOCH_BITS && u64::from(key.epoch) > forks {
            return Err(refuse::<H>(value, LookupError::Unknown));
        }
        // This path must not allocate. If a thread of the parent held the lock of the allocator during a raw clone(), this lock
        // stays locked in the child.
        let message = match H::KIND {
            HandleKind::Standalone => {
                "the handle belongs to the parent of this forked process; make a standalone server in the child, and use that"
            }
            _ => "the handle belongs to the parent of this forked process; make a client in the child, and use that",
        };
        return Err(Error::new(Status::Forked, message));
    }
    if key.kind != H::KIND {
        let message = format!("handle {value:#x} is {}; expected {expected}", key.kind.name());
        return Err(Error::new(Status::Handle, message));
    }
    Ok(key)
}

fn refuse<H: Handle>(value: usize, why: LookupError) -> Error {
    let why = match why {
        LookupError::Freed => "was freed",
        LookupError::Unknown => "is not a handle of zklock",
    };
    Error::new(Status::Handle, format!("handle {value:#x} {why}; expected {}", H::KIND.name()))
}

fn this_epoch() -> u8 {
    ForkEpoch::current().fork_count().to_le_bytes()[0]
}

const fn low_byte(value: usize) -> u8 {
    value.to_le_bytes()[0]
}

#[cfg(all(test, zklock_loom))]
mod models;

#[cfg(all(test, not(zklock_loom)))]
mod tests {
    use zklock_process::PerProcess;

    use super::*;

    struct Thing;

    impl Handle for Thing {
        type Object = u32;
        const KIND: HandleKind = HandleKind::Lock;

        fn table() -> &'static Table<u32> {
            static TABLE: PerProcess<Table<u32>> = PerProcess::new(Table::default);
            TABLE.get()
        }
    }

    #[test]
    fn keys_survive_packing() {
        for kind in HandleKind::ALL {
            for (epoch, generation, index) in [(0, 0, 0), (255, LAST_GENERATION, LAST_INDEX), (1, 2, 3)] {
                let key = HandleKey { kind, epoch, generation, index };
                assert_ne!(key.pack(), 0);
                assert_eq!(HandleKey::unpack(key.pack()), Some(key));
            }
        }
    }

    #[test]
    fn handle_is_freed_even_if_closing_panics() {
        let thing = insert::<Thing>(1).unwrap();
        catch_unwind(|| free(thing, |_| panic!("on purpose"))).unwrap_err();
        assert_eq!(get(thing).unwrap_err().status(), Status::Handle);
    }

    #[test]
    fn freed_handle_is_refused_after_slot_reuse() {
        let first = insert::<Thing>(1).unwrap();
        assert_eq!(*get(first).unwrap(), 1);
        let kept = get(first).unwrap();
        free(first, |_| Ok(())).unwrap();
        let second = insert::<Thing>(2).unwrap();
        assert_eq!((*kept, *get(second).unwrap()), (1, 2));
        for error in [get(first).unwrap_err(), free(first, |_| Ok(())).unwrap_err(), take(first).unwrap_err()] {
            assert_eq!(error.status(), Status::Handle);
            assert_eq!(error.message(), format!("handle {:#x} was freed; expected a lock", first.addr()));
        }
        let error = free(second, |_| Err(Status::Connection.into())).unwrap_err();
        assert_eq!(error.status(), Status::Connection);
        assert_eq!(get(second).unwrap_err().status(), Status::Handle);
        free(ptr::null_mut::<Thing>(), |_| Err(Status::Internal.into())).unwrap();
    }

    #[test]
    fn take_succeeds_once() {
        let handle = insert::<Thing>(3).unwrap();
        assert_eq!(*take(handle).unwrap(), 3);
        assert_eq!(take(handle).unwrap_err().status(), Status::Handle);
        assert_eq!(take(ptr::null_mut::<Thing>()).unwrap_err().status(), Status::Handle);
    }

    #[test]
    fn slots_are_used_again_in_turn_and_retire() {
        let table = Table::default();
        let used: Vec<_> = (0..3).map(|n| table.insert(n).unwrap()).collect();
        for &(index, generation) in &used {
            table.remove(index, generation).unwrap();
        }
        assert_eq!(table.insert(7), Some((0, 1)));
        assert_eq!(table.insert(8), Some((1, 1)));
        assert_eq!(table.get(1, 0), Err(LookupError::Freed));
        assert_eq!(table.get(1, 2), Err(LookupError::Unknown));
        assert_eq!(table.get(9, 0), Err(LookupError::Unknown));

        table.write().all[2].generation = LAST_GENERATION;
        assert_eq!(table.insert(9), Some((2, LAST_GENERATION)));
        assert_eq!(*table.remove(2, LAST_GENERATION).unwrap(), 9);
        assert_eq!(table.remove(2, LAST_GENERATION), Err(LookupError::Freed));
        assert_eq!(table.insert(10), Some((3, 0)));
    }
}
