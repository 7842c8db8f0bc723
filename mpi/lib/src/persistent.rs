//! Implements persistent operations. MPI receives the arguments once, and the operation can then be
//! run many times.
//!
//! The buffers move to the table of requests (`table.rs`) when a run starts, and back when it has
//! ended, so they can be accessed only between runs.

use std::ffi::{CString, c_int, c_void};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use mpi_sys as sys;

use crate::collective::{Buffers, Call, Collective, Raw};
use crate::comm::Comm;
use crate::data::{Datatype, count};
use crate::error::{Error, Result, check};
use crate::job::{Job, waiter_level};
use crate::peers::Peers;
use crate::table::{Completion, Key, Kind, Start};

/// An operation that can be run repeatedly. If it is dropped while it runs, the run ends like an
/// [`Operation`](crate::Operation) that is dropped.
pub struct Persistent<T: Datatype> {
    comm: Comm,
    kind: Kind,
    datatype: Handle,
    peers: Peers,
    /// Set if the operation sends from and receives into the same buffer, or only sends.
    has_one_buffer: bool,
    state: State<T>,
}

struct Handle(sys::MPI_Datatype);

// SAFETY: any thread may keep an MPI handle, and the handle is passed to MPI only under the lock.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

enum State<T> {
    Idle(sys::MPI_Request, Buffers<T>),
    Running(Key),
    /// The operation failed and lost its buffers.
    Failed,
}

// SAFETY: any thread may keep an MPI handle, and the handle is passed to MPI only under the lock.
unsafe impl<T: Datatype> Send for State<T> {}
// SAFETY: as above.
unsafe impl<T: Datatype> Sync for State<T> {}

impl<T: Datatype> Persistent<T> {
    fn new(
        comm: &Comm,
        kind: Kind,
        peers: Peers,
        has_one_buffer: bool,
        buffers: Buffers<T>,
        init: impl FnOnce(&mut crate::table::Table, *mut sys::MPI_Request) -> Result<sys::MPI_Datatype>,
    ) -> Result<Persistent<T>> {
        let (request, datatype) = comm.job().call(&Peers::None, |table| {
            // SAFETY: the library defines this value as a constant.
            let mut request = unsafe { sys::RSMPI_REQUEST_NULL };
            let datatype = init(table, &mut request)?;
            Ok((request, datatype))
        })?;
        Ok(Persistent {
            comm: comm.clone(),
            kind,
            datatype: Handle(datatype),
            peers,
            has_one_buffer,
            state: State::Idle(request, buffers),
        })
    }

    pub(crate) fn collective(comm: &Comm, mut call: Call<T>) -> Result<Persistent<T>> {
        let collective = call.collective;
        let function = symbol(collective.persistent_name())?;
        let raw = call.raw(comm);
        let buffers = call.buffers;
        let has_one_buffer = collective == Collective::Broadcast;
        let (kind, peers) = (Kind::Completes, comm.all_peers());
        Persistent::new(
            comm,
            kind,
            peers,
            has_one_buffer,
            buffers,
            |table, request| {
                let raw = raw(table)?;
                // SAFETY: the function has the type that MPI 4 gives this name, and the buffers
                // live as long as the request, in this value or in the table.
                check(unsafe { init(function, collective, raw, request) })?;
                Ok(raw.datatype)
            },
        )
    }

    fn job(&self) -> &Arc<Job> {
        self.comm.job()
    }

    /// Starts a run; [`wait`](Self::wait) awaits its end.
    ///
    /// # Errors
    /// [`Error::Busy`] if the operation runs; errors of MPI.
    pub fn start(&mut self) -> Result<()> {
        let request = match &self.state {
            State::Idle(request, _) => *request,
            State::Running(_) => return Err(Error::Busy),
            State::Failed => return Err(Error::Ended),
        };
        let level = waiter_level();
        let key = self.comm.job().call(&self.peers, |table| {
            let mut request = request;
            // SAFETY: the persistent request is inactive, and `self.state` contains its buffers.
            check(unsafe { sys::MPI_Start(&mut request) })?;
            let State::Idle(_, buffers) = std::mem::replace(&mut self.state, State::Failed) else {
                unreachable!("the operation was idle above, and `self` is borrowed");
            };
            Ok(table.insert(
                Start {
                    kind: self.kind,
                    request,
                    datatype: self.datatype.0,
                    is_persistent: true,
                    bytes: buffers.bytes(),
                    payload: Box::new(buffers),
                    peers: self.peers.clone(),
                },
                level,
            ))
        })?;
        self.state = State::Running(key);
        Ok(())
    }

