//! Starts a preemptible vCPU: checks the kernel's features, and starts the watcher and the first
//! spare threads.

use std::io;
use std::sync::Arc;

use upshift_board::Role;
use upshift_elevate::dispatch::register_barrier;

use super::idle::FirstThreadProxy;
use super::vcpu::{Preemptible, SPARES, Settings};
use super::{interrupt, refusal, slice, watcher};
use crate::host::PreemptibleVcpu;
use crate::worker::Worker;

/// Makes the vCPU of `worker` preemptible. The calling thread must have created `worker`.
///
/// # Safety
/// The worker must not be moved or dropped until [`Preemptible::end`] has returned true.
///
/// # Errors
/// Fails if the kernel lacks a feature, or if a thread cannot be started. The threads that were
/// started have ended when this function returns.
pub(crate) unsafe fn start(
    worker: &Worker,
    cpu: usize,
    settings: Settings,
) -> io::Result<Arc<Preemptible>> {
    register_barrier().map_err(|error| refusal(format_args!("membarrier: {error}")))?;
    interrupt::may_send().map_err(|error| refusal(format_args!("tgkill: {error}")))?;
    interrupt::claim().map_err(refusal)?;
    if !worker.ring().reports_arrivals() {
        return Err(refusal(
            "on io_uring it needs deferred task work: use Linux 6.1 or newer without a lower `Builder::ring_mode`, or `Driver::Readiness`",
        ));
    }
    // SAFETY: the caller promises what `new` requires.
    let vcpu = unsafe { Preemptible::new(worker, cpu, settings)? };
    if vcpu.has_main_thread() {
        vcpu.roles().add_main();
    }
    worker
        .ring()
        .set_proxy(Box::new(FirstThreadProxy(Arc::as_ptr(&vcpu))));
    let host = worker.shared().domain.host();
    host.set_watch(vcpu.index, Some(vcpu.watch().clone()));
    let result =
        start_watcher(&vcpu).and_then(|()| (0..SPARES).try_for_each(|_| vcpu.start_spare()));
    if let Err(error) = result {
        // No poll has begun, so `end` returns true.
        vcpu.end();
        return Err(error);
    }
    host.set_preemptible(vcpu.index, Some(vcpu.clone()));
    Ok(vcpu)
}

fn start_watcher(vcpu: &Arc<Preemptible>) -> io::Result<()> {
    let watched_vcpu = vcpu.clone();
    let result = vcpu.starter.start("watcher", move || {
        slice::schedule_as_watcher(watched_vcpu.announcer.is_some());
        watched_vcpu.enlist(Role::Dispatcher);
        watcher::run(&watched_vcpu);
    });
    result.map(drop)
}
