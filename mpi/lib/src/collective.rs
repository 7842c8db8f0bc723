//! Implements collectives, which are operations that all ranks of a communicator start, in the same
//! order.
//!
//! No collective blocks the calling thread. A rank that computes meanwhile delays the other ranks
//! only until its progress coroutine asks MPI for completions (`progress.rs`). A dropped collective
//! completes in the background, because MPI cannot cancel it.
//!
//! Each collective also has a persistent form, which can be started repeatedly (`persistent.rs`).
//! Both forms use the same [`Call`], so they cannot differ.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use mpi_sys as sys;

use crate::comm::Comm;
use crate::data::{Datatype, Number, Op, count};
use crate::error::{Error, Result};
use crate::job::Job;
use crate::operation::{Operation, start};
use crate::persistent::Persistent;
use crate::table::{Completion, Kind, Table};

/// A call of a collective, with its arguments and buffers.
pub(crate) struct Call<T> {
    pub(crate) collective: Collective,
    pub(crate) buffers: Buffers<T>,
    root: usize,
    /// Number of items that one rank contributes.
    share: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collective {
    Barrier,
    Broadcast,
    Reduce(Op),
    Allreduce(Op),
    Gather,
    Allgather,
    Scatter,
    Alltoall,
}

impl Collective {
    /// Returns the name of the persistent form in MPI 4. Older versions of Open MPI add the prefix
    /// `MPIX`.
    pub(crate) fn persistent_name(self) -> &'static str {
        match self {
            Collective::Barrier => "Barrier_init",
            Collective::Broadcast => "Bcast_init",
            Collective::Reduce(_) => "Reduce_init",
            Collective::Allreduce(_) => "Allreduce_init",
            Collective::Gather => "Gather_init",
            Collective::Allgather => "Allgather_init",
            Collective::Scatter => "Scatter_init",
            Collective::Alltoall => "Alltoall_init",
        }
    }
}

/// The buffers of a collective: one to send from and one to receive into. A broadcast uses the
/// first buffer for both.
#[derive(Clone)]
pub(crate) struct Buffers<T> {
    pub(crate) sent: Vec<T>,
    pub(crate) received: Vec<T>,
}

impl<T> Buffers<T> {
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.sent) + size_of_val(&*self.received)
    }
}

/// The arguments of a collective, as MPI takes them.
#[derive(Clone, Copy)]
pub(crate) struct Raw {
    pub(crate) sent: *const c_void,
    pub(crate) received: *mut c_void,
    pub(crate) share: c_int,
    pub(crate) datatype: sys::MPI_Datatype,
    pub(crate) root: c_int,
    pub(crate) comm: sys::MPI_Comm,
}

impl<T: Datatype> Call<T> {
    fn new(
        collective: Collective,
        sent: Vec<T>,
        received_items: usize,
        root: usize,
        share: usize,
    ) -> Call<T> {
        Call {
            collective,
            buffers: Buffers {
                sent,
                received: vec![T::zeroed(); received_items],
            },
            root,
            share,
        }
    }

    /// Returns the arguments. The pointers are valid while the buffers live, even if the buffers
    /// are moved.
    pub(crate) fn raw(&mut self, comm: &Comm) -> impl FnOnce(&mut Table) -> Result<Raw> + use<T> {
        let sent = if self.collective == Collective::Broadcast {
            self.buffers.sent.as_mut_ptr().cast_const()
        } else {
            self.buffers.sent.as_ptr()
        };
        let received = self.buffers.received.as_mut_ptr();
        let (share, root, comm) = (self.share, comm.checked_rank(self.root), comm.handle());
        move |table| {
            Ok(Raw {
                sent: sent.cast(),
                received: received.cast(),
                share: count(share)?,
                datatype: table.types.get::<T>()?,
                root: root?,
                comm,
            })
        }
    }

    fn start<R>(
        mut self,
        comm: &Comm,
        finish: fn(&Arc<Job>, Completion) -> Result<R>,
    ) -> Operation<R> {
        let (collective, raw) = (self.collective, self.raw(comm));
        let payload = Box::new(self.buffers);
        let (job, peers) = (comm.job(), comm.all_peers());
        let bytes = payload.bytes();
        let kind = Kind::Completes;
        start(
            job,
            kind,
            peers,
            payload,
            bytes,
            finish,
            |table, request| {
                let raw = raw(table)?;
                // SAFETY: the table owns the buffers until MPI has finished, and they have the
                // lengths that `Call::new` received.
                crate::error::check(unsafe { start_call(collective, raw, request) })?;
                Ok(raw.datatype)
            },
        )
    }
}

