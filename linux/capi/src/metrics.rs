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
    /// Time in polls, in ns.
    pub run_ns: u64,
    /// Median time between ready and polled, in ns.
    pub wait_p50_ns: u64,
    /// 99th percentile of that time, in ns.
    pub wait_p99_ns: u64,
}

/// # Safety
/// The pointer is null or a valid handle.
unsafe fn taken(handle: *const upshift_handle) -> Option<Metrics> {
    // SAFETY: by contract.
    match unsafe { handle.as_ref() } {
        Some(handle) => Some(handle.0.metrics()),
        None => Some(Handle::current().ok()?.metrics()),
    }
}

/// Returns the metrics of the runtime of `handle`, or of the caller's if it is null; zeros if there
/// is none. Takes some microseconds. Any thread.
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

/// Returns the metrics of a level; zeros for an unused level. `handle` like in
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

/// Returns all metrics in the text format of Prometheus; free it with `upshift_string_free`. Null
/// if there is no runtime. `handle` like in `upshift_metrics_get`. Any thread.
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

/// Frees a string. Does nothing for null. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upshift_string_free(string: *mut c_char) {
    if !string.is_null() {
        // SAFETY: `into_raw` created the pointer, and the caller gives it away once.
        drop(unsafe { CString::from_raw(string) });
    }
}
