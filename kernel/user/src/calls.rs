//! Calls that may wait, in two forms: `read!(file, buffer)` and `read!(file, buffer, cid)`.
//!
//! SharedScheduler (section 4.3.1, "User Space Modification") gives a call one name and two forms.
//! Without a coroutine id the call is synchronous and blocks the thread. With an id it is
//! asynchronous: the kernel executes it concurrently, its completion wakes the coroutine `cid`, and
//! the call is a future of the same result ([`AsyncCall`]). `read!` stands for the functions
//! [`read()`] and [`read_async`]; one declaration generates all three for each call that the table
//! in `os_abi` marks `later`. Calls that affect the calling thread itself (`park`, `futex_lock`,
//! `fork`, `exec`) have no asynchronous form.
//!
//! ```ignore
//! let (count, bytes) = read!(pipe.reader, vec![0; 64], current()).await; // a coroutine waits
//! let count = read!(pipe.reader, &mut [0; 64])?;                         // the thread waits
//! ```
//!
//! The synchronous form borrows its buffer. The asynchronous form owns it as a `Vec<u8>`, which is
//! returned with the result, `(Result<usize, Error>, Vec<u8>)`, and stays in place if the future is
//! dropped. Names, arguments and lists of descriptors need not be owned, because the kernel has
//! read them when the call returns.

use alloc::vec::Vec;
use core::sync::atomic::AtomicU32;

use os_abi::{Error, SpawnRequest, UserRange, system_calls};
use upshift_macros::async_fn;

use crate::Bounds;
use crate::asynchronous::AsyncCall;
use crate::coroutine::Cid as CoroutineId;
use crate::sys::{self, later};

/// Reads the available bytes, and waits for the first; returns their number, 0 at the end.
///
/// # Errors
/// [`Error::BadFile`].
#[async_fn(AsyncCall<usize, Vec<u8>> = later::read(file, buffer.as_mut_ptr() as usize, buffer.len()))]
pub fn read(file: usize, #[buffer] buffer: &mut [u8]) -> Result<usize, Error>;

/// Writes all bytes; returns their number.
///
/// # Errors
/// [`Error::BadFile`], [`Error::BrokenPipe`].
#[async_fn(AsyncCall<usize, Vec<u8>> = later::write(file, bytes.as_ptr() as usize, bytes.len()))]
pub fn write(file: usize, #[buffer] bytes: &[u8]) -> Result<usize, Error> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let count = sys::write(file, rest.as_ptr() as usize, rest.len())?;
        rest = &rest[count as usize..];
    }
    Ok(bytes.len())
}

/// Waits until the clock shows `deadline`, in ticks.
///
/// # Errors
/// [`Error::OutOfMemory`].
#[async_fn(AsyncCall<()> = later::sleep_until(deadline as usize))]
pub fn sleep_until(deadline: u64) -> Result<(), Error>;

/// Maps `pages` zeroed pages; returns their address.
///
/// # Errors
/// [`Error::OutOfMemory`].
#[async_fn(AsyncCall<usize> = later::map(pages))]
pub fn map(pages: usize) -> Result<usize, Error>;

/// Maps `pages` zeroed pages above an unmapped page; returns their address.
///
/// # Errors
/// [`Error::OutOfMemory`].
#[async_fn(AsyncCall<usize> = later::map_stack(pages))]
pub fn map_stack(pages: usize) -> Result<usize, Error>;

/// Starts a program with an argument, with descriptors of the caller as its descriptors 0, 1, …,
/// and within bounds; returns its process number.
///
/// # Errors
/// No such program, no memory, too many processes, a level above the caller's ceiling.
#[async_fn(AsyncCall<usize> = later::spawn(address(&request(program, argument, files, bounds))))]
pub fn spawn(
    program: &str,
    argument: &[u8],
    files: &[usize],
    bounds: Bounds,
) -> Result<usize, Error>;

/// Waits until a child has ended; returns its status.
///
/// # Errors
/// [`Error::NoProcess`].
#[async_fn(AsyncCall<isize> = later::wait(process))]
pub fn wait(process: usize) -> Result<isize, Error>;

/// Waits until a thread has ended; returns its result.
///
/// # Errors
/// [`Error::NoThread`].
#[async_fn(AsyncCall<isize> = later::thread_join(thread))]
pub fn thread_join(thread: usize) -> Result<isize, Error>;

