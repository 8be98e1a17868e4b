//! What a client has done so far, in numbers, and as a text for Prometheus.

use std::ffi::c_char;

use zklock::{Histogram, Labels, Metrics};
use zklock_abi::arg::{self, Buffer, Prefix};
use zklock_abi::guard::status;
use zklock_abi::handle;

use crate::client::zkl_client;
use crate::status::zkl_status;

/// How many buckets a zkl_histogram has.
pub const ZKL_HISTOGRAM_BUCKETS: usize = 24;
/// The bound of the first of them, in nanoseconds; that of bucket i is ZKL_HISTOGRAM_FIRST_NS << i.
pub const ZKL_HISTOGRAM_FIRST_NS: i64 = 50000;

const _: () = {
    assert!(ZKL_HISTOGRAM_BUCKETS == Histogram::BUCKETS);
    assert!(matches!(Histogram::bound(0), Some(first) if first.as_nanos() == ZKL_HISTOGRAM_FIRST_NS as u128));
};

/// How long things took. This struct will stay as it is.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct zkl_histogram {
    /// How often something was measured.
    pub count: u64,
    /// How long it took in all, in nanoseconds.
    pub sum_ns: u64,
    /// How often it took at most so long: ZKL_HISTOGRAM_FIRST_NS << i, which is 50 us, 100 us and so on up to 209.7152 s. Each
    /// includes those before it. The last has no bound: it is count.
    pub buckets: [u64; ZKL_HISTOGRAM_BUCKETS],
}

/// What a client has done since it was made, and how it stands, at one moment. Counters only grow.
///
/// A multi-lock that is joined in one transaction is one acquire, and a hold for each of its locks; one that is taken step by step
/// is an acquire for each step, in the client of that step. Calls that are refused for their arguments are not counted.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct zkl_metrics {
    /// How many bytes were written by zkl_client_metrics. New fields are only ever appended: those that this does not cover are not
    /// known to the library.
    pub size: u32,
    /// How the session stands: a ZKL_STATE_*.
    pub state: i32,
    /// The session timeout in force, in milliseconds.
    pub session_timeout_ms: i64,
    /// Holds that there are now, safe or not; those that were lost are not among them.
    pub held: u64,
    /// Acquires that wait now.
    pub waiting: u64,
    /// Contenders whose nodes are to go, and no server has confirmed it yet.
    pub leaving: u64,
    /// Watches that a server is believed to keep for the session.
    pub watches: u64,
    /// Acquires that got their lock or leases, by a hold of their own.
    pub acquires_ok: u64,
    /// Acquires that ended with ZKL_E_TIMEOUT: others were ahead until their time was over, or at their one look.
    pub acquires_timeout: u64,
    /// Acquires that the program itself ended: ZKL_E_CANCELED, or ZKL_E_CLOSED where the handle or the client was.
    pub acquires_canceled: u64,
    /// Acquires that ended with ZKL_E_CONNECTION: no server answered in time.
    pub acquires_connection: u64,
    /// Acquires that failed in another way.
    pub acquires_failed: u64,
    /// Times that a hold was entered once more by its owner.
    pub reentries: u64,
    /// Acquires that got their lock after they had waited for another contender, those that it was passed on to in this process
    /// among them.
    pub handovers: u64,
    /// Times that a lock was passed on to another thread of this process, without a server.
    pub local_passes: u64,
    /// Holds that the program gave back, or that ended with their handle or client.
    pub releases: u64,
    /// Holds that were lost since their session ended.
    pub losses_session: u64,
    /// Holds that were lost since somebody else deleted their node.
    pub losses_deleted: u64,
    /// Times that a hold became ZKL_LOCK_SUSPENDED.
    pub suspensions: u64,
    /// Times that a hold became ZKL_LOCK_UNCERTAIN.
    pub uncertainties: u64,
    /// Times that a server refused to delete a node of ours. It is asked again until it does.
    pub deletes_refused: u64,
    /// Attempts to connect to a server.
    pub connection_attempts: u64,
    /// Connections that came to stand: the server took the session and the credentials.
    pub connections: u64,
    /// Those of them that took the place of one before.
    pub reconnects: u64,
    /// Connections that stood and were lost.
    pub connections_lost: u64,
    /// Sessions that were begun.
    pub sessions: u64,
    /// Sessions that ended, and were not closed: what was held was lost with them.
    pub sessions_lost: u64,
    /// Requests that were sent to servers; neither pings nor handshakes.
    pub requests: u64,
    /// Requests that were answered.
    pub answers: u64,
    /// Pings that were sent to servers.
    pub pings: u64,
    /// Changes of watched nodes that servers told of.
    pub watch_events: u64,
    /// Bytes that were sent to servers, or are about to be.
    pub bytes_sent: u64,
    /// Bytes that came from servers.
    pub bytes_received: u64,
    /// How long acquires that got what they wanted took, from the call to the grant.
    pub waits: zkl_histogram,
    /// How long holds lasted that are over, from the grant to the release or the loss.
    pub holds: zkl_histogram,
    /// How long servers took to answer requests, from the sending to the moment at which the answer was read.
    pub round_trips: zkl_histogram,
}

