//! The metrics of a client, as a struct and as text for Prometheus. This module must not change or count anything: the engine
//! counts.

use std::ffi::c_char;

use zklock::{Histogram, Labels, Metrics};
use zklock_abi::arg::{self, Buffer, SizedOutput};
use zklock_abi::boundary::status;
use zklock_abi::handle;

use crate::client::zkl_client;
use crate::status::zkl_status;

/// The number of buckets in a zkl_histogram.
pub const ZKL_HISTOGRAM_BUCKETS: usize = 24;
/// The upper bound of the first bucket of a histogram, in nanoseconds. Bucket i has the upper bound ZKL_HISTOGRAM_FIRST_NS <<
/// i.
pub const ZKL_HISTOGRAM_FIRST_NS: i64 = 50000;

const _: () = {
    assert!(ZKL_HISTOGRAM_BUCKETS == Histogram::BUCKETS);
    assert!(matches!(Histogram::bound(0), Some(first) if first.as_nanos() == ZKL_HISTOGRAM_FIRST_NS as u128));
};

/// A histogram of durations. Later versions do not change this struct.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct zkl_histogram {
    /// The number of measured durations.
    pub count: u64,
    /// The sum of all durations, in nanoseconds.
    pub sum_ns: u64,
    /// The cumulative buckets. Bucket i counts the durations of at most ZKL_HISTOGRAM_FIRST_NS << i nanoseconds. The upper
    /// bounds are 50 us, 100 us and so on, up to 209.7152 s. The last bucket has no upper bound and equals count.
    pub buckets: [u64; ZKL_HISTOGRAM_BUCKETS],
}

/// A client's metrics at the time of the call. The gauges show the current state of the client. The counters and the histograms
/// show the activity since the client was made. The value of a counter never decreases.
///
/// If a multi-lock joins its queues in one transaction, the metrics count one acquire, and one hold for each member lock. If a
/// multi-lock is acquired in several steps, each step counts as one acquire for the client that performs the step. The metrics
/// do not count calls with invalid arguments.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct zkl_metrics {
    /// The number of bytes that zkl_client_metrics wrote. Later versions only add fields at the end. The function
    /// zkl_client_metrics did not write any field beyond this number of bytes.
    pub size: u32,
    /// The state of the session: a ZKL_STATE_*.
    pub state: i32,
    /// The negotiated session timeout in milliseconds.
    pub session_timeout_ms: i64,
    /// The current number of holds. The number includes uncertain holds, but not lost holds.
    pub held: u64,
    /// The current number of waiting acquires.
    pub waiting: u64,
    /// The current number of nodes that the client is removing from queues. The number includes a node until a server confirms
    /// its removal.
    pub leaving: u64,
    /// The number of watches that a server keeps for the session, as far as the client knows.
    pub watches: u64,
    /// The number of acquires that succeeded with a new hold.
    pub acquires_ok: u64,
    /// The number of acquires that ended with ZKL_E_TIMEOUT because other participants were ahead.
    pub acquires_timeout: u64,
    /// The number of acquires that ended with ZKL_E_CANCELED because the program canceled them, or with ZKL_E_CLOSED because
    /// the program freed the handle or the client.
    pub acquires_canceled: u64,
    /// The number of acquires that ended with ZKL_E_CONNECTION because no server answered in time.
    pub acquires_connection: u64,
    /// The number of acquires that failed for any other reason.
    pub acquires_failed: u64,
    /// The number of acquires that re-entered a hold.
    pub reentries: u64,
    /// The number of acquires that succeeded after they had waited for another participant. The number includes local
    /// hand-overs.
    pub handovers: u64,
    /// The number of local hand-overs.
    pub local_passes: u64,
    /// The number of holds that the program released, or that ended because the program freed the handle or the client.
    pub releases: u64,
    /// The number of holds that were lost because their session ended.
    pub losses_session: u64,
    /// The number of holds that were lost because another client deleted their node.
    pub losses_deleted: u64,
    /// The number of times that a hold became ZKL_LOCK_SUSPENDED.
    pub suspensions: u64,
    /// The number of times that a hold became ZKL_LOCK_UNCERTAIN.
    pub uncertainties: u64,
    /// The number of times that a server refused to delete a node of this client. The client repeats the request until the
    /// server deletes the node.
    pub deletes_refused: u64,
    /// The number of attempts to connect to a server.
    pub connection_attempts: u64,
    /// The number of established connections. A connection is established when the server has accepted the session and the
    /// credentials.
    pub connections: u64,
    /// The number of established connections that replaced an earlier connection.
    pub reconnects: u64,
    /// The number of established connections that were lost.
    pub connections_lost: u64,
    /// The number of sessions that began.
    pub sessions: u64,
    /// The number of sessions that ended even though the program did not close the client. All holds of such a session were
    /// lost.
    pub sessions_lost: u64,
    /// The number of requests sent to servers, not counting pings and handshakes.
    pub requests: u64,
    /// The number of requests that servers answered.
    pub answers: u64,
    /// The number of pings sent to servers.
    pub pings: u64,
    /// The number of watch events that servers sent.
    pub watch_events: u64,
    /// The number of bytes sent to servers, including bytes that the client is about to send.
    pub bytes_sent: u64,
    /// The number of bytes received from servers.
    pub bytes_received: u64,
    /// The durations of successful acquires, from the call until the owner held the lock or the leases.
    pub waits: zkl_histogram,
    /// The durations of holds that have ended, from the end of the acquire to the release or the loss.
    pub holds: zkl_histogram,
    /// The durations of requests, from the moment when the client sent the request to the moment when the client read the
    /// answer.
    pub round_trips: zkl_histogram,
}

