//! Runs: a job that many programs start, and that one of them runs in each period. This module must not use operations, and must
//! not keep the callback: the callback runs only during the call.

use std::ffi::{CString, c_char, c_void};
use std::ptr;
use std::time::{SystemTime, UNIX_EPOCH};

use zklock::internal::{PerProcess, keep_run, start_run};
use zklock::{Error, Hold, Operation, PastRun, Period, Result, Run, RunResult, RunStart, Status};
use zklock_abi::arg::{self, Output};
use zklock_abi::boundary::{free, status};
use zklock_abi::handle::{self, Handle, HandleKind, Table};

use crate::client::zkl_client;
use crate::hold::zkl_hold;
use crate::status::zkl_status;

/// A flag of zkl_hold_begin_run: the call also begins the run if the last run in this period failed or was interrupted.
pub const ZKL_ONCE_RETRY_FAILED: u32 = 1;

/// The run has not ended, or it was interrupted: its process died, lost the lock, or freed the run.
pub const ZKL_RUN_RUNNING: i32 = 0;
/// The job succeeded.
pub const ZKL_RUN_SUCCEEDED: i32 = 1;
/// The job failed.
pub const ZKL_RUN_FAILED: i32 = 2;

/// A run of a job that has begun (zkl_hold_begin_run). Any thread that has the handle may use the run. While the handle exists, a
/// hold that the program has not released does not end.
pub struct zkl_run(());

impl Handle for zkl_run {
    type Object = Run;
    const KIND: HandleKind = HandleKind::Run;

    fn table() -> &'static Table<Run> {
        static TABLE: PerProcess<Table<Run>> = PerProcess::new(Table::default);
        TABLE.get()
    }
}

/// One run of a job, as the record of runs contains it. The struct and the memory that it points to belong to the library. A
/// struct that a callback receives is valid until the callback returns. A struct that the program gets from zkl_op_past_run is
/// valid until the program frees the operation. Times are milliseconds since 1970-01-01 00:00 UTC.
#[repr(C)]
pub struct zkl_past_run {
    /// The size of this struct in the library. Later versions only add fields at the end. Before a program reads an added
    /// field, the program must check that size includes the field.
    pub size: u32,
    /// How the run ended: a ZKL_RUN_*.
    pub result: i32,
    /// The beginning of the period.
    pub period_ms: i64,
    /// The beginning of the run, according to the clock of the host that ran it.
    pub started_ms: i64,
    /// The end of the run; -1 if no end is recorded.
    pub ended_ms: i64,
    /// The fencing token of the hold.
    pub token: i64,
    /// The process that ran the job, in the form user@host:pid.
    pub owner: *const c_char,
    /// How the job failed; NULL unless the result is ZKL_RUN_FAILED.
    pub failure: *const c_char,
    /// The first node of the hold, without the client's chroot; NULL if it is not known. The node exists only while the run holds
    /// its lock.
    pub node_path: *const c_char,
}

/// A callback that receives each past run. The callback must return normally. A callback must not throw an exception or call
/// longjmp.
pub type zkl_past_runs_cb = Option<unsafe extern "C" fn(user: *mut c_void, run: *const zkl_past_run)>;

