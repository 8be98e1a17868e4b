//! Semaphores, the leases that they give, and the counts that say how many there are.

use std::ffi::c_char;
use std::ops::Deref;

use zklock::{Error, Leases, MAX_DATA, PerProcess, Result, Semaphore, Status};
use zklock_abi::arg::{self, Buffer, Output};
use zklock_abi::guard::{free, guard, status};
use zklock_abi::handle::{self, Handle, Kind, Table};

use crate::client::zkl_client;
use crate::revocation::Callbacks;
use crate::status::zkl_status;

/// A semaphore on a path: so many leases, which threads and processes take and give back.
pub struct zkl_semaphore(());

/// Leases of a semaphore. They belong to whoever has the handle, whichever thread that is.
pub struct zkl_leases(());

/// What stands behind a semaphore.
pub struct Open {
    semaphore: Semaphore,
    pub(crate) callbacks: Callbacks,
}

impl Deref for Open {
    type Target = Semaphore;

    fn deref(&self) -> &Semaphore {
        &self.semaphore
    }
}

impl Handle for zkl_semaphore {
    type Object = Open;
    const KIND: Kind = Kind::Semaphore;

    fn table() -> &'static Table<Open> {
        static TABLE: PerProcess<Table<Open>> = PerProcess::new(Table::default);
        TABLE.get()
    }
}

impl Handle for zkl_leases {
    type Object = Leases;
    const KIND: Kind = Kind::Leases;

    fn table() -> &'static Table<Leases> {
        static TABLE: PerProcess<Table<Leases>> = PerProcess::new(Table::default);
        TABLE.get()
    }
}

/// Makes a semaphore of max_leases leases on a path; on the same znodes as Curator's InterProcessSemaphoreV2. All its
/// users have to agree on the number. Nothing is sent yet. The semaphore written to *semaphore_out is to be freed with
/// zkl_semaphore_free.
///
/// Returns: ZKL_OK; ZKL_E_INVALID, also for less than one lease; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED,
/// ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_semaphore_new(
    client: *mut zkl_client,
    path: *const c_char,
    max_leases: i32,
    semaphore_out: *mut *mut zkl_semaphore,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends both for the length of the call.
        let (path, out) = unsafe { (arg::text("path", path)?, Output::new("semaphore_out", semaphore_out)?) };
        out.set(insert(handle::get(client)?.client.semaphore(path, max_leases)?)?);
        Ok(())
    })
}

/// Makes a semaphore with as many leases as the count at count_path says, now and whenever it changes (zkl_shared_count_set,
/// Curator's SharedCount). Where the count has no node yet, it is made with the initial number. Where the count is lowered, leases that
/// are out stay out.
///
/// Returns: as zkl_semaphore_new; ZKL_E_CONNECTION, ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER.
/// Blocks for the session timeout at most; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_semaphore_new_counted(
    client: *mut zkl_client,
    path: *const c_char,
    count_path: *const c_char,
    initial: i32,
    semaphore_out: *mut *mut zkl_semaphore,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends all three for the length of the call.
        let (path, count_path, out) = unsafe {
            (
                arg::text("path", path)?,
                arg::text("count_path", count_path)?,
                Output::new("semaphore_out", semaphore_out)?,
            )
        };
        out.set(insert(handle::get(client)?.client.counted_semaphore(path, count_path, initial)?)?);
        Ok(())
    })
}

/// Frees a semaphore. Those that wait for its leases wake with ZKL_E_CLOSED. Leases that are out stay out, and are to be given
/// back with zkl_leases_release as before. NULL is allowed.
///
/// Returns nothing; a handle that is not live changes nothing. The last error message stays as it was.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_semaphore_free(semaphore: *mut zkl_semaphore) {
    free(|| {
        handle::free(semaphore, |open| {
            let closed = open.close();
            open.callbacks.close();
            closed
        })
    });
}

