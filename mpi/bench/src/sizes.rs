//! Measures operations on 1 byte to 256 MiB in four ways: blocking MPI with the library's defaults;
//! blocking MPI with messages in pieces, which is the default of [`Launch`]; a thread that starts
//! the operation and calls `MPI_Wait`; and coroutines.

use std::ffi::{c_int, c_void};
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use mpi_sys as sys;
use upshift_mpi::{Error, Launch, Op, Result, World};

use crate::work::{BlockingMpi, median, micros, print_figure};

/// Names of the sizes, each with the length in bytes of the longest buffer of any rank.
const SIZES: [(&str, usize); 5] = [
    ("1 B", 1),
    ("64 KiB", 64 << 10),
    ("1 MiB", 1 << 20),
    ("32 MiB", 32 << 20),
    ("256 MiB", 256 << 20),
];

#[derive(Clone, Copy)]
enum Operation {
    Allreduce,
    Broadcast,
    Gather,
    Alltoall,
    /// A message to the next rank, and another from the previous rank.
    Messages,
}

const OPERATIONS: [(&str, Operation); 5] = [
    ("allreduce", Operation::Allreduce),
    ("broadcast", Operation::Broadcast),
    ("gather", Operation::Gather),
    ("alltoall", Operation::Alltoall),
    ("messages", Operation::Messages),
];

/// Returns the position of the row with this name in the table.
pub(crate) fn table_position(row: &str) -> (usize, usize) {
    let (operation, size) = row.split_once(", ").unwrap_or_default();
    let position = |names: [&str; 5], name| names.iter().position(|other| *other == name);
    (
        position(OPERATIONS.map(|other| other.0), operation).unwrap_or(OPERATIONS.len()),
        position(SIZES.map(|other| other.0), size).unwrap_or(SIZES.len()),
    )
}

pub(crate) fn run(way: &str, is_quick: bool) -> Result<()> {
    match way {
        "blocking" => blocking(is_quick),
        "blocking, in pieces" => {
            use_pieces();
            blocking(is_quick)
        }
        "thread" => {
            use_pieces();
            thread(is_quick)
        }
        _ => Launch::new().run(async |world: World| coroutines(&world, is_quick).await),
    }
}

/// Makes MPI send messages in pieces, as `Launch` does.
fn use_pieces() {
    for transport in ["self", "vader", "tcp"] {
        // SAFETY: no other thread reads the environment, since the process has no other thread
        // before the measurement.
        unsafe { std::env::set_var(format!("OMPI_MCA_btl_{transport}_flags"), "send,inplace") };
    }
}

/// Returns the lengths of the buffers that a rank sends and receives, and the count for MPI.
fn lengths(operation: Operation, bytes: usize, rank: usize, size: usize) -> (usize, usize, usize) {
    let share = (bytes / size).max(1);
    match operation {
        Operation::Allreduce | Operation::Messages => (bytes, bytes, bytes),
        Operation::Broadcast => (bytes, 0, bytes),
        Operation::Gather => (share, if rank == 0 { share * size } else { 0 }, share),
        Operation::Alltoall => (share * size, share * size, share),
    }
}

fn cases(is_quick: bool) -> impl Iterator<Item = (String, Operation, usize, usize)> {
    let sizes = SIZES
        .into_iter()
        .filter(move |size| !is_quick || size.1 < 100 << 20);
    sizes.flat_map(move |(size, bytes)| {
        let times = if is_quick {
            3
        } else {
            ((64 << 20) / bytes).clamp(3, 101)
        };
        OPERATIONS.map(|(name, operation)| (format!("{name}, {size}"), operation, bytes, times))
    })
}

/// The requests of one operation.
struct Requests {
    requests: [sys::MPI_Request; 2],
    count: c_int,
}