/// Starts a collective, without waiting for its end.
///
/// # Safety
/// The buffers have the length that `collective` needs for the share and the communicator, and live
/// until the request is complete.
unsafe fn start_call(collective: Collective, raw: Raw, request: *mut sys::MPI_Request) -> c_int {
    let Raw {
        sent,
        received,
        share: count,
        datatype,
        root,
        comm,
    } = raw;
    // SAFETY: guaranteed by the caller.
    unsafe {
        match collective {
            Collective::Barrier => sys::MPI_Ibarrier(comm, request),
            Collective::Broadcast => {
                sys::MPI_Ibcast(sent.cast_mut(), count, datatype, root, comm, request)
            }
            Collective::Reduce(op) => sys::MPI_Ireduce(
                sent,
                received,
                count,
                datatype,
                op.handle(),
                root,
                comm,
                request,
            ),
            Collective::Allreduce(op) => {
                sys::MPI_Iallreduce(sent, received, count, datatype, op.handle(), comm, request)
            }
            Collective::Gather => sys::MPI_Igather(
                sent, count, datatype, received, count, datatype, root, comm, request,
            ),
            Collective::Allgather => sys::MPI_Iallgather(
                sent, count, datatype, received, count, datatype, comm, request,
            ),
            Collective::Scatter => sys::MPI_Iscatter(
                sent, count, datatype, received, count, datatype, root, comm, request,
            ),
            Collective::Alltoall => sys::MPI_Ialltoall(
                sent, count, datatype, received, count, datatype, comm, request,
            ),
        }
    }
}

fn buffers<T: Datatype>(completion: Completion) -> Result<Buffers<T>> {
    completion.outcome?;
    let payload = completion.payload.downcast();
    Ok(*payload.expect("the payload of a collective"))
}

fn finish_unit(_: &Arc<Job>, completion: Completion) -> Result<()> {
    completion.outcome.map(drop)
}

fn finish_sent<T: Datatype>(_: &Arc<Job>, completion: Completion) -> Result<Vec<T>> {
    Ok(buffers(completion)?.sent)
}

fn finish_received<T: Datatype>(_: &Arc<Job>, completion: Completion) -> Result<Vec<T>> {
    Ok(buffers(completion)?.received)
}

/// Returns the buffer that only the root receives; `None` on other ranks.
fn finish_root_received<T: Datatype>(
    _: &Arc<Job>,
    completion: Completion,
) -> Result<Option<Vec<T>>> {
    let received = buffers(completion)?.received;
    Ok((!received.is_empty()).then_some(received))
}

impl Comm {
    fn is_root(&self, root: usize) -> bool {
        self.rank() == root
    }

    fn barrier_call(&self) -> Call<u8> {
        Call::new(Collective::Barrier, Vec::new(), 0, 0, 0)
    }

    fn broadcast_call<T: Datatype>(&self, buffer: Vec<T>, root: usize) -> Call<T> {
        let share = buffer.len();
        Call::new(Collective::Broadcast, buffer, 0, root, share)
    }

    fn reduce_call<T: Number>(&self, buffer: Vec<T>, op: Op, root: usize) -> Call<T> {
        let share = buffer.len();
        let received = if self.is_root(root) { share } else { 0 };
        Call::new(Collective::Reduce(op), buffer, received, root, share)
    }

    fn allreduce_call<T: Number>(&self, buffer: Vec<T>, op: Op) -> Call<T> {
        let share = buffer.len();
        Call::new(Collective::Allreduce(op), buffer, share, 0, share)
    }

    fn gather_call<T: Datatype>(&self, buffer: Vec<T>, root: usize) -> Call<T> {
        let share = buffer.len();
        let received = if self.is_root(root) {
            share * self.size()
        } else {
            0
        };
        Call::new(Collective::Gather, buffer, received, root, share)
    }

    fn allgather_call<T: Datatype>(&self, buffer: Vec<T>) -> Call<T> {
        let share = buffer.len();
        Call::new(Collective::Allgather, buffer, share * self.size(), 0, share)
    }

    fn scatter_call<T: Datatype>(
        &self,
        buffer: Vec<T>,
        share: usize,
        root: usize,
    ) -> Result<Call<T>> {
        if self.is_root(root) && share.checked_mul(self.size()) != Some(buffer.len()) {
            return Err(Error::Uneven(buffer.len(), self.size()));
        }
        Ok(Call::new(Collective::Scatter, buffer, share, root, share))
    }

    fn alltoall_call<T: Datatype>(&self, buffer: Vec<T>) -> Result<Call<T>> {
        let length = buffer.len();
        if !length.is_multiple_of(self.size()) {
            return Err(Error::Uneven(length, self.size()));
        }
        let share = length / self.size();
        Ok(Call::new(Collective::Alltoall, buffer, length, 0, share))
    }

    /// Waits for all ranks. The operation completes when each rank has started the barrier.
    pub fn barrier(&self) -> Operation<()> {
        self.barrier_call().start(self, finish_unit)
    }

    /// Gives every rank the items of `root`. All ranks pass buffers of the same length.
    pub fn broadcast<T: Datatype>(&self, buffer: Vec<T>, root: usize) -> Operation<Vec<T>> {
        self.broadcast_call(buffer, root).start(self, finish_sent)
    }