/// Waits for a `futex_wake` of `word` if the word has the value `value`, at most until the clock
/// shows `deadline`; returns [`WOKEN`](os_abi::number::WOKEN), [`CHANGED`](os_abi::number::CHANGED)
/// or [`TIMED_OUT`](os_abi::number::TIMED_OUT).
///
/// # Errors
/// [`Error::OutOfMemory`].
#[async_fn(AsyncCall<isize> = later::futex_wait(address(word), value as usize, deadline as usize))]
pub fn futex_wait(word: &'static AtomicU32, value: u32, deadline: u64) -> Result<isize, Error>;

/// Waits for a connection; returns its descriptor.
///
/// # Errors
/// [`Error::BadFile`] if the socket does not listen; no memory, too many sockets or descriptors.
#[async_fn(AsyncCall<usize> = later::accept(socket))]
pub fn accept(socket: usize) -> Result<usize, Error>;

/// Connects a socket to a port of an address.
///
/// # Errors
/// [`Error::Refused`]. No memory, too many sockets.
#[async_fn(AsyncCall<()> = later::connect(socket, internet(address), usize::from(port)))]
pub fn connect(socket: usize, address: [u8; 4], port: u16) -> Result<(), Error>;

/// Sends a datagram to a port of an address; returns the number of bytes.
///
/// # Errors
/// [`Error::BadArgument`] for more than [`MAX_LEN`](os_abi::datagram::MAX_LEN) bytes, or for an
/// address that no host can have.
#[async_fn(AsyncCall<usize, Vec<u8>> = later::send_to(
    socket, bytes.as_ptr() as usize, bytes.len(), internet(to.0), usize::from(to.1)
))]
pub fn send_to(socket: usize, #[buffer] bytes: &[u8], to: ([u8; 4], u16)) -> Result<usize, Error>;

/// Waits for a datagram; returns the number of bytes in the buffer, which begin with the source
/// address ([`datagram::parse`](os_abi::datagram::parse)).
///
/// # Errors
/// [`Error::BadArgument`] if the buffer is shorter than the source address.
#[async_fn(AsyncCall<usize, Vec<u8>> = later::receive_from(
    socket, buffer.as_mut_ptr() as usize, buffer.len()
))]
pub fn receive_from(socket: usize, #[buffer] buffer: &mut [u8]) -> Result<usize, Error>;

/// Opens a file of the disk and returns its descriptor, positioned at the beginning.
///
/// The name is a path, such as `bin/hello`; a directory exists as long as it contains files.
/// `flags` are [`CREATE`](os_abi::number::CREATE) and [`TRUNCATE`](os_abi::number::TRUNCATE).
///
/// # Errors
/// [`Error::NoFile`], [`Error::NoSpace`], [`Error::DiskFailed`]; [`Error::BadArgument`] if the name
/// is not a path, [`Error::IsDirectory`] if it is a directory, [`Error::NotDirectory`] if a part of
/// the path is a file.
#[async_fn(AsyncCall<usize> = later::open(name.as_ptr() as usize, name.len(), flags))]
pub fn open(name: &str, flags: usize) -> Result<usize, Error>;

/// Waits until earlier writes to the disk are durable.
///
/// # Errors
/// [`Error::DiskFailed`].
#[async_fn(AsyncCall<()> = later::fsync(file))]
pub fn fsync(file: usize) -> Result<(), Error>;

/// Removes the name of a file; the file is freed when its last descriptor is closed.
///
/// # Errors
/// [`Error::NoFile`], [`Error::DiskFailed`].
#[async_fn(AsyncCall<()> = later::unlink(name.as_ptr() as usize, name.len()))]
pub fn unlink(name: &str) -> Result<(), Error>;

/// Returns the first file whose number is not below `from`.
///
/// Writes the length of the file in bytes (a word) to `entry`, and as much of its name as fits.
/// Returns the number of the file plus 1, and the length of the name times 2³²; 0 if there is no
/// such file.
///
/// # Errors
/// [`Error::DiskFailed`].
#[async_fn(AsyncCall<usize, Vec<u8>> = later::list(from, entry.as_mut_ptr() as usize, entry.len()))]
pub fn list(from: usize, #[buffer] entry: &mut [u8]) -> Result<usize, Error>;

fn address<T>(value: &T) -> usize {
    core::ptr::from_ref(value) as usize
}

fn internet(address: [u8; 4]) -> usize {
    u32::from_be_bytes(address) as usize
}

fn range<T>(slice: &[T]) -> UserRange {
    UserRange {
        start: slice.as_ptr() as u64,
        len: size_of_val(slice) as u64,
    }
}

/// Returns the request of a `spawn`, which points to its parts.
fn request(program: &str, argument: &[u8], files: &[usize], bounds: Bounds) -> SpawnRequest {
    SpawnRequest {
        program: range(program.as_bytes()),
        argument: range(argument),
        files: range(files),
        level: u64::from(bounds.level),
        ceiling: u64::from(bounds.ceiling),
        halvings: u64::from(bounds.halvings),
    }
}

/// Fails to compile if a `later` call of the table has no declaration here.
macro_rules! declared {
    (@later $name:ident) => {
        const _: () = {
            let _ = $name;
        };
    };
    (@$kind:ident $name:ident) => {};
    ($($(#[$doc:meta])* $number:literal $kind:ident $name:ident($($argument:ident),*);)*) => {
        $(declared!(@$kind $name);)*
    };
}

system_calls!(declared);
