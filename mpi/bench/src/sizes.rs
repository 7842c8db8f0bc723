//! Measures operations on 1 byte to 256 MiB in four ways: blocking MPI with the library's defaults;
//! blocking MPI with messages in pieces, which is the default of [`Launch`]; a thread that starts
//! the operation and calls `MPI_Wait`; and coroutines.

use std::ffi::{c_int, c_void};
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use mpi_sys as sys;
use upshift_mpi::{Error, Launch, Op, Result, World};

use crate::work::{Plain, median, micros, print_figure};

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
    let of = |names: [&str; 5], name| names.iter().position(|other| *other == name);
    (
        of(OPERATIONS.map(|other| other.0), operation).unwrap_or(OPERATIONS.len()),
        of(SIZES.map(|other| other.0), size).unwrap_or(SIZES.len()),
    )
}

pub(crate) fn run(way: &str, quick: bool) -> Result<()> {
    match way {
        "blocking" => blocking(quick),
        "blocking, in pieces" => {
            in_pieces();
            blocking(quick)
        }
        "thread" => {
            in_pieces();
            thread(quick)
        }
        _ => Launch::new().run(async |world: World| coroutines(&world, quick).await),
    }
}

/// Makes MPI send messages in pieces, as `Launch` does.
fn in_pieces() {
    for transport in ["self", "vader", "tcp"] {
        // SAFETY: no other thread reads the environment, since this runs first in `main`, when
        // there is no other thread.
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

fn cases(quick: bool) -> impl Iterator<Item = (String, Operation, usize, usize)> {
    let sizes = SIZES
        .into_iter()
        .filter(move |size| !quick || size.1 < 100 << 20);
    sizes.flat_map(move |(size, bytes)| {
        let times = if quick {
            3
        } else {
            ((64 << 20) / bytes).clamp(3, 101)
        };
        OPERATIONS.map(|(name, operation)| (format!("{name}, {size}"), operation, bytes, times))
    })
}

struct Requests {
    requests: [sys::MPI_Request; 2],
    count: c_int,
}

impl Requests {
    /// # Safety
    /// MPI is initialised; the buffers have the lengths that `lengths` returns and live until the
    /// requests are complete.
    unsafe fn start(
        plain: &Plain,
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
                    let next = (plain.rank + 1) % plain.size;
                    let before = (plain.rank + plain.size - 1) % plain.size;
                    sys::MPI_Irecv(received, n, t, before, 3, comm, request);
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

/// # Safety
/// As for `Requests::start`.
unsafe fn run_blocking(
    plain: &Plain,
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
            Operation::Messages => Requests::start(plain, operation, sent, received, items).wait(),
        }
    }
}

/// Measures `once`, which receives both buffers and the count.
fn measure(
    plain: &Plain,
    quick: bool,
    mut once: impl FnMut(Operation, &mut [u8], &mut [u8], usize),
) {
    for (name, operation, bytes, times) in cases(quick) {
        let (rank, size) = (plain.rank as usize, plain.size as usize);
        let (sent, received, items) = lengths(operation, bytes, rank, size);
        let (mut sent, mut received) = (vec![1u8; sent], vec![0u8; received]);
        let mut taken = Vec::new();
        for _ in 0..times {
            plain.barrier();
            let began = Instant::now();
            once(operation, &mut sent, &mut received, items);
            plain.barrier();
            taken.push(began.elapsed());
        }
        if plain.rank == 0 {
            print_figure(&name, micros(median(taken)) / 1000.0);
        }
    }
}

fn blocking(quick: bool) -> Result<()> {
    // SAFETY: this is the only call of `init`, and no call of MPI precedes it.
    let plain = unsafe { Plain::init(sys::RSMPI_THREAD_SINGLE)? };
    measure(&plain, quick, |operation, sent, received, items| {
        // SAFETY: MPI is initialised, and the buffers have the lengths that `lengths` returns.
        unsafe {
            run_blocking(
                &plain,
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

fn thread(quick: bool) -> Result<()> {
    // SAFETY: this is the only call of `init`, and no call of MPI precedes it.
    let plain = unsafe { Plain::init(sys::RSMPI_THREAD_MULTIPLE)? };
    let (ask, asked) = sync_channel::<Job>(1);
    let (finish, finished) = sync_channel::<()>(1);
    std::thread::scope(|scope| {
        let other = &plain;
        scope.spawn(move || {
            while let Ok(Job(operation, sent, received, items)) = asked.recv() {
                // SAFETY: MPI is initialised; the buffers have the lengths that `lengths` returns,
                // and live until `finish` has sent.
                unsafe { Requests::start(other, operation, sent, received, items).wait() };
                if finish.send(()).is_err() {
                    return;
                }
            }
        });
        measure(&plain, quick, |operation, sent, received, items| {
            let (sent, received) = (sent.as_mut_ptr().cast(), received.as_mut_ptr().cast());
            // Cannot fail, since the thread lives as long as its channels.
            let _ = ask.send(Job(operation, sent, received, items));
            let _ = finished.recv();
        });
        drop(ask);
    });
    Ok(())
}

async fn coroutines(world: &World, quick: bool) -> Result<()> {
    let (comm, rank, size) = (world.comm(), world.rank(), world.size());
    let wrong = |name: &str| Err(Error::System(format!("wrong bytes: {name}")));
    for (name, operation, bytes, times) in cases(quick) {
        let (sent, received, share) = lengths(operation, bytes, rank, size);
        let (mut sent, mut received) = (vec![1u8; sent], vec![0u8; received]);
        let mut taken = Vec::new();
        for _ in 0..times {
            // An operation that takes one buffer may return another, so new buffers are created
            // outside of the measured time.
            let out = std::mem::take(&mut sent);
            comm.barrier().await?;
            let began = Instant::now();
            match operation {
                Operation::Allreduce => {
                    received = comm.allreduce(out, Op::Sum).await?;
                }
                Operation::Broadcast => sent = comm.broadcast(out, 0).await?,
                Operation::Gather => received = comm.gather(out, 0).await?.unwrap_or_default(),
                Operation::Alltoall => received = comm.alltoall(out).await?,
                Operation::Messages => {
                    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
                    let arrived = comm.irecv(std::mem::take(&mut received), before, 3);
                    sent = comm.isend(out, next, 3).await?;
                    received = arrived.await?.data;
                }
            }
            comm.barrier().await?;
            taken.push(began.elapsed());
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
                || received.len() >= if rank == 0 { share } else { 0 };
            if !is_complete || received.iter().any(|item| *item != expected) {
                return wrong(&name);
            }
        }
        if rank == 0 {
            print_figure(&name, micros(median(taken)) / 1000.0);
        }
    }
    Ok(())
}