    /// Reduces the buffers of all ranks item by item; `root` gets the result, other ranks get
    /// `None`.
    pub fn reduce<T: Number>(
        &self,
        buffer: Vec<T>,
        op: Op,
        root: usize,
    ) -> Operation<Option<Vec<T>>> {
        self.reduce_call(buffer, op, root)
            .start(self, finish_root_received)
    }

    /// Reduces the buffers of all ranks item by item; all ranks get the result.
    pub fn allreduce<T: Number>(&self, buffer: Vec<T>, op: Op) -> Operation<Vec<T>> {
        self.allreduce_call(buffer, op).start(self, finish_received)
    }

    /// Collects the items of all ranks at `root`, in the order of the ranks; other ranks get
    /// `None`.
    pub fn gather<T: Datatype>(&self, buffer: Vec<T>, root: usize) -> Operation<Option<Vec<T>>> {
        self.gather_call(buffer, root)
            .start(self, finish_root_received)
    }

    /// Collects the items of all ranks at every rank, in the order of the ranks.
    pub fn allgather<T: Datatype>(&self, buffer: Vec<T>) -> Operation<Vec<T>> {
        self.allgather_call(buffer).start(self, finish_received)
    }

    /// Gives each rank its share of the items of `root`; the buffers of other ranks are ignored.
    pub fn scatter<T: Datatype>(
        &self,
        buffer: Vec<T>,
        share: usize,
        root: usize,
    ) -> Operation<Vec<T>> {
        match self.scatter_call(buffer, share, root) {
            Ok(call) => call.start(self, finish_received),
            Err(error) => Operation::new(self.job(), Err(error), finish_received),
        }
    }

    /// Gives the k-th rank the k-th share of each rank's items.
    pub fn alltoall<T: Datatype>(&self, buffer: Vec<T>) -> Operation<Vec<T>> {
        match self.alltoall_call(buffer) {
            Ok(call) => call.start(self, finish_received),
            Err(error) => Operation::new(self.job(), Err(error), finish_received),
        }
    }

    /// Creates the persistent form of [`barrier`](Self::barrier).
    ///
    /// # Errors
    /// Errors of MPI, and [`Error::Unsupported`] if the library has no persistent collectives.
    pub fn barrier_init(&self) -> Result<Persistent<u8>> {
        Persistent::collective(self, self.barrier_call())
    }

    /// Creates the persistent form of [`broadcast`](Self::broadcast).
    ///
    /// # Errors
    /// The errors of [`barrier_init`](Self::barrier_init).
    pub fn broadcast_init<T: Datatype>(
        &self,
        buffer: Vec<T>,
        root: usize,
    ) -> Result<Persistent<T>> {
        Persistent::collective(self, self.broadcast_call(buffer, root))
    }

    /// Creates the persistent form of [`reduce`](Self::reduce).
    ///
    /// # Errors
    /// The errors of [`barrier_init`](Self::barrier_init).
    pub fn reduce_init<T: Number>(
        &self,
        buffer: Vec<T>,
        op: Op,
        root: usize,
    ) -> Result<Persistent<T>> {
        Persistent::collective(self, self.reduce_call(buffer, op, root))
    }

    /// Creates the persistent form of [`allreduce`](Self::allreduce).
    ///
    /// # Errors
    /// The errors of [`barrier_init`](Self::barrier_init).
    pub fn allreduce_init<T: Number>(&self, buffer: Vec<T>, op: Op) -> Result<Persistent<T>> {
        Persistent::collective(self, self.allreduce_call(buffer, op))
    }

    /// Creates the persistent form of [`gather`](Self::gather).
    ///
    /// # Errors
    /// The errors of [`barrier_init`](Self::barrier_init).
    pub fn gather_init<T: Datatype>(&self, buffer: Vec<T>, root: usize) -> Result<Persistent<T>> {
        Persistent::collective(self, self.gather_call(buffer, root))
    }

    /// Creates the persistent form of [`allgather`](Self::allgather).
    ///
    /// # Errors
    /// The errors of [`barrier_init`](Self::barrier_init).
    pub fn allgather_init<T: Datatype>(&self, buffer: Vec<T>) -> Result<Persistent<T>> {
        Persistent::collective(self, self.allgather_call(buffer))
    }

    /// Creates the persistent form of [`scatter`](Self::scatter).
    ///
    /// # Errors
    /// The errors of [`barrier_init`](Self::barrier_init).
    pub fn scatter_init<T: Datatype>(
        &self,
        buffer: Vec<T>,
        share: usize,
        root: usize,
    ) -> Result<Persistent<T>> {
        Persistent::collective(self, self.scatter_call(buffer, share, root)?)
    }

    /// Creates the persistent form of [`alltoall`](Self::alltoall).
    ///
    /// # Errors
    /// The errors of [`barrier_init`](Self::barrier_init).
    pub fn alltoall_init<T: Datatype>(&self, buffer: Vec<T>) -> Result<Persistent<T>> {
        Persistent::collective(self, self.alltoall_call(buffer)?)
    }
}
