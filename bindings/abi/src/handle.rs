//! Handles: opaque pointers whose value is a ticket for a slot in a table, and which are never dereferenced. So a handle that
//! was freed, is of another kind, is garbage, or belongs to the parent of a forked process is an error and never a crash.
//!
//! ```text
//! 63      60 59         52 51                 24 23              0
//!    kind       fork epoch       generation            index
//! ```
//! Kinds are not 0, so no handle is NULL, and on the usual 64-bit machines no handle is an address that can be read.

use std::collections::VecDeque;
use std::ptr;
use std::sync::{Arc, PoisonError};
#[cfg(not(feature = "loom"))]
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(feature = "loom")]
use loom::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use zklock::{Epoch, Error, Result, Status};

#[cfg(not(target_pointer_width = "64"))]
compile_error!("a handle takes 64 bits");

const INDEX_BITS: u32 = 24;
const GENERATION_BITS: u32 = 28;
const EPOCH_BITS: u32 = 8;
const LAST_INDEX: usize = (1 << INDEX_BITS) - 1;
const LAST_GENERATION: u32 = (1 << GENERATION_BITS) - 1;

/// A C name for a handle, and what stands behind it.
pub trait Handle: Sized + 'static {
    /// What the handle is for.
    type Object: Send + Sync + 'static;
    /// Its tag.
    const KIND: Kind;

    /// Where this process keeps the objects.
    fn table() -> &'static Table<Self::Object>;
}

/// The kinds of handles, by their tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
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
    /// `zkl_leases`
    Leases = 6,
    /// `zkl_op`
    Op = 7,
}

/// Gives an object a handle.
pub fn insert<H: Handle>(object: H::Object) -> Result<*mut H> {
    let Some((index, generation)) = H::table().insert(object) else {
        let message = format!(
            "no more than {} handles of a kind can live at a time: {} is one too many",
            LAST_INDEX + 1,
            H::KIND.name()
        );
        return Err(Error::new(Status::Exhausted, message));
    };
    Ok(ptr::without_provenance_mut(Ticket { kind: H::KIND, epoch: this_epoch(), index, generation }.pack()))
}

/// The object of a live handle. It stays alive for the caller, whoever frees the handle in the meantime.
pub fn get<H: Handle>(handle: *const H) -> Result<Arc<H::Object>> {
    let Ticket { index, generation, .. } = check::<H>(handle.addr())?;
    H::table().get(index, generation).map_err(|why| refuse::<H>(handle.addr(), why))
}

/// Closes an object, then takes its handle out of service: whoever finds the handle dead finds the object closed. Nothing is
/// to be done about NULL, nor about a handle of the parent process.
pub fn free<H: Handle>(handle: *mut H, close: impl FnOnce(&H::Object) -> Result<()>) -> Result<()> {
    if handle.is_null() {
        return Ok(());
    }
    let Ticket { index, generation, .. } = match check::<H>(handle.addr()) {
        Ok(ticket) => ticket,
        Err(error) if error.status() == Status::Forked => return Ok(()),
        Err(error) => return Err(error),
    };
    let missing = |why| refuse::<H>(handle.addr(), why);
    let closed = close(&*H::table().get(index, generation).map_err(missing)?);
    H::table().remove(index, generation).map_err(missing)?;
    closed
}

/// Takes a handle out of service, and gives its object to the caller. Of several who try, one succeeds.
pub fn take<H: Handle>(handle: *mut H) -> Result<Arc<H::Object>> {
    let Ticket { index, generation, .. } = check::<H>(handle.addr())?;
    H::table().remove(index, generation).map_err(|why| refuse::<H>(handle.addr(), why))
}

/// One kind's objects. Slots are used again in turn, the one that has been free for longest first.
pub struct Table<T>(RwLock<Slots<T>>);

struct Slots<T> {
    all: Vec<Slot<T>>,
    free: VecDeque<usize>,
}

struct Slot<T> {
    /// Of the object that is there, or of the next one.
    generation: u32,
    object: Option<Arc<T>>,
}

/// Why a table has no object for a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    Freed,
    Unknown,
}

type Found<T> = std::result::Result<Arc<T>, Missing>;

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

    fn get(&self, index: usize, generation: u32) -> Found<T> {
        let slots = self.read();
        let slot = slots.all.get(index).ok_or(Missing::Unknown)?;
        slot.object
            .as_ref()
            .filter(|_| slot.generation == generation)
            .map(Arc::clone)
            .ok_or_else(|| slot.missing(generation))
    }

    fn remove(&self, index: usize, generation: u32) -> Found<T> {
        let mut slots = self.write();
        let slot = slots.all.get_mut(index).ok_or(Missing::Unknown)?;
        let missing = slot.missing(generation);
        let object = slot.object.take_if(|_| slot.generation == generation).ok_or(missing)?;
        // A slot whose generations are used up is never used again.
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
    /// What became of a generation that is not there.
    fn missing(&self, generation: u32) -> Missing {
        let used_up = self.generation == LAST_GENERATION && self.object.is_none();
        if generation < self.generation || used_up { Missing::Freed } else { Missing::Unknown }
    }
}

/// What a handle says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticket {
    kind: Kind,
    epoch: u8,
    generation: u32,
    index: usize,
}

