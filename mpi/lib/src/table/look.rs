//! Implements a *look*, in which the progress coroutine (`progress.rs`) asks MPI for completions,
//! and does the work that destructors have left.
//!
//! All functions of this module call MPI, under the lock of `job.rs`.

use std::ffi::c_int;
use std::task::Waker;

use mpi_sys as sys;
use upshift::Level;

use super::parts::{
    Completion, Kind, Matched, Outcome, Payload, Start, improbe, outcome, probe_completion,
};
use super::{Busy, Stage, Table};
use crate::error::check;
use crate::peers::Peers;

/// Number of requests per `MPI_Testsome`, which bounds the time under the lock.
pub(super) const WINDOW: usize = 256;

/// The results of a look: wakers to call, and the ranks that the completed operations concern.
#[derive(Default)]
pub(crate) struct LookResults {
    pub(crate) wakers: Vec<Waker>,
    pub(crate) peers: Vec<Peers>,
    /// Number of operations that the look has completed.
    pub(crate) events: usize,
}

impl Table {
    /// Does the work that destructors have left.
    pub(crate) fn sweep(&mut self) {
        for key in std::mem::take(&mut self.cancels) {
            if let Some(Busy {
                stage: Stage::Running(start, _),
                ..
            }) = self.busy(key)
            {
                // SAFETY: the request is active, since the table contains it as running. MPI still
                // completes it.
                unsafe { sys::MPI_Cancel(&mut start.request) };
            }
        }
        for request in std::mem::take(&mut self.free_requests) {
            let mut request = request;
            // SAFETY: the request is persistent and inactive, and no copy of its handle remains.
            unsafe { sys::MPI_Request_free(&mut request) };
        }
        // These messages are received before their communicators are freed below.
        for matched in std::mem::take(&mut self.unreceived) {
            self.receive_unwanted(matched);
        }
        for comm in std::mem::take(&mut self.free_comms) {
            let mut comm = comm;
            // SAFETY: the last handle of this communicator has been dropped; MPI keeps the
            // communicator until its operations have ended.
            unsafe { sys::MPI_Comm_free(&mut comm) };
        }
    }

    /// Receives a message that no operation expects, so that its sender can continue.
    fn receive_unwanted(&mut self, mut matched: Matched) {
        // SAFETY: constants of the library; the out-parameters are locals; the buffer moves to the
        // table with the request.
        unsafe {
            let datatype = sys::RSMPI_UINT8_T;
            let mut bytes = 0;
            sys::MPI_Get_count(&matched.status, datatype, &mut bytes);
            let mut buffer = vec![0u8; usize::try_from(bytes).unwrap_or(0)];
            let mut request = sys::RSMPI_REQUEST_NULL;
            let code = sys::MPI_Imrecv(
                buffer.as_mut_ptr().cast(),
                bytes.max(0),
                datatype,
                &mut matched.message,
                &mut request,
            );
            if check(code).is_ok() {
                let start = Start {
                    kind: Kind::Completes,
                    request,
                    datatype,
                    is_persistent: false,
                    bytes: buffer.len(),
                    payload: Box::new(buffer),
                    peers: Peers::None,
                };
                let key = self.insert(start, Level::DEFAULT);
                if let Some(busy) = self.busy(key) {
                    busy.is_orphan = true;
                }
            }
        }
    }

    /// Tests the window of requests that ends before `end`. Returns the end of the next window.
    pub(crate) fn test(
        &mut self,
        end: usize,
        results: &mut LookResults,
        dropped: &mut Vec<Payload>,
    ) -> usize {
        let end = end.min(self.requests.len());
        let begin = end.saturating_sub(WINDOW);
        let length = end - begin;
        if length == 0 {
            return 0;
        }
        let mut indices = [0; WINDOW];
        // SAFETY: `MPI_Status` is a C structure of integers, for which zero is valid.
        let mut statuses: [sys::MPI_Status; WINDOW] = unsafe { std::mem::zeroed() };
        let mut completed = 0;
        // SAFETY: there are `length` active requests, and space for as many indices and statuses.
        let code = unsafe {
            sys::MPI_Testsome(
                length as c_int,
                self.requests[begin..end].as_mut_ptr(),
                &mut completed,
                indices.as_mut_ptr(),
                statuses.as_mut_ptr(),
            )
        };
        let has_statuses = code == sys::MPI_ERR_IN_STATUS as c_int;
        // `MPI_UNDEFINED` is negative and means that no request was active, which cannot happen.
        let completed = usize::try_from(completed).unwrap_or(0).min(length);
        let indices = &mut indices[..completed];
        // Requests are removed from the back, because a removal moves the last request to the free
        // position.
        let mut order: Vec<usize> = (0..completed).collect();
        order.sort_unstable_by_key(|entry| std::cmp::Reverse(indices[*entry]));
        for entry in order {
            let position = begin + indices[entry] as usize;
            let status = statuses[entry];
            let error = if has_statuses { status.MPI_ERROR } else { 0 };
            self.complete(position, &status, error, results, dropped);
        }
        begin
    }

    fn complete(
        &mut self,
        position: usize,
        status: &sys::MPI_Status,
        error: c_int,
        results: &mut LookResults,
        dropped: &mut Vec<Payload>,
    ) {
        results.events += 1;
        let request = self.requests.swap_remove(position);
        let index = self.owners.swap_remove(position);
        if let Some(&moved_index) = self.owners.get(position)
            && let Some(Busy {
                stage: Stage::Running(_, request_index),
                ..
            }) = &mut self.slots[moved_index as usize].busy
        {
            *request_index = position;
        }
        let slot = &mut self.slots[index as usize];
        let Some(Busy {
            stage: Stage::Running(start, _),
            waker,
            level,
            is_orphan,
            ..
        }) = slot.busy.take()
        else {
            unreachable!("a request's owner is a running operation");
        };
        self.levels.remove(level);
        self.bytes -= start.bytes as u64;
        results.peers.push(start.peers);
        let persistent_request = start.is_persistent.then_some(request);
        if is_orphan {
            self.free_requests.extend(persistent_request);
            dropped.push(start.payload);
            self.release(index);
            return;
        }
        let outcome = check(error).map(|()| match start.kind {
            Kind::Receive => outcome(status, start.datatype),
            Kind::Completes => Outcome::NOTHING,
        });
        results.wakers.extend(waker);
        let slot = &mut self.slots[index as usize];
        slot.busy = Some(Busy {
            stage: Stage::Done(Completion {
                outcome,
                payload: start.payload,
                request: persistent_request,
            }),
            waker: None,
            level,
            is_orphan: false,
            is_cancel_requested: false,
        });
    }

    /// Asks MPI for a message that matches each probe.
    pub(crate) fn probe(&mut self, results: &mut LookResults) {
        let mut position = 0;
        while let Some(&index) = self.probes.get(position) {
            let Some(Busy {
                stage: Stage::Probing(pattern),
                ..
            }) = &self.slots[index as usize].busy
            else {
                unreachable!("each entry of `probes` is probing");
            };
            let completion = match improbe(pattern) {
                Ok(None) => {
                    position += 1;
                    continue;
                }
                done => probe_completion(done, pattern.comm.clone()),
            };
            self.probes.swap_remove(position);
            results.events += 1;
            let busy = self.slots[index as usize].busy.as_mut();
            let busy = busy.expect("the slot was occupied above");
            // This drops a communicator, but not its last handle, since the completion contains
            // another handle.
            busy.stage = Stage::Done(completion);
            results.wakers.extend(busy.waker.take());
            let level = busy.level;
            self.levels.remove(level);
        }
    }
}
