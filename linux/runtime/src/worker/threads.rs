//! Starts and stops the threads of vCPUs.

use std::cell::{Cell, OnceCell};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, mpsc};
use std::thread;

use upshift_core::{Domain, Executor};
use upshift_ring::Ring;

use crate::affinity;
use crate::board::PostRequest;
use crate::context;
use crate::host::Linux;
use crate::notice::{no_thread, notice};
use crate::preempt::{self, Preemptible};
use crate::runtime::shared::{Shared, VcpuThread};
use crate::stand_in::Neighbours;
use crate::time::clock;
use crate::time::timers::Timers;
use crate::worker::{Outbox, Pace, Until, Worker};

impl Shared {
    /// Creates the worker of a vCPU, with its ring, on the calling thread, and pins that thread to
    /// the CPU `pin`. The second value is `Some` if the vCPU is preemptible.
    pub(crate) fn worker(
        self: &Arc<Shared>,
        executor: Executor<Linux>,
        pin: Option<usize>,
    ) -> io::Result<(Box<Worker>, Option<Arc<Preemptible>>)> {
        let index = executor.index();
        let result = self.create_worker(executor, pin);
        match &result {
            Ok((worker, _)) => {
                worker.meter.enter_service();
                self.domain.host().recorder().add_vcpu(index);
            }
            Err(_) => {
                self.access.set(index, None);
                self.domain.host().set_remote(index, None);
            }
        }
        result
    }

    fn create_worker(
        self: &Arc<Shared>,
        executor: Executor<Linux>,
        pin: Option<usize>,
    ) -> io::Result<(Box<Worker>, Option<Arc<Preemptible>>)> {
        let index = executor.index();
        if let Some(cpu) = pin {
            affinity::pin(cpu)?;
        }
        let ring = Ring::new(self.settings.ring.clone())?;
        ring.defer_user_code(Domain::<Linux>::waker_table());
        self.domain.host().set_remote(index, Some(ring.remote()));
        let timers = Arc::new(Timers::new(clock::now(), self.domain.host()));
        self.access.set(index, Some(&timers));
        let post = match (&self.membership, pin) {
            (Some(membership), Some(cpu)) => {
                let has_watcher = self.settings.preemption.is_some();
                let request = PostRequest {
                    domain: &self.domain,
                    name: &self.settings.name,
                    index,
                    cpu,
                };
                membership.post(&request, &ring, &timers, has_watcher)?
            }
            _ => None,
        };
        let meter = self.meter(index);
        let worker = Box::new(Worker {
            executor,
            ring,
            timers,
            shared: self.clone(),
            meter,
            pace: Pace::new(self.settings.quantum, self.settings.reap_interval),
            outbox: Outbox::new(),
            neighbours: Neighbours::default(),
            is_ending: Cell::new(false),
            stop: Arc::new(AtomicBool::new(false)),
            preemptible: OnceCell::new(),
            post,
        });
        if let Some(settings) = &self.settings.preemption {
            let cpu = pin.unwrap_or(0);
            // SAFETY: the worker is neither moved nor dropped before `end` returns true. It is in a
            // box, which `Worker::retire` leaks if `end` returns false.
            let preemptible = unsafe { preempt::start(&worker, cpu, settings.clone())? };
            let _ = worker.preemptible.set(preemptible.clone());
            return Ok((worker, Some(preemptible)));
        }
        Ok((worker, None))
    }

    /// Adds a vCPU and starts its thread. Returns the index of the vCPU.
    pub(crate) fn add_vcpu(self: &Arc<Shared>) -> io::Result<usize> {
        let executor = self.domain.add_vcpu().map_err(io::Error::other)?;
        let index = executor.index();
        let (thread, _) = self.start_vcpu(executor)?;
        self.vcpu_threads().push(thread);
        if self.running.load(Ordering::Relaxed) {
            self.join_again();
        }
        Ok(index)
    }

    fn join_again(&self) {
        if let Some(membership) = &self.membership
            && let Err(error) = membership.join()
        {
            notice(format_args!("{error}; the vCPUs run without the board"));
        }
    }

    /// Starts the thread of a vCPU, and waits until the thread has created its worker. The second
    /// value is `Some` if the vCPU is preemptible.
    pub(crate) fn start_vcpu(
        self: &Arc<Shared>,
        executor: Executor<Linux>,
    ) -> io::Result<(VcpuThread, Option<Arc<Preemptible>>)> {
        let index = executor.index();
        let (ready_tx, ready_rx) = mpsc::sync_channel(1);
        let shared = self.clone();
        let thread = thread::Builder::new()
            .name(format!("{}-{index}", self.settings.name))
            .spawn(move || {
                let (worker, preemptible) = match shared.worker(executor, shared.pinned_cpu(index))
                {
                    Ok(pair) => pair,
                    Err(error) => {
                        let _ = ready_tx.send(Err(error));
                        return;
                    }
                };
                drop(shared);
                let stop = worker.stop.clone();
                let _ = ready_tx.send(Ok((stop.clone(), preemptible)));
                let is_over = || stop.load(Ordering::Relaxed) && !worker.has_stopped_polls();
                worker.run(Until::True(&is_over));
                worker.retire();
            })
            .map_err(|error| no_thread("a vCPU", &error))?;
        let (stop, preemptible) = ready_rx
            .recv()
            .map_err(|_| io::Error::other("the thread of a vCPU died while it started"))??;
        let thread = VcpuThread {
            index,
            stop,
            thread,
        };
        Ok((thread, preemptible))
    }

    /// Takes the vCPU that was added last out of service. Returns its index.
    pub(crate) fn release_vcpu(&self) -> io::Result<usize> {
        let own_index = context::with(|worker| worker.executor.index());
        let thread = {
            let mut vcpu_threads = self.vcpu_threads();
            let position = vcpu_threads
                .iter()
                .rposition(|thread| Some(thread.index) != own_index && thread.index != 0);
            position.map(|position| vcpu_threads.remove(position))
        };
        let thread = thread.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "no vCPU to release: the caller's vCPU and vCPU 0 cannot be released",
            )
        })?;
        self.stop(&thread);
        Ok(thread.index)
    }

    /// Requests that the thread of a vCPU stops.
    pub(crate) fn stop(&self, thread: &VcpuThread) {
        thread.stop.store(true, Ordering::Relaxed);
        upshift_core::Host::kick(self.domain.host(), thread.index);
    }

    pub(crate) fn vcpu_threads(&self) -> std::sync::MutexGuard<'_, Vec<VcpuThread>> {
        self.vcpu_threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