impl Ticket {
    const fn pack(self) -> usize {
        let head = (self.kind as usize) << EPOCH_BITS | self.epoch as usize;
        (head << GENERATION_BITS | self.generation as usize) << INDEX_BITS | self.index
    }

    fn unpack(value: usize) -> Option<Self> {
        let head = value >> (INDEX_BITS + GENERATION_BITS);
        Some(Self {
            kind: Kind::from_tag(head >> EPOCH_BITS)?,
            epoch: low_byte(head),
            generation: u32::try_from(value >> INDEX_BITS & LAST_GENERATION as usize).ok()?,
            index: value & LAST_INDEX,
        })
    }
}

impl Kind {
    const ALL: [Self; 7] =
        [Self::Config, Self::Client, Self::Lock, Self::Standalone, Self::Semaphore, Self::Leases, Self::Op];

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
            Self::Leases => "a set of leases",
            Self::Op => "an operation",
        }
    }
}

/// All that can be judged without the table, and thus without a lock that another thread may have held during a fork.
fn check<H: Handle>(value: usize) -> Result<Ticket> {
    let expected = H::KIND.name();
    if value == 0 {
        return Err(Error::new(Status::Handle, format!("handle is NULL; expected {expected}")));
    }
    let ticket = Ticket::unpack(value).ok_or_else(|| refuse::<H>(value, Missing::Unknown))?;
    // Ancestors have smaller epochs, as long as there are less than 256 of them.
    let forks = Epoch::current().number();
    if ticket.epoch != this_epoch() {
        if forks < 1 << EPOCH_BITS && u64::from(ticket.epoch) > forks {
            return Err(refuse::<H>(value, Missing::Unknown));
        }
        // This path must not allocate: in a child of a raw clone() the allocator's lock may be taken, by a thread that only the parent has.
        let message = match H::KIND {
            Kind::Standalone => {
                "the handle belongs to the parent of this forked process; make a standalone server in the child, and use that"
            }
            _ => "the handle belongs to the parent of this forked process; make a client in the child, and use that",
        };
        return Err(Error::new(Status::Forked, message));
    }
    if ticket.kind != H::KIND {
        let message = format!("handle {value:#x}: {} was given where {expected} was expected", ticket.kind.name());
        return Err(Error::new(Status::Handle, message));
    }
    Ok(ticket)
}

fn refuse<H: Handle>(value: usize, why: Missing) -> Error {
    let why = match why {
        Missing::Freed => "was freed",
        Missing::Unknown => "is not a handle of zklock",
    };
    Error::new(Status::Handle, format!("handle {value:#x}: {why}; expected {}", H::KIND.name()))
}

fn this_epoch() -> u8 {
    Epoch::current().number().to_le_bytes()[0]
}

const fn low_byte(value: usize) -> u8 {
    value.to_le_bytes()[0]
}

#[cfg(all(test, feature = "loom"))]
mod models;

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use zklock::PerProcess;

    use super::*;

    struct Thing;

    impl Handle for Thing {
        type Object = u32;
        const KIND: Kind = Kind::Lock;

        fn table() -> &'static Table<u32> {
            static TABLE: PerProcess<Table<u32>> = PerProcess::new(Table::default);
            TABLE.get()
        }
    }

    #[test]
    fn tickets_survive_packing() {
        for kind in Kind::ALL {
            for (epoch, generation, index) in [(0, 0, 0), (255, LAST_GENERATION, LAST_INDEX), (1, 2, 3)] {
                let ticket = Ticket { kind, epoch, generation, index };
                assert_ne!(ticket.pack(), 0);
                assert_eq!(Ticket::unpack(ticket.pack()), Some(ticket));
            }
        }
    }

    #[test]
    fn a_freed_handle_stays_dead_when_its_slot_lives_again() {
        let first = insert::<Thing>(1).unwrap();
        assert_eq!(*get(first).unwrap(), 1);
        let kept = get(first).unwrap();
        free(first, |_| Ok(())).unwrap();
        let second = insert::<Thing>(2).unwrap();
        assert_eq!((*kept, *get(second).unwrap()), (1, 2));
        for error in [get(first).unwrap_err(), free(first, |_| Ok(())).unwrap_err(), take(first).unwrap_err()] {
            assert_eq!(error.status(), Status::Handle);
            assert_eq!(error.message(), format!("handle {:#x}: was freed; expected a lock", first.addr()));
        }
        let error = free(second, |_| Err(Status::Connection.into())).unwrap_err();
        assert_eq!(error.status(), Status::Connection);
        assert_eq!(get(second).unwrap_err().status(), Status::Handle);
        free(ptr::null_mut::<Thing>(), |_| Err(Status::Internal.into())).unwrap();
    }

    #[test]
    fn an_object_is_taken_once() {
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
        assert_eq!(table.get(1, 0), Err(Missing::Freed));
        assert_eq!(table.get(1, 2), Err(Missing::Unknown));
        assert_eq!(table.get(9, 0), Err(Missing::Unknown));

        table.write().all[2].generation = LAST_GENERATION;
        assert_eq!(table.insert(9), Some((2, LAST_GENERATION)));
        assert_eq!(*table.remove(2, LAST_GENERATION).unwrap(), 9);
        assert_eq!(table.remove(2, LAST_GENERATION), Err(Missing::Freed));
        assert_eq!(table.insert(10), Some((3, 0)));
    }
}