impl Requests {
    /// Starts an operation.
    ///
    /// # Safety
    /// MPI is initialised; the buffers have the lengths that `lengths` returns and live until the
    /// requests are complete.
    unsafe fn start(
        mpi: &BlockingMpi,
        operation: Operation,
        sent: *mut c_void,
        received: *mut c_void,
        items: usize,
    ) -> Requests {
        let n = items as c_int;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (t, comm) = (sys::RSMPI_UINT8_T, sys::RSMPI_COMM_WORLD);
            let mut requests = [sys::RSMPI_REQUEST_NULL; 2];
            let request = &mut requests[0];
            match operation {
                Operation::Allreduce => {
                    sys::MPI_Iallreduce(sent, received, n, t, sys::RSMPI_SUM, comm, request)
                }
                Operation::Broadcast => sys::MPI_Ibcast(sent, n, t, 0, comm, request),
                Operation::Gather => sys::MPI_Igather(sent, n, t, received, n, t, 0, comm, request),
                Operation::Alltoall => {
                    sys::MPI_Ialltoall(sent, n, t, received, n, t, comm, request)
                }
                Operation::Messages => {
                    let next = (mpi.rank + 1) % mpi.size;
                    let previous = (mpi.rank + mpi.size - 1) % mpi.size;
                    sys::MPI_Irecv(received, n, t, previous, 3, comm, request);
                    sys::MPI_Isend(sent, n, t, next, 3, comm, &mut requests[1])
                }
            };
            let count = if let Operation::Messages = operation {
                2
            } else {
                1
            };
            Requests { requests, count }
        }
    }

    /// Waits for the operation.
    ///
    /// # Safety
    /// As for `start`.
    unsafe fn wait(mut self) {
        // SAFETY: the requests are active, and the last argument asks MPI for no status.
        unsafe {
            sys::MPI_Waitall(
                self.count,
                self.requests.as_mut_ptr(),
                sys::RSMPI_STATUSES_IGNORE,
            )
        };
    }
}

/// Executes an operation by blocking calls.
///
/// # Safety
/// As for `Requests::start`.
unsafe fn run_blocking(
    mpi: &BlockingMpi,
    operation: Operation,
    sent: *mut c_void,
    received: *mut c_void,
    items: usize,
) {
    let n = items as c_int;
    // SAFETY: guaranteed by the caller.
    unsafe {
        let (t, comm) = (sys::RSMPI_UINT8_T, sys::RSMPI_COMM_WORLD);
        match operation {
            Operation::Allreduce => {
                sys::MPI_Allreduce(sent, received, n, t, sys::RSMPI_SUM, comm);
            }
            Operation::Broadcast => {
                sys::MPI_Bcast(sent, n, t, 0, comm);
            }
            Operation::Gather => {
                sys::MPI_Gather(sent, n, t, received, n, t, 0, comm);
            }
            Operation::Alltoall => {
                sys::MPI_Alltoall(sent, n, t, received, n, t, comm);
            }
            Operation::Messages => Requests::start(mpi, operation, sent, received, items).wait(),
        }
    }
}

/// Measures `execute`, which receives the operation, both buffers, and the count.
fn measure(
    mpi: &BlockingMpi,
    is_quick: bool,
    mut execute: impl FnMut(Operation, &mut [u8], &mut [u8], usize),
) {
    for (name, operation, bytes, times) in cases(is_quick) {
        let (rank, size) = (mpi.rank as usize, mpi.size as usize);
        let (sent, received, items) = lengths(operation, bytes, rank, size);
        let (mut sent, mut received) = (vec![1u8; sent], vec![0u8; received]);
        let mut durations = Vec::new();
        for _ in 0..times {
            mpi.barrier();
            let start_time = Instant::now();
            execute(operation, &mut sent, &mut received, items);
            mpi.barrier();
            durations.push(start_time.elapsed());
        }
        if mpi.rank == 0 {
            print_figure(&name, micros(median(durations)) / 1000.0);
        }
    }
}