    /// Awaits the end of the run.
    ///
    /// # Cancellation safety
    /// This method is cancellation safe: if its future is dropped, the method may be called again.
    ///
    /// # Errors
    /// The errors of the operation. A persistent operation that has failed cannot be run again.
    pub async fn wait(&mut self) -> Result<()> {
        let completion = poll_fn(|cx| {
            let State::Running(key) = self.state else {
                return Poll::Ready(Ok(None));
            };
            let level = waiter_level();
            let job = self.comm.job();
            if let Some(completion) = job.with(|table| table.take(key, cx.waker(), level)) {
                return Poll::Ready(Ok(Some(completion)));
            }
            match job.death() {
                Some(death) => Poll::Ready(Err(Error::Died(death.clone()))),
                None if job.has_ended() => Poll::Ready(Err(Error::Ended)),
                None => Poll::Pending,
            }
        })
        .await?;
        match completion {
            Some(completion) => self.end_run(completion),
            None => Ok(()),
        }
    }

    fn end_run(&mut self, completion: Completion) -> Result<()> {
        let buffers: Box<Buffers<T>> = completion
            .payload
            .downcast()
            .expect("the payload of a persistent operation");
        let request = completion.request.ok_or(Error::Ended)?;
        self.state = State::Idle(request, *buffers);
        completion.outcome.map(drop)
    }

    /// Runs the operation once and awaits its end.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start) and [`wait`](Self::wait).
    pub async fn run(&mut self) -> Result<()> {
        self.start()?;
        self.wait().await
    }

    /// Returns the items that the next run sends.
    ///
    /// # Errors
    /// [`Error::Busy`] while the operation runs.
    pub fn input(&mut self) -> Result<&mut [T]> {
        match &mut self.state {
            State::Idle(_, buffers) => Ok(&mut buffers.sent),
            State::Running(_) => Err(Error::Busy),
            State::Failed => Err(Error::Ended),
        }
    }

    /// Returns the items that the last run has received.
    ///
    /// # Errors
    /// [`Error::Busy`] while the operation runs.
    pub fn output(&self) -> Result<&[T]> {
        match &self.state {
            State::Idle(_, buffers) if self.has_one_buffer => Ok(&buffers.sent),
            State::Idle(_, buffers) => Ok(&buffers.received),
            State::Running(_) => Err(Error::Busy),
            State::Failed => Err(Error::Ended),
        }
    }
}

impl<T: Datatype> Drop for Persistent<T> {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.state, State::Failed) {
            State::Idle(request, _buffers) => self.job().with(|table| {
                table.free_requests.push(request);
                table.request_look();
            }),
            State::Running(key) => self.job().abandon(key),
            State::Failed => {}
        }
    }
}

impl<T: Datatype> std::fmt::Debug for Persistent<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match self.state {
            State::Idle(..) => "idle",
            State::Running(_) => "running",
            State::Failed => "failed",
        };
        f.debug_tuple("Persistent").field(&state).finish()
    }
}

impl Comm {
    /// Creates the persistent form of [`isend`](Self::isend).
    ///
    /// # Errors
    /// [`Error::Rank`], [`Error::TooLong`]; errors of MPI.
    pub fn send_init<T: Datatype>(
        &self,
        mut buffer: Vec<T>,
        rank: usize,
        tag: u16,
    ) -> Result<Persistent<T>> {
        let (items, length) = (buffer.as_mut_ptr(), buffer.len());
        let (comm, peers) = (self.handle(), self.peer(rank));
        let buffers = Buffers {
            sent: buffer,
            received: Vec::new(),
        };
        Persistent::new(
            self,
            Kind::Completes,
            peers,
            true,
            buffers,
            |table, request| {
                let datatype = table.types.get::<T>()?;
                let (length, rank) = (count(length)?, self.checked_rank(rank)?);
                // SAFETY: the items live as long as the request, in `Persistent` or in the table.
                check(unsafe {
                    sys::MPI_Send_init(
                        items.cast_const().cast(),
                        length,
                        datatype,
                        rank,
                        tag.into(),
                        comm,
                        request,
                    )
                })?;
                Ok(datatype)
            },
        )
    }

