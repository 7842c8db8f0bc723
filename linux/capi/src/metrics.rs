//! Metrics of a runtime.

use std::ffi::{CString, c_char};

use upshift::metrics::Metrics;
use upshift::{Handle, Level};

use crate::error::catch_panic;
use crate::runtime::upshift_handle;

/// Counters of a runtime. They only grow, except `live`, `ready` and `in_flight`.
#[repr(C)]
#[derive(Default)]
pub struct upshift_metrics {
    /// Number of coroutines that have not exited.
    pub live: u64,
    /// Number of live coroutines that wait for a vCPU.
    pub ready: u64,
    /// Number of spawned coroutines.
    pub spawned: u64,
    /// Number of exited coroutines.
    pub exited: u64,
    /// Number of polls.
    pub polls: u64,
    /// Number of suspended polls.
    pub suspensions: u64,
    /// Number of operations in the kernel.
    pub in_flight: u64,
    /// Number of operations submitted to the kernel.
    pub submitted: u64,
    /// Number of system calls that entered the rings.
    pub enters: u64,
}

/// Metrics of one level of a runtime.
#[repr(C)]
#[derive(Default)]
pub struct upshift_level_metrics {
    /// Number of polls.
    pub polls: u64,
    /// Number of ready coroutines.
    pub ready: u64,
    /// Time in polls, in nanoseconds.
    pub run_ns: u64,
    /// Median of the time that a ready coroutine waits for its poll, in nanoseconds.
    pub wait_p50_ns: u64,
    /// 99th percentile of the same time, in nanoseconds.
    pub wait_p99_ns: u64,
}

/// Returns the metrics of the runtime to which `handle` belongs, or of the caller's runtime if
/// `handle` is null.
///
/// # Safety
/// `handle` is null or valid.
unsafe fn metrics_of(handle: *const upshift_handle) -> Option<Metrics> {
    // SAFETY: the caller guarantees that `handle` is null or valid.
    match unsafe { handle.as_ref() } {
        Some(handle) => Some(handle.0.metrics()),
        None => Some(Handle::current().ok()?.metrics()),
    }
}

/// Stores the metrics of the runtime of `handle` in `*metrics`, or of the caller's runtime if
/// `handle` is null. If there is no runtime, all metrics are 0. Takes a few microseconds. May be
/// called on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_metrics_get(
    handle: *const upshift_handle,
    metrics: *mut upshift_metrics,
) {
    if metrics.is_null() {
        return;
    }
    // SAFETY: `metrics` is not null, so the caller guarantees that it has room for the metrics.
    unsafe { metrics.write(upshift_metrics::default()) };
    catch_panic(|| {
        // SAFETY: the caller guarantees that `handle` is null or valid.
        let Some(stats) = (unsafe { metrics_of(handle) }) else {
            return;
        };
        let mut sums = upshift_metrics {
            live: stats.coroutines.live,
            ready: stats.coroutines.ready,
            spawned: stats.coroutines.spawned,
            exited: stats.coroutines.exited,
            ..upshift_metrics::default()
        };
        for vcpu in &stats.vcpus {
            sums.polls += vcpu.polls;
            sums.suspensions += vcpu.suspensions;
            sums.in_flight += vcpu.ring.in_flight;
            sums.submitted += vcpu.ring.submitted;
            sums.enters += vcpu.ring.enters;
        }
        // SAFETY: `metrics` is not null, so the caller guarantees that it has room for the metrics.
        unsafe { metrics.write(sums) };
    });
}

/// Stores the metrics of a level in `*metrics`. If no coroutine has used the level, all metrics are
/// 0. `handle` has the same meaning as in `upshift_metrics_get`. May be called on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_metrics_level(
    handle: *const upshift_handle,
    level: u32,
    metrics: *mut upshift_level_metrics,
) {
    if metrics.is_null() {
        return;
    }
    // SAFETY: `metrics` is not null, so the caller guarantees that it has room for the metrics.
    unsafe { metrics.write(upshift_level_metrics::default()) };
    catch_panic(|| {
        // SAFETY: the caller guarantees that `handle` is null or valid.
        let Some(stats) = (unsafe { metrics_of(handle) }) else {
            return;
        };
        let level = u8::try_from(level).ok().and_then(|n| Level::new(n).ok());
        let counters = level.and_then(|level| stats.level(level)).map(|level| {
            let nanos = |q| u64::try_from(level.wait.quantile(q).as_nanos()).unwrap_or(u64::MAX);
            upshift_level_metrics {
                polls: level.polls,
                ready: level.ready,
                run_ns: u64::try_from(level.run.as_nanos()).unwrap_or(u64::MAX),
                wait_p50_ns: nanos(0.5),
                wait_p99_ns: nanos(0.99),
            }
        });
        // SAFETY: `metrics` is not null, so the caller guarantees that it has room for the metrics.
        unsafe { metrics.write(counters.unwrap_or_default()) };
    });
}

/// Returns all metrics in the text format of Prometheus, or null if there is no runtime. Free the
/// string with `upshift_string_free`. `handle` has the same meaning as in `upshift_metrics_get`.
/// May be called on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_metrics_prometheus(handle: *const upshift_handle) -> *mut c_char {
    let mut string = std::ptr::null_mut();
    catch_panic(|| {
        // SAFETY: the caller guarantees that `handle` is null or valid.
        let Some(stats) = (unsafe { metrics_of(handle) }) else {
            return;
        };
        let text = stats.prometheus().to_string();
        string = CString::new(text).map_or(std::ptr::null_mut(), CString::into_raw);
    });
    string
}

/// Frees a string that `upshift_metrics_prometheus` returned. Does nothing for null. May be called
/// on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_string_free(string: *mut c_char) {
    if !string.is_null() {
        // SAFETY: the caller guarantees that `upshift_metrics_prometheus` returned the string, by
        // `into_raw`, and that it frees the string once.
        drop(unsafe { CString::from_raw(string) });
    }
}