/// Begins a run of the job of this lock, unless the job has already run in this period. Many programs can start a job, and one of
/// them then runs it in each period. The record of runs is the data of the node PATH-runs, which the command
/// `zklock run --once-per` also uses. For a multi-lock, PATH is the path of its first member lock. The servers write the record
/// only while the hold exists.
///
/// The parameter `period` is minute, hour, day, week, month, @hourly, @daily, @midnight, @weekly, @monthly, or a time in whole
/// seconds such as 30m or 2h. The parameter `zone` is the time zone of hours, days, weeks and months, for example Europe/Berlin.
/// NULL means the zone of this host. The parameter `flags` is 0 or ZKL_ONCE_RETRY_FAILED. All programs that start the job must use
/// the same period, the same zone and the same kind of lock.
///
/// If `*run_out` is not NULL, the program runs its job, and then ends the run with zkl_run_finish, before it releases the hold. If
/// `*run_out` is NULL, the job has already run in this period, or in a later period according to the clock of another host. The
/// first run that zkl_past_runs shows is then this run. A run that began under this hold counts as running until it ends.
///
/// Returns: ZKL_OK, even if the job has already run. On failure:
/// - ZKL_E_INVALID if several participants can hold the lock at the same time, for example a read lock or a semaphore with
///   several leases. Also ZKL_E_INVALID if an argument is not valid, if the node of the record contains other data, or if the
///   variable TZ contains an unknown time zone.
/// - ZKL_E_LOST if the hold was lost.
/// - ZKL_E_NOT_OWNER if the program has already released the hold through the lock (zkl_release).
/// - ZKL_E_FOREIGN if the last run still holds its lock. It then used another kind of lock on this path.
/// - ZKL_E_CONNECTION if no server answered. If the message says so, the run may be in the record and count as interrupted.
/// - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER,
///   ZKL_E_INTERNAL.
///
/// Blocks for at most three times the session timeout, or longer if other programs change the record at the same time. Any thread
/// may call this function.
#[unsafe(no_mangle)]
#[must_use]
pub unsafe extern "C" fn zkl_hold_begin_run(
    hold: *mut zkl_hold,
    period: *const c_char,
    zone: *const c_char,
    flags: u32,
    run_out: *mut *mut zkl_run,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps all three pointers valid during the call.
        let (out, job) = unsafe { (Output::new("run_out", run_out)?, JobArguments::new(period, zone, flags)?) };
        out.set(insert(job.start(&*handle::get(hold)?)?.wait()?)?);
        Ok(())
    })
}

/// Ends a run, and frees the handle. The parameter `failure` is NULL if the job succeeded. Otherwise, it is a text for people that
/// says how the job failed, of which the record contains at most the first 1,000 characters. If the call fails, the run may count
/// as interrupted. The call frees a live handle of this process, whatever it returns, unless `failure` is not valid.
///
/// Returns: ZKL_OK if a server has confirmed the record. On failure:
/// - ZKL_E_LOST if the hold was lost before. The run then counts as interrupted, because another program may have run the job since.
/// - ZKL_E_NOT_OWNER if the program has already released the hold.
/// - ZKL_E_FOREIGN if another program has changed the record.
/// - ZKL_E_CONNECTION if no server confirmed the record within three times the session timeout.
/// - ZKL_E_HANDLE if `run` is not a live handle, for example NULL or the handle of a run that has ended.
/// - ZKL_E_INVALID if `failure` is not valid.
/// - Other failures: ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_EXHAUSTED, ZKL_E_AUTH, ZKL_E_DENIED, ZKL_E_SERVER, ZKL_E_INTERNAL.
///
/// Blocks for at most three times the session timeout. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_run_finish(run: *mut zkl_run, failure: *const c_char) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the text valid during the call.
        let failure = unsafe { arg::optional_text("failure", failure)? };
        handle::take(run)?.start_finish(failure)?.wait()
    })
}

/// Removes a run from the record, because the job never started, and frees the handle. The job can then still run in this period. If
/// the call fails, the run may count as interrupted. The call frees a live handle of this process, whatever it returns.
///
/// Returns: the same statuses as zkl_run_finish.
/// Blocks for at most twice the session timeout. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_run_take_back(run: *mut zkl_run) -> zkl_status {
    status(|| handle::take(run)?.take_back())
}

/// Frees a run that the program does not end. The run then counts as interrupted, as after the death of the process. The parameter
/// `run` may be NULL. In a forked child, the call does nothing.
///
/// Returns nothing. If `run` is not a live handle, the call has no effect. The last error message does not change.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub extern "C" fn zkl_run_free(run: *mut zkl_run) {
    free(|| handle::free(run, |_| Ok(())));
}