    /// Creates the persistent form of [`irecv`](Self::irecv), for `length` items from `rank`.
    ///
    /// # Errors
    /// [`Error::Rank`], [`Error::TooLong`]; errors of MPI.
    pub fn recv_init<T: Datatype>(
        &self,
        length: usize,
        rank: usize,
        tag: u16,
    ) -> Result<Persistent<T>> {
        let mut buffer = vec![T::zeroed(); length];
        let items = buffer.as_mut_ptr();
        let (comm, peers) = (self.handle(), self.peer(rank));
        let buffers = Buffers {
            sent: Vec::new(),
            received: buffer,
        };
        Persistent::new(
            self,
            Kind::Receive,
            peers,
            false,
            buffers,
            |table, request| {
                let datatype = table.types.get::<T>()?;
                let (length, rank) = (count(length)?, self.checked_rank(rank)?);
                // SAFETY: the items live as long as the request, in `Persistent` or in the table.
                check(unsafe {
                    sys::MPI_Recv_init(
                        items.cast(),
                        length,
                        datatype,
                        rank,
                        tag.into(),
                        comm,
                        request,
                    )
                })?;
                Ok(datatype)
            },
        )
    }
}

/// Looks up the function of a persistent collective at run time, because a program that is linked
/// to the function would not start with a library that lacks it. MPI 4 has the function; Open MPI
/// 4, which implements MPI 3, has it as an extension.
fn symbol(name: &'static str) -> Result<*mut c_void> {
    for prefix in ["MPI_", "MPIX_"] {
        let name = CString::new(format!("{prefix}{name}")).expect("the name contains no zero byte");
        // SAFETY: `name` is a C string; the handle represents all libraries of the process.
        let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        if !function.is_null() {
            return Ok(function);
        }
    }
    Err(Error::Unsupported(name))
}

/// Creates the request of a persistent collective.
///
/// # Safety
/// `function` is the persistent form of `collective`. The buffers are as `start_call` requires.
unsafe fn init(
    function: *mut c_void,
    collective: Collective,
    raw: Raw,
    request: *mut sys::MPI_Request,
) -> c_int {
    use sys::{MPI_Comm, MPI_Datatype, MPI_Info, MPI_Op, MPI_Request};
    type In = *const c_void;
    type Out = *mut c_void;
    type Req = *mut MPI_Request;
    type Ty = MPI_Datatype;
    type Int = c_int;
    type Barrier = unsafe extern "C" fn(MPI_Comm, MPI_Info, Req) -> Int;
    type Bcast = unsafe extern "C" fn(Out, Int, Ty, Int, MPI_Comm, MPI_Info, Req) -> Int;
    type Reduce =
        unsafe extern "C" fn(In, Out, Int, Ty, MPI_Op, Int, MPI_Comm, MPI_Info, Req) -> Int;
    type Allreduce = unsafe extern "C" fn(In, Out, Int, Ty, MPI_Op, MPI_Comm, MPI_Info, Req) -> Int;
    type Rooted =
        unsafe extern "C" fn(In, Int, Ty, Out, Int, Ty, Int, MPI_Comm, MPI_Info, Req) -> Int;
    type All = unsafe extern "C" fn(In, Int, Ty, Out, Int, Ty, MPI_Comm, MPI_Info, Req) -> Int;
    let Raw {
        sent,
        received,
        share: count,
        datatype,
        root,
        comm,
    } = raw;
    // SAFETY: the types are the function types of MPI 4; the caller guarantees the rest.
    unsafe {
        let info = sys::RSMPI_INFO_NULL;
        match collective {
            Collective::Barrier => {
                std::mem::transmute::<*mut c_void, Barrier>(function)(comm, info, request)
            }
            Collective::Broadcast => std::mem::transmute::<*mut c_void, Bcast>(function)(
                sent.cast_mut(),
                count,
                datatype,
                root,
                comm,
                info,
                request,
            ),
            Collective::Reduce(op) => std::mem::transmute::<*mut c_void, Reduce>(function)(
                sent,
                received,
                count,
                datatype,
                op.handle(),
                root,
                comm,
                info,
                request,
            ),
            Collective::Allreduce(op) => std::mem::transmute::<*mut c_void, Allreduce>(function)(
                sent,
                received,
                count,
                datatype,
                op.handle(),
                comm,
                info,
                request,
            ),
            Collective::Gather | Collective::Scatter => {
                std::mem::transmute::<*mut c_void, Rooted>(function)(
                    sent, count, datatype, received, count, datatype, root, comm, info, request,
                )
            }
            Collective::Allgather | Collective::Alltoall => {
                std::mem::transmute::<*mut c_void, All>(function)(
                    sent, count, datatype, received, count, datatype, comm, info, request,
                )
            }
        }
    }
}