/// Acquires so many leases, all or none, with a limit in milliseconds over all that it takes: -1 for none, 0 to look once
/// without waiting for anybody. Requests are served in their order, whole: a large one is not overtaken by small ones. The
/// leases written to *leases_out are to be given back with zkl_leases_release, by any thread.
///
/// Returns: ZKL_OK; on every failure nothing is acquired: ZKL_E_TIMEOUT where they were not got in time, never early;
/// ZKL_E_CONNECTION where no server had answered by then; ZKL_E_CANCELED by zkl_semaphore_cancel; ZKL_E_CLOSED by
/// zkl_semaphore_free or zkl_client_free; ZKL_E_INVALID for a quantity below 1, one above max_leases (one above a count is
/// waited for, for the count may be raised), one of more nodes than a server takes in one transaction, or a negative limit other
/// than -1; ZKL_E_DEADLOCK in a callback, but for a limit of 0; ZKL_E_EXHAUSTED, ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER, ZKL_E_UNSUPPORTED, ZKL_E_HANDLE, ZKL_E_FORKED,
/// ZKL_E_INTERNAL.
/// Blocks until it has the leases, but no longer than the limit; with 0, for the server's answers, and a second at most.
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_semaphore_acquire_timeout(
    semaphore: *mut zkl_semaphore,
    quantity: i32,
    timeout_ms: i64,
    leases_out: *mut *mut zkl_leases,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends it for the length of the call.
        let out = unsafe { Output::new("leases_out", leases_out)? };
        let timeout = arg::timeout(timeout_ms)?;
        let quantity = positive(quantity)?;
        out.set(handle::insert(handle::get(semaphore)?.acquire(quantity, timeout)?)?);
        Ok(())
    })
}

/// Wakes those that wait for leases by this handle now, in any thread, with ZKL_E_CANCELED. Who waits later is not concerned, nor
/// are leases that are out. A wait that is just succeeding may still return ZKL_OK.
///
/// Returns: ZKL_OK, also where nobody waits; ZKL_E_CLOSED, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block; any thread, but not from a signal handler.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_semaphore_cancel(semaphore: *mut zkl_semaphore) -> zkl_status {
    status(|| handle::get(semaphore)?.cancel())
}

/// The data of the nodes of leases that are acquired later, as zkl_lock_set_data for a lock. Each lease has a node.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_semaphore_set_data(
    semaphore: *mut zkl_semaphore,
    data: *const u8,
    len: usize,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends them for the length of the call.
        let data = unsafe { arg::bytes("data", data, len, MAX_DATA)? };
        handle::get(semaphore)?.set_data(Some(data))
    })
}

/// Gives all of the leases back, and frees their handle, whatever is returned. NULL is no leases.
///
/// Returns: ZKL_OK, and the server has confirmed that the leases' nodes are gone; ZKL_E_LOST where one of them had been lost, so that
/// others may have had it in the meantime; ZKL_E_CONNECTION where no server confirmed within the session timeout, and the library
/// goes on trying; ZKL_E_CLOSED where the client is, and the leases were given up with it; ZKL_E_HANDLE, also from the second call
/// on; ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Blocks for the session timeout at most; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_leases_release(leases: *mut zkl_leases) -> zkl_status {
    status(|| handle::take(leases)?.release())
}

/// Whether the leases are held, and safely so at this moment: their session is surely alive, by the clock of this machine.
///
/// Returns: 1, 0, or the negative ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL. A negative number is true in C:
/// compare with 1.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_leases_is_held(leases: *const zkl_leases) -> i32 {
    guard(|| Ok(i32::from(handle::get(leases)?.is_held()?)))
}

/// How the leases stand, all of them together: if one is lost, they are.
///
/// Returns: a ZKL_LOCK_*, or the negative ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_leases_state(leases: *const zkl_leases) -> i32 {
    guard(|| Ok(handle::get(leases)?.state()? as i32))
}