/// What a client has done so far, and how it stands: counters, histograms and gauges, of one moment. No server is asked, and it goes on
/// to work when the session was lost. docs/observability.md says what to watch.
///
/// size is sizeof(zkl_metrics) as the program was compiled, at least 4 bytes. As many bytes are written to metrics_out, and no more
/// than the library's own struct has; which of the two it was, is in its first field. So the fields that are newer than the library have
/// what they had before: a program that may meet an older one sets the struct to zero first.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_client_metrics(
    client: *const zkl_client,
    metrics_out: *mut zkl_metrics,
    size: usize,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends it for the length of the call.
        let out = unsafe { Prefix::new("metrics_out", metrics_out, size, size_of::<u32>())? };
        let written = out.size();
        let mut metrics = zkl_metrics::from(&handle::get(client)?.client.metrics()?);
        metrics.size = u32::try_from(written).unwrap_or(u32::MAX);
        out.set(&metrics);
        Ok(())
    })
}

/// The same in the text form that Prometheus reads (its exposition format, version 0.0.4), to be served as "text/plain; version=0.0.4".
/// labels are put to each of them, to tell this client from others: name="value",other="value" as Prometheus has them, with \\, \" and
/// \n for what can't stand in a value; or NULL for none. The text is written to the size bytes at buf, with a NUL; how many bytes
/// it takes, to *needed_out. With size 0, buf may be NULL. It takes about 12 KiB, and can be longer from one call to the next: give
/// it some room, or try again.
///
/// Returns: ZKL_OK; ZKL_E_BUFFER where it does not fit: nothing is written but *needed_out; ZKL_E_INVALID, also for labels that
/// Prometheus would not take; ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block; any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_client_prometheus(
    client: *const zkl_client,
    labels: *const c_char,
    buf: *mut c_char,
    size: usize,
    needed_out: *mut usize,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller lends both for the length of the call.
        let buffer = unsafe { Buffer::new(buf, size, needed_out)? };
        // SAFETY: as above.
        let labels = if labels.is_null() { "" } else { unsafe { arg::text("labels", labels)? } };
        let labels = Labels::parse(labels)?;
        buffer.set(&handle::get(client)?.client.metrics()?.prometheus(&labels))
    })
}

impl From<&Histogram> for zkl_histogram {
    fn from(histogram: &Histogram) -> Self {
        let mut buckets = [0; ZKL_HISTOGRAM_BUCKETS];
        for (bucket, (_, count)) in buckets.iter_mut().zip(histogram.buckets()) {
            *bucket = count;
        }
        let sum_ns = u64::try_from(histogram.sum().as_nanos()).unwrap_or(u64::MAX);
        Self { count: histogram.count(), sum_ns, buckets }
    }
}

impl From<&Metrics> for zkl_metrics {
    fn from(metrics: &Metrics) -> Self {
        Self {
            size: 0,
            state: metrics.state as i32,
            session_timeout_ms: i64::try_from(metrics.session_timeout.as_millis()).unwrap_or(i64::MAX),
            held: metrics.held,
            waiting: metrics.waiting,
            leaving: metrics.leaving,
            watches: metrics.watches,
            acquires_ok: metrics.acquires_ok,
            acquires_timeout: metrics.acquires_timeout,
            acquires_canceled: metrics.acquires_canceled,
            acquires_connection: metrics.acquires_connection,
            acquires_failed: metrics.acquires_failed,
            reentries: metrics.reentries,
            handovers: metrics.handovers,
            local_passes: metrics.local_passes,
            releases: metrics.releases,
            losses_session: metrics.losses_session,
            losses_deleted: metrics.losses_deleted,
            suspensions: metrics.suspensions,
            uncertainties: metrics.uncertainties,
            deletes_refused: metrics.deletes_refused,
            connection_attempts: metrics.connection_attempts,
            connections: metrics.connections,
            reconnects: metrics.reconnects,
            connections_lost: metrics.connections_lost,
            sessions: metrics.sessions,
            sessions_lost: metrics.sessions_lost,
            requests: metrics.requests,
            answers: metrics.answers,
            pings: metrics.pings,
            watch_events: metrics.watch_events,
            bytes_sent: metrics.bytes_sent,
            bytes_received: metrics.bytes_received,
            waits: (&metrics.waits).into(),
            holds: (&metrics.holds).into(),
            round_trips: (&metrics.round_trips).into(),
        }
    }
}