fn blocking(is_quick: bool) -> Result<()> {
    // SAFETY: this is the only call of `init`, and no call of MPI precedes it.
    let mpi = unsafe { BlockingMpi::init(sys::RSMPI_THREAD_SINGLE)? };
    measure(&mpi, is_quick, |operation, sent, received, items| {
        // SAFETY: MPI is initialised, and the buffers have the lengths that `lengths` returns.
        unsafe {
            run_blocking(
                &mpi,
                operation,
                sent.as_mut_ptr().cast(),
                received.as_mut_ptr().cast(),
                items,
            );
        }
    });
    Ok(())
}

/// An operation for the communication thread, with the buffers to send and to receive, and the
/// count.
struct Job(Operation, *mut c_void, *mut c_void, usize);

// SAFETY: another thread may use the pointers, since the sender keeps the buffers alive, and does
// not use them, until the job has ended.
unsafe impl Send for Job {}

fn thread(is_quick: bool) -> Result<()> {
    // SAFETY: this is the only call of `init`, and no call of MPI precedes it.
    let mpi = unsafe { BlockingMpi::init(sys::RSMPI_THREAD_MULTIPLE)? };
    let (job_sender, job_receiver) = sync_channel::<Job>(1);
    let (end_sender, end_receiver) = sync_channel::<()>(1);
    std::thread::scope(|scope| {
        let thread_mpi = &mpi;
        scope.spawn(move || {
            while let Ok(Job(operation, sent, received, items)) = job_receiver.recv() {
                // SAFETY: MPI is initialised; the buffers have the lengths that `lengths` returns,
                // and live until `end_sender` has sent.
                unsafe { Requests::start(thread_mpi, operation, sent, received, items).wait() };
                if end_sender.send(()).is_err() {
                    return;
                }
            }
        });
        measure(&mpi, is_quick, |operation, sent, received, items| {
            let (sent, received) = (sent.as_mut_ptr().cast(), received.as_mut_ptr().cast());
            // Cannot fail, since the thread lives as long as its channels.
            let _ = job_sender.send(Job(operation, sent, received, items));
            let _ = end_receiver.recv();
        });
        drop(job_sender);
    });
    Ok(())
}

async fn coroutines(world: &World, is_quick: bool) -> Result<()> {
    let (comm, rank, size) = (world.comm(), world.rank(), world.size());
    let wrong = |name: &str| Err(Error::System(format!("wrong bytes: {name}")));
    for (name, operation, bytes, times) in cases(is_quick) {
        let (sent, received, count) = lengths(operation, bytes, rank, size);
        let (mut sent, mut received) = (vec![1u8; sent], vec![0u8; received]);
        let mut durations = Vec::new();
        for _ in 0..times {
            // An operation that takes one buffer may return another, so new buffers are created
            // outside of the measured time.
            let out = std::mem::take(&mut sent);
            comm.barrier().await?;
            let start_time = Instant::now();
            match operation {
                Operation::Allreduce => {
                    received = comm.allreduce(out, Op::Sum).await?;
                }
                Operation::Broadcast => sent = comm.broadcast(out, 0).await?,
                Operation::Gather => received = comm.gather(out, 0).await?.unwrap_or_default(),
                Operation::Alltoall => received = comm.alltoall(out).await?,
                Operation::Messages => {
                    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
                    let arrived = comm.irecv(std::mem::take(&mut received), previous, 3);
                    sent = comm.isend(out, next, 3).await?;
                    received = arrived.await?.data;
                }
            }
            comm.barrier().await?;
            durations.push(start_time.elapsed());
            if sent.is_empty() {
                let length = lengths(operation, bytes, rank, size).0;
                sent = vec![1; length];
            }
            let expected = if let Operation::Allreduce = operation {
                size as u8
            } else {
                1
            };
            let is_complete = matches!(operation, Operation::Broadcast)
                || received.len() >= if rank == 0 { count } else { 0 };
            if !is_complete || received.iter().any(|item| *item != expected) {
                return wrong(&name);
            }
        }
        if rank == 0 {
            print_figure(&name, micros(median(durations)) / 1000.0);
        }
    }
    Ok(())
}