/// The fencing token of the leases: it grows with every acquire of the semaphore. Where several may have leases at a time it says
/// who came later, and not who is the only one.
///
/// Returns: ZKL_OK with *token_out set; ZKL_E_LOST where one of them was lost; ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED,
/// ZKL_E_CLOSED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_leases_fencing_token(leases: *const zkl_leases, token_out: *mut i64) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends it for the length of the call.
        let out = unsafe { Output::new("token_out", token_out)? };
        out.set(ask(leases, Leases::fencing_token)?);
        Ok(())
    })
}

/// How long the leases are safe without hearing from a server, in milliseconds, rounded down; 0 where they are not safe now.
///
/// Returns: as zkl_leases_fencing_token, with *remaining_ms_out set.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_leases_remaining_ms(leases: *const zkl_leases, remaining_ms_out: *mut i64) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends it for the length of the call.
        let out = unsafe { Output::new("remaining_ms_out", remaining_ms_out)? };
        let remaining = ask(leases, Leases::remaining)?;
        out.set(i64::try_from(remaining.as_millis()).unwrap_or(i64::MAX));
        Ok(())
    })
}

/// The path of the node of one of the leases, whose indices begin with 0, as zkl_lock_node_path for a lock.
///
/// Returns: ZKL_OK; ZKL_E_BUFFER where it does not fit: nothing is written but *needed_out; ZKL_E_LOST where one of them was
/// lost; ZKL_E_INVALID, also for an index that is too large; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_leases_node_path(
    leases: *const zkl_leases,
    index: usize,
    buf: *mut c_char,
    size: usize,
    needed_out: *mut usize,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends both for the length of the call.
        let buffer = unsafe { Buffer::new(buf, size, needed_out)? };
        let paths = ask(leases, Leases::node_paths)?;
        let path = paths.get(index).ok_or_else(|| {
            let message = format!("index is {index}, and there are {} leases", paths.len());
            Error::new(Status::Invalid, message)
        })?;
        buffer.set(path)
    })
}

/// Reads a count (Curator's SharedCount): four bytes, the highest first.
///
/// Returns: ZKL_OK with *value_out set; ZKL_E_SERVER where it has no node: setting it makes one; ZKL_E_INVALID, also where its
/// node holds something else; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_CONNECTION, ZKL_E_AUTH, ZKL_E_DENIED,
/// ZKL_E_INTERNAL.
/// Blocks for the session timeout at most; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_shared_count_get(
    client: *mut zkl_client,
    count_path: *const c_char,
    value_out: *mut i32,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends both for the length of the call.
        let (count_path, out) = unsafe { (arg::text("count_path", count_path)?, Output::new("value_out", value_out)?) };
        out.set(handle::get(client)?.client.get_count(count_path)?);
        Ok(())
    })
}

/// Sets a count, whatever it was, and makes its node where there is none. Semaphores that go by it follow.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_CONNECTION, ZKL_E_AUTH, ZKL_E_DENIED,
/// ZKL_E_SERVER, ZKL_E_INTERNAL.
/// Blocks for the session timeout at most; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_shared_count_set(
    client: *mut zkl_client,
    count_path: *const c_char,
    value: i32,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends it for the length of the call.
        let count_path = unsafe { arg::text("count_path", count_path)? };
        handle::get(client)?.client.set_count(count_path, value)
    })
}

/// Asks for something that only leases which are out have. Where another thread gives them back in between, their handle is dead.
fn ask<T>(leases: *const zkl_leases, question: impl FnOnce(&Leases) -> Result<T>) -> Result<T> {
    let not_owner = match question(&*handle::get(leases)?) {
        Err(error) if error.status() == Status::NotOwner => error,
        answer => return answer,
    };
    Err(handle::get(leases).err().unwrap_or(not_owner))
}

fn insert(semaphore: Semaphore) -> Result<*mut zkl_semaphore> {
    handle::insert(Open { semaphore, callbacks: Callbacks::default() })
}

/// A quantity of leases.
pub(crate) fn positive(quantity: i32) -> Result<u32> {
    u32::try_from(quantity).ok().filter(|&quantity| quantity > 0).ok_or_else(|| {
        let message = format!("quantity is {quantity}; expected 1 or more");
        Error::new(Status::Invalid, message)
    })
}