/// Reads the last runs of the job of a lock. The function calls `cb` once for each run, from the newest to the oldest, and passes
/// `user` to `cb`. The record contains at most ten runs. The callback may call any function of zklock.
///
/// Returns: ZKL_OK, even if the job has never run. If the function fails, it does not call `cb`. On failure:
/// - ZKL_E_INVALID if an argument is not valid, or if the node of the record contains other data.
/// - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_CLOSED, ZKL_E_CONNECTION, ZKL_E_EXHAUSTED, ZKL_E_AUTH, ZKL_E_DENIED,
///   ZKL_E_SERVER, ZKL_E_INTERNAL.
///
/// Blocks for at most the session timeout plus the time that `cb` takes. Any thread may call this function. The function calls
/// `cb` on the calling thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_past_runs(
    client: *mut zkl_client,
    path: *const c_char,
    cb: zkl_past_runs_cb,
    user: *mut c_void,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the text valid during the call.
        let path = unsafe { arg::text("path", path)? };
        let cb = cb.ok_or_else(|| arg::null_error("cb"))?;
        for run in handle::get(client)?.client.past_runs(path)? {
            let record = PastRunRecord::new(run);
            // SAFETY: the caller passed a function of this type, and the arguments outlive the call.
            unsafe { cb(user, record.as_ptr()) };
        }
        Ok(())
    })
}

/// The arguments that describe a job.
pub(crate) struct JobArguments {
    period: Period,
    retry_failed: bool,
}

impl JobArguments {
    /// # Safety
    /// Each text is NULL, or a NUL-terminated string that does not change during the call.
    pub(crate) unsafe fn new(period: *const c_char, zone: *const c_char, flags: u32) -> Result<Self> {
        // SAFETY: the caller of this function guarantees the contract.
        let (period, zone) = unsafe { (arg::text("period", period)?, arg::optional_text("zone", zone)?) };
        let period = zone.map_or_else(|| Period::new(period), |zone| Period::new(period)?.in_zone(zone))?;
        if flags & !ZKL_ONCE_RETRY_FAILED != 0 {
            let message = format!("flags is {flags:#x}; expected 0 or ZKL_ONCE_RETRY_FAILED ({ZKL_ONCE_RETRY_FAILED})");
            return Err(Error::new(Status::Invalid, message));
        }
        Ok(Self { period, retry_failed: flags & ZKL_ONCE_RETRY_FAILED != 0 })
    }

    /// Starts to begin the run, which the library takes back unless `insert` makes a handle for it.
    pub(crate) fn start(&self, hold: &Hold) -> Result<Operation<RunStart>> {
        start_run(hold, &self.period, self.retry_failed)
    }
}

/// Makes a handle for a run, or returns NULL if the job has already run.
pub(crate) fn insert(start: RunStart) -> Result<*mut zkl_run> {
    match start {
        RunStart::Run(run) => {
            let handle = handle::insert(run.clone())?;
            keep_run(&run);
            Ok(handle)
        }
        RunStart::Skip(_) => Ok(ptr::null_mut()),
    }
}

/// A past run, and the memory that its struct points to.
pub(crate) struct PastRunRecord {
    run: zkl_past_run,
    _texts: [Option<CString>; 3],
}

// SAFETY: the pointers of the struct point to memory of the record, which never changes.
unsafe impl Send for PastRunRecord {}
// SAFETY: the reason for `Send` also applies to `Sync`.
unsafe impl Sync for PastRunRecord {}

impl PastRunRecord {
    pub(crate) fn new(past: PastRun) -> Self {
        let (result, failure) = match past.result {
            RunResult::Running => (ZKL_RUN_RUNNING, None),
            RunResult::Succeeded => (ZKL_RUN_SUCCEEDED, None),
            RunResult::Failed(how) => (ZKL_RUN_FAILED, Some(how)),
        };
        let texts = [Some(past.owner), failure, past.node_path].map(|text| text.map(text_of));
        let [owner, failure, node_path] =
            texts.each_ref().map(|text| text.as_ref().map_or(ptr::null(), |text| text.as_ptr()));
        let run = zkl_past_run {
            size: SIZE,
            result,
            period_ms: milliseconds(past.period),
            started_ms: milliseconds(past.started),
            ended_ms: past.ended.map_or(-1, milliseconds),
            token: past.token,
            owner,
            failure,
            node_path,
        };
        Self { run, _texts: texts }
    }

    pub(crate) const fn as_ptr(&self) -> *const zkl_past_run {
        &raw const self.run
    }
}

/// Only a record that another program has written can contain a NUL.
fn text_of(text: String) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

fn milliseconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

const SIZE: u32 = size_of::<zkl_past_run>() as u32;
