//! Metrics of a runtime.

use std::ffi::{CString, c_char};

use upshift::metrics::Metrics;
use upshift::{Handle, Level};

use crate::error::catch_panic;
use crate::runtime::upshift_handle;

/// Counters of a runtime; they only grow, but for `live`, `ready` and `in_flight`.
#[repr(C)]
#[derive(Default)]
pub struct upshift_metrics {
    /// Coroutines that are spawned and have not exited.
    pub live: u64,
    /// Number of live coroutines that wait for a vCPU.
    pub ready: u64,
    /// Spawned so far.
    pub spawned: u64,
    /// Exited so far.
    pub exited: u64,
    /// Polls so far.
    pub polls: u64,
    /// Polls that were suspended.
    pub suspensions: u64,
    /// Operations that the kernel has.
    pub in_flight: u64,
    /// Operations handed to the kernel so far.
    pub submitted: u64,
    /// System calls that entered the rings.
    pub enters: u64,
}

/// Metrics of one level of a runtime.
#[repr(C)]
#[derive(Default)]
pub struct upshift_level_metrics {
    /// Polls so far.
    pub polls: u64,
    /// Coroutines that are ready now.
    pub ready: u64,
    /// Time in polls, ns.
    pub run_ns: u64,
    /// Half of the coroutines were ready for no longer than this before they were polled, ns.
    pub wait_p50_ns: u64,
    /// 99 of 100.
    pub wait_p99_ns: u64,
}

/// # Safety
/// Null or a handle.
unsafe fn taken(handle: *const upshift_handle) -> Option<Metrics> {
    // SAFETY: by contract.
    match unsafe { handle.as_ref() } {
        Some(handle) => Some(handle.0.metrics()),
        None => Some(Handle::current().ok()?.metrics()),
    }
}

/// Returns the metrics of the runtime of `handle`, or of the caller's if it is null; zeros if there
/// is none. Some microseconds. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_metrics_get(
    handle: *const upshift_handle,
    metrics: *mut upshift_metrics,
) {
    if metrics.is_null() {
        return;
    }
    // SAFETY: by contract room for it.
    unsafe { metrics.write(upshift_metrics::default()) };
    catch_panic(|| {
        // SAFETY: by contract.
        let Some(taken) = (unsafe { taken(handle) }) else {
            return;
        };
        let mut made = upshift_metrics {
            live: taken.coroutines.live,
            ready: taken.coroutines.ready,
            spawned: taken.coroutines.spawned,
            exited: taken.coroutines.exited,
            ..upshift_metrics::default()
        };
        for vcpu in &taken.vcpus {
            made.polls += vcpu.polls;
            made.suspensions += vcpu.suspensions;
            made.in_flight += vcpu.ring.in_flight;
            made.submitted += vcpu.ring.submitted;
            made.enters += vcpu.ring.enters;
        }
        // SAFETY: by contract room for it.
        unsafe { metrics.write(made) };
    });
}

/// Returns the metrics of a level; zeros for one that was never used. `handle` like in
/// `upshift_metrics_get`. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_metrics_level(
    handle: *const upshift_handle,
    level: u32,
    metrics: *mut upshift_level_metrics,
) {
    if metrics.is_null() {
        return;
    }
    // SAFETY: by contract room for it.
    unsafe { metrics.write(upshift_level_metrics::default()) };
    catch_panic(|| {
        // SAFETY: by contract.
        let Some(taken) = (unsafe { taken(handle) }) else {
            return;
        };
        let level = u8::try_from(level).ok().and_then(|n| Level::new(n).ok());
        let made = level.and_then(|level| taken.level(level)).map(|level| {
            let nanos = |q| u64::try_from(level.wait.quantile(q).as_nanos()).unwrap_or(u64::MAX);
            upshift_level_metrics {
                polls: level.polls,
                ready: level.ready,
                run_ns: u64::try_from(level.run.as_nanos()).unwrap_or(u64::MAX),
                wait_p50_ns: nanos(0.5),
                wait_p99_ns: nanos(0.99),
            }
        });
        // SAFETY: by contract room for it.
        unsafe { metrics.write(made.unwrap_or_default()) };
    });
}

/// Returns all metrics in the text format of Prometheus; free it by `upshift_string_free`. Null if
/// there is no runtime. `handle` like in `upshift_metrics_get`. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_metrics_prometheus(handle: *const upshift_handle) -> *mut c_char {
    let mut made = std::ptr::null_mut();
    catch_panic(|| {
        // SAFETY: by contract.
        let Some(taken) = (unsafe { taken(handle) }) else {
            return;
        };
        let text = taken.prometheus().to_string();
        made = CString::new(text).map_or(std::ptr::null_mut(), CString::into_raw);
    });
    made
}

/// Gives a string back. Nothing is done for null. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_string_free(string: *mut c_char) {
    if !string.is_null() {
        // SAFETY: `into_raw` made it, and it is the caller's, once.
        drop(unsafe { CString::from_raw(string) });
    }
}