/// Gets the current metrics. The metrics are counters, histograms and gauges. The call sends no request, and works even after
/// the session was lost. The page docs/observability.md explains which metrics to watch.
///
/// The parameter `size` is the program's sizeof(zkl_metrics), and must be at least 4. The function writes size bytes to
/// `metrics_out`, or fewer bytes if the library's struct is smaller. In both cases, the first field contains the number of
/// bytes that the function wrote. If the library is older than the header that the program was compiled with, the function does
/// not write the newer fields. A program that may run with an older library should set the struct to zero before the call.
///
/// Returns: ZKL_OK, ZKL_E_INVALID, ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_client_metrics(
    client: *const zkl_client,
    size: usize,
    metrics_out: *mut zkl_metrics,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps the pointer valid during the call.
        let out = unsafe { SizedOutput::new("metrics_out", metrics_out, size, size_of::<u32>())? };
        let written = out.size();
        let mut metrics = zkl_metrics::from(&handle::get(client)?.client.metrics()?);
        metrics.size = u32::try_from(written).unwrap_or(u32::MAX);
        out.set(&metrics);
        Ok(())
    })
}

/// Gets a client's metrics in the Prometheus text format (exposition format, version 0.0.4). An HTTP server should serve the
/// text with the content type "text/plain; version=0.0.4". The text is about 12 KiB long, and it can become longer between two
/// calls. Provide a buffer that is larger than the size that an earlier call reported, or repeat the call if the text does not
/// fit.
///
/// The function adds the given labels to every metric. Labels distinguish this client from other clients. Labels use the
/// Prometheus format: name="value",other="value". A value can contain the escapes \\, \" and \n. If `labels` is NULL, the
/// function adds no labels. The function writes the text, with a terminating NUL, to the buffer `buf`. This buffer has `size`
/// bytes. The function stores the required buffer size, in bytes, in `*needed_out`. If `size` is 0, `buf` may be NULL.
///
/// Returns: ZKL_OK. On failure:
/// - ZKL_E_BUFFER if the text does not fit. A call that fails with ZKL_E_BUFFER writes only `*needed_out`.
/// - ZKL_E_INVALID if an argument is not valid, for example if Prometheus would not accept the labels.
/// - Other failures: ZKL_E_HANDLE, ZKL_E_FORKED, ZKL_E_INTERNAL.
///
/// Does not block. Any thread may call this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zkl_client_prometheus(
    client: *const zkl_client,
    labels: *const c_char,
    buf: *mut c_char,
    size: usize,
    needed_out: *mut usize,
) -> zkl_status {
    status(|| {
        // SAFETY: the caller keeps both pointers valid during the call.
        let buffer = unsafe { Buffer::new(buf, size, needed_out)? };
        // SAFETY: the caller keeps the string valid during the call.
        let labels = unsafe { arg::optional_text("labels", labels)? };
        let labels = Labels::parse(labels.unwrap_or_default())?;
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
